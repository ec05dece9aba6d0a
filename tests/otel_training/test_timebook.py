"""Every second is in one state, goodput follows, and rates are those of the last minute."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_training import catalog
from otel_training.state import State
from otel_training.timebook import WINDOW_S, RateWindow, TimeBook


@pytest.fixture
def state():
    return State()


@pytest.fixture
def book(state):
    return TimeBook(state, now_s=100.0)


def times(state):
    return {labels[0]: value for labels, value in state.values_of(catalog.TIME).items()}


def goodput(state):
    return state.get(catalog.GOODPUT_UTILIZATION)


def test_what_no_duration_claims_is_the_rest(state, book):
    book.assign(110.0, "idle", ("data_wait", 2.0), ("step", 5.0))
    assert times(state) == {"data_wait": 2.0, "step": 5.0, "idle": 3.0}


def test_durations_are_clamped_to_the_time_there_was(state, book):
    book.assign(101.0, "idle", ("data_wait", 0.75), ("step", 5.0), ("compile", 1.0))
    assert times(state) == {"data_wait": 0.75, "step": 0.25}


@pytest.mark.parametrize("claimed_s", [None, 0.0, -3.0])
def test_a_duration_that_is_none_claims_nothing(state, book, claimed_s):
    book.assign(101.0, "step", ("data_wait", claimed_s))
    assert times(state) == {"step": 1.0}


def test_a_clock_that_stands_still_or_goes_back_changes_nothing(state, book):
    book.assign(100.0, "step")
    book.assign(90.0, "step")
    assert times(state) == {}
    book.assign(101.0, "step")
    assert times(state) == {"step": 1.0}


STATES = st.sampled_from(catalog.TIME_STATE.values)


@given(
    st.lists(
        st.tuples(
            st.floats(0, 1e4),
            STATES,
            st.lists(st.tuples(STATES, st.none() | st.floats(-10, 1e5)), max_size=3),
        ),
        max_size=30,
    )
)
def test_the_states_add_up_to_the_wall_time(intervals):
    state, now_s = State(), 0.0
    book = TimeBook(state, now_s)
    for interval_s, rest, claims in intervals:
        now_s += interval_s
        book.assign(now_s, rest, *claims)
    assert sum(times(state).values()) == pytest.approx(now_s, rel=1e-9, abs=1e-9)
    assert goodput(state) is None or 0.0 <= goodput(state) <= 1.0


def test_time_outside_steps_is_taken_once(book):
    book.assign(110.0, "idle", ("validation", 3.0), ("step", 2.0))
    book.assign(115.0, "checkpoint_save")
    assert book.take_outside_steps() == 8.0
    assert book.take_outside_steps() == 0.0


def test_goodput_is_step_time_by_all_time(state, book):
    book.assign(101.0, "startup")
    book.begin(None, None)
    book.assign(104.0, "step")
    assert goodput(state) == 0.75


def test_start_up_counts_though_the_trainer_knows_its_past(state, book):
    book.assign(101.0, "startup")
    book.begin(0.0, 0.0)
    book.assign(104.0, "step")
    assert goodput(state) == 0.75


def test_earlier_attempts_count_with_what_they_kept(state, book):
    book.begin(100.0, 60.0)
    book.assign(110.0, "step")
    assert goodput(state) == pytest.approx(70 / 110)


def test_an_attempt_after_another_in_one_process_is_not_counted_twice(state, book):
    book.begin(0.0, 0.0)
    book.assign(110.0, "step")
    book.keep()
    book.begin(10.0, 10.0)
    book.assign(120.0, "step")
    assert goodput(state) == 1.0


def test_what_was_not_checkpointed_is_lost_with_a_failure(state, book):
    book.assign(104.0, "step")
    book.keep()
    book.assign(108.0, "step")
    assert goodput(state) == 1.0
    book.lose()
    assert goodput(state) == 0.5


def test_what_was_not_checkpointed_is_lost_with_a_new_attempt(state, book):
    book.assign(104.0, "step")
    book.begin(None, None)
    book.assign(108.0, "step")
    assert goodput(state) == 0.5


# ------------------------------------------------------------------------------------------------- rates


def test_the_first_rate_has_the_time_of_its_growth():
    window = RateWindow()
    window.restart(-1.0, (0,))
    assert [window.rates(float(now_s), (100 * (now_s + 1),)) for now_s in range(3)] == [(100.0,)] * 3


def test_what_arrives_at_the_anchors_instant_is_before_the_window():
    window = RateWindow()
    window.restart(0.0, (0,))
    assert window.rates(0.0, (100,)) is None
    assert window.rates(1.0, (200,)) == (100.0,)


def test_without_a_start_the_first_reading_is_the_anchor():
    window = RateWindow()
    assert window.rates(5.0, (1000,)) is None
    assert window.rates(6.0, (1100,)) == (100.0,)


def test_two_readings_at_one_instant_are_no_division_by_zero():
    window = RateWindow()
    window.restart(0.0, (0,))
    window.rates(1.0, (100,))
    assert window.rates(1.0, (200,)) == (200.0,)


def test_a_clock_that_goes_back_begins_anew():
    window = RateWindow()
    window.restart(10.0, (0,))
    assert window.rates(5.0, (50,)) is None
    assert window.rates(6.0, (60,)) == (10.0,)


def test_rates_are_those_of_the_last_minute():
    window = RateWindow()
    window.restart(0.0, (0,))
    for second in range(1, 601):
        window.rates(float(second), (second,))
    for second in range(601, 661):
        rates = window.rates(float(second), (600 + 11 * (second - 600),))
    assert rates == pytest.approx((11.0,))


def test_a_stall_shows_at_its_end():
    window = RateWindow()
    window.restart(0.0, (0,))
    for second in range(1, 61):
        window.rates(float(second), (second,))
    assert window.rates(3660.0, (61,))[0] == pytest.approx(1 / 3600, rel=0.01)


def test_memory_is_bounded_however_fast_the_steps():
    window = RateWindow()
    window.restart(0.0, (0,))
    for millisecond in range(1, 200_000):
        window.rates(millisecond / 1000, (millisecond,))
    assert len(window._points) <= 2 * WINDOW_S + 2
