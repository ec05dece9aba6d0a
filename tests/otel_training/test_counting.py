"""Steps and totals count right whatever the cadence, after resumes, rewinds and resets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_training.counting import StepCount, Total


def advances(count, *steps):
    return [count.advance(step) for step in steps]


@pytest.mark.parametrize(
    ("start", "steps", "expected"),
    [
        pytest.param((0, None), [1, 2, 3], [(1, 0)] * 3, id="every step"),
        pytest.param((0, None), [5, 10, 12], [(5, 0), (5, 0), (2, 0)], id="every fifth step"),
        pytest.param((3, None), [4, 5], [(1, 0)] * 2, id="resumed"),
        pytest.param((3, 5), [4, 5, 6], [(1, 1), (1, 1), (1, 0)], id="resumed before the last step reached"),
        pytest.param((0, 7), [5, 10], [(5, 5), (5, 2)], id="replays within a cadence"),
        pytest.param((3, 1), [4], [(1, 0)], id="last step reached is behind the start"),
        pytest.param((0, None), [1, 1, 1], [(1, 0), (0, 0), (0, 0)], id="told twice"),
        pytest.param((0, None), [4, 5, 3, 4, 6], [(4, 0), (1, 0), (1, 1), (1, 1), (2, 1)], id="rewound"),
        pytest.param(None, [7, 8], [(1, 0), (1, 0)], id="no start was told"),
        pytest.param(None, [100, 110], [(1, 0), (10, 0)], id="no start was told, every tenth"),
    ],
)
def test_steps_are_counted_by_their_differences(start, steps, expected):
    count = StepCount()
    if start is not None:
        count.begin(*start)
    assert advances(count, *steps) == expected


def test_a_resume_in_the_same_process_knows_its_replays():
    count = StepCount()
    count.begin(0, None)
    advances(count, 1, 2, 3, 4, 5)
    count.begin(3, None)
    assert advances(count, 4, 5, 6) == [(1, 1), (1, 1), (1, 0)]


def test_a_run_from_scratch_in_the_same_process_replays_nothing():
    count = StepCount()
    count.begin(0, None)
    advances(count, 1, 2, 3)
    count.begin(0, None)
    assert advances(count, 1, 2) == [(1, 0), (1, 0)]


@given(st.lists(st.integers(-10, 50), max_size=40), st.integers(0, 20))
def test_no_sequence_of_steps_takes_anything_away(steps, start):
    count = StepCount()
    count.begin(start, None)
    for step in steps:
        applied, replayed = count.advance(step)
        assert 0 <= replayed <= max(applied, 0)


def growth(total, *readings):
    return [total.advance(value, steps) for value, steps in readings]


@pytest.mark.parametrize(
    ("base", "readings", "expected"),
    [
        pytest.param(0, [(8, 1), (16, 1), (24, 1)], [8, 8, 8], id="running total from the start"),
        pytest.param(100, [(108, 1), (124, 2)], [8, 16], id="restored total"),
        pytest.param(None, [(1008, 1), (1016, 1)], [0, 8], id="base not known"),
        pytest.param(0, [(8, 1), (16, 1), (16, 0), (24, 1)], [8, 8, 0, 8], id="told twice"),
        pytest.param(0, [(8, 1), (8, 0), (16, 1)], [8, 0, 8], id="first told twice"),
        pytest.param(0, [(8, 1), (16, 1), (4, 1), (12, 1)], [8, 8, 0, 8], id="reset goes on from a new base"),
        pytest.param(0, [(0, 1), (0, 1)], [0, 0], id="a trainer that does not count"),
        pytest.param(0, [(-5, 1), (3, 1)], [0, 3], id="below nothing"),
    ],
)
def test_running_totals_add_their_growth(base, readings, expected):
    total = Total()
    total.begin(base)
    assert growth(total, *readings) == expected
    assert total.counted == sum(expected)


@pytest.mark.parametrize(
    ("base", "readings", "applied"),
    [
        pytest.param(0, [(2, 1)] * 12, 12, id="from the start"),
        pytest.param(0, [(2, 5)] * 3, 15, id="every fifth step"),
        pytest.param(None, [(2, 1)] * 4, 4, id="resumed"),
        pytest.param(None, [(2, 5)] * 2, 10, id="resumed, every fifth step"),
    ],
)
def test_counts_of_single_steps_are_told_from_running_totals(base, readings, applied):
    total = Total()
    total.begin(base)
    assert sum(growth(total, *readings)) == total.counted == 2 * applied


def test_nothing_was_counted_before_the_first_reading():
    assert Total().counted is None


def test_a_new_run_begins_anew_and_the_count_goes_on():
    total = Total()
    total.begin(0)
    growth(total, (2, 1), (2, 1))  # a count of single steps
    total.begin(0)
    assert growth(total, (10, 1), (20, 1)) == [10, 10]
    assert total.counted == 24


@given(
    st.lists(st.tuples(st.integers(-5, 10**6), st.integers(0, 100)), max_size=50), st.none() | st.integers(0)
)
def test_no_sequence_of_readings_takes_anything_away(readings, base):
    total = Total()
    total.begin(base)
    assert all(increment >= 0 for increment in growth(total, *readings))
