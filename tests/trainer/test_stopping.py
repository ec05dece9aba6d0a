"""When training ends."""

import signal
from types import SimpleNamespace

import pytest

from trainer.ranks import Ranks
from trainer.stopping import StopCondition


class OtherRank(Ranks):
    """Ranks of which the other one says the code given."""

    def highest(self, value):
        return max(value, OTHER[0])


OTHER = [0]


@pytest.fixture
def make():
    OTHER[0] = 0

    def make(received=None, elapsed_s=0.0, max_time_s=None):
        signals = SimpleNamespace(received=received)
        return StopCondition(10, max_time_s, signals, OtherRank(0, 2), lambda: elapsed_s)

    return make


def test_the_target_ends_training_without_asking_anybody(make):
    OTHER[0] = None  # comparing with it would raise
    assert make().agree(10) == "target"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, None),
        ({"received": signal.SIGTERM}, "signal"),
        ({"elapsed_s": 5.0, "max_time_s": 5.0}, "time"),
        ({"elapsed_s": 4.9, "max_time_s": 5.0}, None),
        ({"elapsed_s": 9.0, "max_time_s": 5.0, "received": signal.SIGINT}, "signal"),
    ],
)
def test_own_reasons(make, arguments, reason):
    condition = make(**arguments)
    assert condition.agree(3) == reason
    assert condition.is_near(3) == (reason is not None)
    assert condition.signal == (arguments.get("received") if reason == "signal" else None)


def test_another_ranks_signal_is_this_ones_too(make):
    OTHER[0] = 1000 + signal.SIGUSR1
    condition = make(received=signal.SIGINT)
    assert condition.agree(3) == "signal"
    assert condition.signal == signal.SIGUSR1


def test_another_ranks_time_is_up(make):
    OTHER[0] = 1
    assert make().agree(3) == "time"
