"""Which step is slow, and what a window saw."""

import statistics

from hypothesis import given
from hypothesis import strategies as st

from otel_training.step_stats import SlowSteps, WindowFigures

DURATIONS = st.lists(st.floats(0.001, 1000.0), min_size=1, max_size=300)


def test_the_first_ten_steps_are_never_slow():
    slow = SlowSteps(3.0)
    assert not any(slow.is_slow(duration_s) for duration_s in (0.1,) * 9 + (100.0,))


def test_a_step_is_slow_above_the_factor_and_not_at_it():
    slow = SlowSteps(3.0)
    for _ in range(10):
        slow.is_slow(0.5)
    assert not slow.is_slow(1.5)
    assert slow.is_slow(1.5001)


def test_a_step_below_a_millisecond_is_never_slow():
    slow = SlowSteps(3.0)
    for _ in range(10):
        slow.is_slow(0.00002)
    assert not slow.is_slow(0.0009)
    assert slow.is_slow(0.0011)


@given(DURATIONS)
def test_steps_are_judged_by_the_median_of_the_last_hundred_and_one(durations_s):
    slow = SlowSteps(2.0)
    for number, duration_s in enumerate(durations_s):
        before = durations_s[max(0, number - 101) : number]
        expected = len(before) >= 10 and duration_s > 2.0 * statistics.median_high(before)
        assert slow.is_slow(duration_s) == expected


def test_an_interrupt_in_the_middle_of_a_step_does_not_spoil_those_after_it():
    slow = SlowSteps(3.0)
    for duration_s in range(1, 200):
        slow.is_slow(float(duration_s))
        if duration_s % 10 == 0:
            slow._by_size.pop()  # as if the interrupt had come before the duration was sorted in
    assert slow.is_slow(1e6)
    assert len(slow._by_size) <= 101


def test_a_lasting_change_of_pace_is_soon_no_news():
    slow = SlowSteps(3.0)
    for _ in range(101):
        slow.is_slow(1.0)
    judged = [slow.is_slow(10.0) for _ in range(101)]
    assert judged == [True] * 51 + [False] * 50


def test_figures_of_a_window():
    figures = WindowFigures()
    figures.add_step(4, 2.0, 1)
    figures.add_step(7, 1.0, 3)
    assert (figures.first_step, figures.last_step) == (4, 7)
    assert (figures.steps_count, figures.total_s) == (4, 5.0)
    assert (figures.shortest_s, figures.longest_s) == (1.0, 2.0)


def test_a_step_without_number_or_duration_costs_only_that_figure():
    figures = WindowFigures()
    figures.add_step(None, 2.0, 1)
    figures.add_step(3, None, 1)
    figures.add_step(3, 5.0, 0)
    assert (figures.first_step, figures.last_step, figures.steps_count, figures.longest_s) == (3, 3, 1, 2.0)
