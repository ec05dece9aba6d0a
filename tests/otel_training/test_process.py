"""What is once per process: runs, instruments of each provider, pipelines, and the end of it all."""

import gc
import os
import signal
import sys
import threading
import weakref

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from otel_training import process
from otel_training.guard import Guard, Notices

FORKS = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
GUARD = Guard(Notices())


class FakeRun:
    """The hooks of a run, and its state."""

    def __init__(self, state):
        self.state = state
        self.hooks = set()

    def join(self, hook):
        self.hooks.add(hook)

    def leave(self, hook):
        self.hooks.discard(hook)
        return not self.hooks


class FakePipeline:
    def __init__(self, order):
        self.order = order

    def begin_close(self, error):
        self.order.append(("begin", error))

    def abandon_in_child(self):
        self.order.append(("abandoned", os.getpid()))


class FakeHook:
    def __init__(self, order, name):
        self.order = order
        self.name = name

    def flush(self, timeout_s):
        self.order.append((self.name, "flush", timeout_s))
        return True

    def close(self, error=None):
        self.order.append((self.name, error))
        process.closed(self)


@pytest.fixture
def key(request):
    return ("test", request.node.nodeid)


@pytest.fixture(autouse=True)
def nothing_left():
    """The registry is global: a test leaves it as it found it."""
    assert not process._closables
    assert not process._live
    yield
    process._closables.clear()
    process._live.clear()
    process._pipelines.clear()
    process.sigterm.uninstall()


# --- runs ---


def test_hooks_of_one_key_share_a_run_until_the_last_leaves(key):
    first = process.join(key, 1, FakeRun)
    assert process.join(key, 2, FakeRun) is first
    assert not process.leave(key, 1, keep_totals=True)
    assert process.leave(key, 2, keep_totals=True)
    assert not process.leave(key, 2, keep_totals=True)
    again = process.join(key, 3, FakeRun)
    assert again is not first
    assert again.state is first.state
    process.leave(key, 3, keep_totals=False)
    assert process.join(key, 4, FakeRun).state is not first.state


def test_totals_of_closed_runs_are_bounded(key):
    for number in range(1000):
        process.join((*key, number), number, FakeRun)
        process.leave((*key, number), number, keep_totals=True)
    assert len(process._closed) == 64


def test_a_run_is_made_once_though_many_threads_ask_for_it(key):
    runs = []
    start = threading.Barrier(16)

    def join(number):
        start.wait()
        runs.append(process.join(key, number, FakeRun))

    threads = [threading.Thread(target=join, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, runs))) == 1
    assert len(runs[0].hooks) == 16


def test_numbers_of_hooks_differ():
    assert len({process.next_number() for _ in range(100)}) == 100


# --- instruments ---


def test_instruments_are_made_once_per_provider():
    first = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    second = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    assert process.instruments(first, GUARD) is process.instruments(first, GUARD)
    assert process.instruments(first, GUARD) is not process.instruments(second, GUARD)


def test_a_provider_that_is_gone_takes_its_instruments_with_it():
    provider = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    instruments = weakref.ref(process.instruments(provider, GUARD))
    provider.shutdown()
    del provider
    gc.collect()
    assert instruments() is None


# --- pipelines ---


def test_a_run_has_one_pipeline_until_it_is_over(key):
    process.join(key, 1, FakeRun)
    made, is_new = process.share(key, lambda: FakePipeline([]))
    assert is_new
    assert process.share(key, lambda: FakePipeline([])) == (made, False)
    process.leave(key, 1, keep_totals=False)
    assert process.share(key, lambda: FakePipeline([]))[1]


def test_a_pipeline_that_cannot_be_made_is_not_remembered(key):
    def refuse():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        process.share(key, refuse)
    assert process.share(key, lambda: FakePipeline([]))[1]


# --- the end ---


def test_at_the_end_all_pipelines_begin_to_close_before_the_first_hook_waits(key):
    order = []
    process.share(key, lambda: FakePipeline(order))
    for name in ("a", "b"):
        process.close_at_end(FakeHook(order, name))
    process._close_all()
    assert order == [("begin", None), ("a", None), ("b", None)]
    process._close_all()
    assert order[3:] == [("begin", None)]


def test_a_hook_that_nobody_holds_is_closed_at_the_end(key):
    order = []
    process.close_at_end(FakeHook(order, "dropped"))
    gc.collect()
    process._close_all()
    assert order == [("dropped", None)]


def test_the_end_tells_the_exception_that_nobody_caught(monkeypatch):
    order, error = [], RuntimeError("boom")
    process.close_at_end(FakeHook(order, "a"))
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    process._close_all()
    assert order == [("a", error)]


def test_an_exception_at_a_prompt_ends_nothing(monkeypatch):
    order = []
    process.close_at_end(FakeHook(order, "a"))
    monkeypatch.setattr(sys, "last_value", RuntimeError("of a former cell"), raising=False)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    process._close_all()
    assert order == [("a", None)]


def test_sigterm_is_ours_as_long_as_something_is_open():
    former = signal.getsignal(signal.SIGTERM)
    hooks = [FakeHook([], name) for name in ("a", "b")]
    for hook in hooks:
        process.close_at_end(hook)
    assert signal.getsignal(signal.SIGTERM) != former
    hooks[0].close()
    assert signal.getsignal(signal.SIGTERM) != former
    hooks[1].close()
    assert signal.getsignal(signal.SIGTERM) == former


# --- children ---


def in_child(function):
    """Return what ``function`` says in a forked child."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = b"raised"
        try:
            said = repr(function()).encode()
        finally:
            os.write(writes, said)
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


@FORKS
def test_a_child_has_nothing_of_its_parent_s(key):
    order = []
    provider = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    ours = process.instruments(provider, GUARD)
    process.join(key, 1, FakeRun)
    process.share(key, lambda: FakePipeline(order))
    process.close_at_end(FakeHook(order, "a"))
    former = process.sigterm._former

    def look():
        process._close_all()
        return (
            [what for what, _ in order],
            len(process._live),
            process.instruments(provider, GUARD) is ours,
            signal.getsignal(signal.SIGTERM) == former,
        )

    assert in_child(look) == "(['abandoned'], 0, False, True)"
    assert order == []
    assert process.join(key, 2, FakeRun).hooks == {1, 2}


@FORKS
def test_a_child_can_start_though_a_thread_of_its_parent_s_held_the_lock(key):
    held, release = threading.Event(), threading.Event()

    def hold():
        with process._lock:
            held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        said = in_child(lambda: process.join(key, 1, FakeRun).hooks)
    finally:
        release.set()
        thread.join()
    assert said == "{1}"


@FORKS
def test_a_child_has_an_end_of_its_own(key):
    def end():
        order = []
        process.close_at_end(FakeHook(order, "child"))
        process._close_all()
        return order

    assert in_child(end) == "[('child', None)]"
