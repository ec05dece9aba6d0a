"""The thread that exports: on its interval, when asked, at the end; and what happens when it cannot."""

import signal
import threading
import time

import pytest

from otel_training.export_loop import ExportLoop
from otel_training.guard import Guard, Notices

LONG_S = 30.0


class Work:
    """Counts exports and ends; may fail, raise or hang."""

    def __init__(self):
        self.exports = 0
        self.ends = 0
        self.threads = set()
        self.result = True
        self.error = None
        self.hang = threading.Event()
        self.hang.set()

    def export(self):
        self.exports += 1
        self.threads.add(threading.current_thread())
        self.hang.wait()
        if self.error is not None:
            raise self.error
        return self.result

    def finish(self):
        self.ends += 1


@pytest.fixture
def work():
    return Work()


@pytest.fixture
def make(work):
    loops = []

    def make(interval_s=None):
        loops.append(ExportLoop("things", work.export, work.finish, interval_s, Guard(Notices())))
        return loops[-1]

    yield make
    work.hang.set()
    for loop in loops:
        loop.stop()
        loop.join(time.monotonic() + LONG_S)


def soon():
    return time.monotonic() + LONG_S


def test_it_exports_on_its_interval(make, work):
    loop = make(0.001)
    assert loop.start()
    deadline_s = soon()
    while work.exports < 3:
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
    [thread] = work.threads
    assert thread.daemon
    assert thread.name == "otel_training things"


def test_without_an_interval_it_exports_when_asked(make, work):
    loop = make()
    loop.start()
    assert loop.wait(loop.ask(), soon())
    assert loop.wait(loop.ask(), soon())
    assert work.exports == 2


def test_one_export_serves_all_who_asked_before_it(make, work):
    loop = make()
    tickets = [loop.ask() for _ in range(5)]
    loop.start()
    assert all(loop.wait(ticket, soon()) for ticket in tickets)
    assert work.exports == 1


def test_who_asks_during_an_export_waits_for_the_next(make, work):
    loop = make()
    work.hang.clear()
    loop.start()
    first = loop.ask()
    while not work.exports:
        time.sleep(0.001)
    second = loop.ask()
    work.hang.set()
    assert loop.wait(second, soon())
    assert loop.wait(first, soon())
    assert work.exports == 2


@pytest.mark.parametrize(("result", "error"), [(False, None), (True, RuntimeError("down"))])
def test_a_failed_export_is_told_and_the_thread_goes_on(make, work, result, error, caplog):
    loop = make()
    loop.start()
    work.result, work.error = result, error
    assert not loop.wait(loop.ask(), soon())
    work.result, work.error = True, None
    assert loop.wait(loop.ask(), soon())
    assert [record.getMessage() for record in caplog.records] == (
        ["export of things failed, training goes on: RuntimeError: down"] if error else []
    )


def test_waiting_ends_at_its_deadline(make, work):
    loop = make()
    work.hang.clear()
    loop.start()
    assert not loop.wait(loop.ask(), time.monotonic() + 0.01)
    assert not loop.wait(loop.ask(), time.monotonic() - 1.0)


def test_the_end_is_one_last_export_and_finish(make, work):
    loop = make(LONG_S)
    loop.start()
    loop.stop()
    assert loop.join(soon())
    assert (work.exports, work.ends) == (1, 1)
    loop.stop()
    assert loop.join(0.0)
    assert not loop.wait(loop.ask(), soon())


def test_a_last_export_that_fails_is_not_delivered_but_finished(make, work):
    loop = make()
    loop.start()
    work.result = False
    loop.stop()
    assert not loop.join(soon())
    assert work.ends == 1


def test_a_hanging_export_is_left_behind(make, work):
    loop = make()
    work.hang.clear()
    loop.start()
    loop.stop()
    assert not loop.join(time.monotonic() + 0.01)
    assert work.ends == 0


def test_a_machine_without_threads_is_told_and_nothing_waits(make, work, caplog):
    loop = make()
    size = threading.stack_size(2**46)  # no machine has that
    try:
        assert not loop.start()
    finally:
        threading.stack_size(size)
    assert not loop.wait(loop.ask(), soon())
    loop.stop()
    assert not loop.join(soon())
    assert work.exports == 0
    assert len(caplog.records) == 1


def test_a_signal_handler_may_flush_while_its_thread_is_asking(make, work):
    loop = make()
    loop.start()
    flushed = []
    former = signal.signal(signal.SIGUSR1, lambda *_: flushed.append(loop.wait(loop.ask(), soon())))
    try:
        with loop._condition:  # where ask() may be interrupted
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert flushed == [True]
