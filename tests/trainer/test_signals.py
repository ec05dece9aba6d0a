"""Stop signals: noted once, and the former handlers put back."""

import os
import signal
import threading

import pytest

from trainer.signals import StopSignals, parse_signal


@pytest.fixture
def usr1_handler():
    calls = []

    def handler(number, frame):
        calls.append(number)

    former = signal.signal(signal.SIGUSR1, handler)
    yield handler, calls
    signal.signal(signal.SIGUSR1, former)


def test_the_first_signal_is_noted_and_the_second_takes_its_usual_effect(usr1_handler):
    handler, calls = usr1_handler
    with StopSignals([signal.SIGUSR1]) as stop:
        assert stop.received is None
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stop.received is signal.SIGUSR1
        assert calls == []
        assert signal.getsignal(signal.SIGUSR1) is handler
        os.kill(os.getpid(), signal.SIGUSR1)
        assert calls == [signal.SIGUSR1]


def test_handlers_are_put_back_on_the_way_out(usr1_handler):
    handler, _ = usr1_handler
    with pytest.raises(RuntimeError), StopSignals([signal.SIGUSR1]):
        raise RuntimeError
    assert signal.getsignal(signal.SIGUSR1) is handler


def test_in_another_thread_nothing_is_installed(usr1_handler):
    handler, _ = usr1_handler
    seen = []

    def enter():
        with StopSignals([signal.SIGUSR1]):
            seen.append(signal.getsignal(signal.SIGUSR1))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [handler]


@pytest.mark.parametrize("name", ["SIGUSR1", "USR1"])
def test_names_of_signals(name):
    assert parse_signal(name) is signal.SIGUSR1


@pytest.mark.parametrize("name", ["SIGNOPE", "SIGKILL", "STOP", ""])
def test_unknown_and_unstoppable_signals_are_refused(name):
    with pytest.raises(ValueError, match="unknown stop signal"):
        parse_signal(name)
