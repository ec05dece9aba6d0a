"""The stopwatch's states are disjoint and add up."""

import pytest

from trainer.stopwatch import STATES, Stopwatch


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


def test_every_second_goes_to_exactly_one_state():
    clock = Clock()
    watch = Stopwatch("startup", clock)
    clock.now_s += 1
    watch.switch("step")
    clock.now_s += 2
    with watch.during("data_wait") as lap:
        clock.now_s += 4
    clock.now_s += 8
    totals = watch.totals_s()
    assert lap.duration_s == 4
    assert totals == {**dict.fromkeys(STATES, 0.0), "startup": 1, "step": 10, "data_wait": 4}
    assert sum(totals.values()) == watch.elapsed_s() == 15


def test_a_raising_block_is_left_with_its_time_booked():
    clock = Clock()
    watch = Stopwatch("step", clock)

    def fail():
        clock.now_s += 3
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"), watch.during("validation") as lap:
        fail()
    clock.now_s += 1
    assert lap.duration_s == 3
    assert watch.totals_s()["validation"] == 3
    assert watch.totals_s()["step"] == 1
