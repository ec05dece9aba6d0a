"""The chain of SIGTERM handlers: deliver first, then the former handler has the signal."""

import os
import signal
import threading

import pytest

from otel_training.termination import SigtermChain


class Told:
    """Records what the chain does, and is a user's handler of SIGTERM."""

    def __init__(self):
        self.order = []

    def finish(self):
        self.order.append("finish")

    def flush(self):
        self.order.append("flush")

    def handler(self, number, _frame):
        assert number == signal.SIGTERM
        self.order.append("handler")


@pytest.fixture
def told():
    """With a handler of the user's in place, because the default would end the test."""
    told = Told()
    former = signal.signal(signal.SIGTERM, told.handler)
    yield told
    signal.signal(signal.SIGTERM, former)


@pytest.fixture
def chain(told):
    return SigtermChain(told.finish, told.flush)


def term():
    os.kill(os.getpid(), signal.SIGTERM)


def test_before_a_user_s_handler_it_only_flushes_and_leaves(chain, told):
    chain.install()
    term()
    assert told.order == ["flush", "handler"]
    assert signal.getsignal(signal.SIGTERM) == told.handler
    term()
    assert told.order == ["flush", "handler", "handler"]


def test_it_can_join_again_after_a_signal(chain, told):
    chain.install()
    term()
    chain.install()
    chain.install()
    term()
    assert told.order == ["flush", "handler"] * 2


def test_uninstall_puts_the_former_handler_back(chain, told):
    chain.install()
    chain.uninstall()
    chain.uninstall()
    assert signal.getsignal(signal.SIGTERM) == told.handler


def test_a_handler_set_on_top_stays(chain, told):
    chain.install()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    chain.uninstall()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN


def test_a_handler_on_top_may_pass_the_signal_down(chain, told):
    chain.install()
    below = signal.getsignal(signal.SIGTERM)

    def on_top(number, frame):
        told.order.append("top")
        below(number, frame)

    signal.signal(signal.SIGTERM, on_top)
    term()
    assert told.order == ["top", "flush", "handler"]


def test_a_handler_on_top_decides_how_the_program_goes_on(chain, told):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    chain.install()
    below = signal.getsignal(signal.SIGTERM)

    def on_top(number, frame):
        below(number, frame)
        told.order.append("top")

    signal.signal(signal.SIGTERM, on_top)
    term()
    assert told.order == ["flush", "top"]
    assert signal.getsignal(signal.SIGTERM) == on_top


def test_where_sigterm_is_ignored_it_stays_so(chain):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    chain.install()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN


def test_other_threads_leave_signals_alone(chain, told):
    thread = threading.Thread(target=chain.install)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) == told.handler
    chain.install()
    thread = threading.Thread(target=chain.uninstall)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) != told.handler


def test_a_signal_waits_for_the_end_of_a_block_that_holds_it_off(chain, told):
    chain.install()
    with chain.held_off():
        with chain.held_off():
            term()
            told.order.append("inner")
        told.order.append("outer")
    assert told.order == ["inner", "outer", "flush", "handler"]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_signal_that_waits_is_not_lost_where_the_chain_is_left_meanwhile(chain):
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        chain.install()
        with chain.held_off():
            term()
            chain.uninstall()
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM


def test_an_exception_out_of_such_a_block_does_not_hold_signals_off_for_good(chain, told):
    chain.install()
    with pytest.raises(KeyboardInterrupt), chain.held_off():
        raise KeyboardInterrupt
    term()
    assert told.order == ["flush", "handler"]


def test_blocks_of_other_threads_hold_nothing_off(chain, told):
    chain.install()
    inside, leave = threading.Event(), threading.Event()

    def block():
        with chain.held_off():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=block)
    thread.start()
    inside.wait()
    term()
    assert told.order == ["flush", "handler"]
    leave.set()
    thread.join()


def test_a_second_signal_does_not_cut_the_first_delivery_off(told):
    def flush():
        told.order.append("begin")
        term()
        told.order.append("end")

    chain = SigtermChain(told.finish, flush)
    chain.install()
    term()
    assert told.order == ["begin", "end", "handler"]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_the_handler_that_it_would_have_without_us(chain, told):
    chain.install()
    with chain.held_off():
        pid = os.fork()
        if pid == 0:
            chain.abandon_in_child()
            ours_is_gone = signal.getsignal(signal.SIGTERM) == told.handler
            os._exit(0 if ours_is_gone and chain.depth == 0 else 1)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
