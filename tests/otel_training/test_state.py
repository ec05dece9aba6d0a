"""Series of a run: what is written can be read, within bounds, by readers that see whole events."""

import math
import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_training import catalog
from otel_training.state import Histogram, State


@pytest.fixture
def state():
    return State()


def test_what_is_written_is_read(state):
    state.set(catalog.LOSS, 0.5)
    state.add(catalog.STEPS, 2)
    state.add(catalog.STEPS, 3)
    state.set(catalog.VALIDATION_LOSS, 1.5, "test")
    state.observe(catalog.STEP_DURATION, 0.25, 2)
    snapshot = state.snapshot()
    assert snapshot.values == {
        (catalog.LOSS, ()): 0.5,
        (catalog.STEPS, ()): 5,
        (catalog.VALIDATION_LOSS, ("test",)): 1.5,
    }
    assert sum(snapshot.histograms[catalog.STEP_DURATION, ()].counts) == 2
    assert state.values_of(catalog.STEPS) == {(): 5}
    assert (
        state.histograms_of(catalog.STEP_DURATION)[()].sums
        == snapshot.histograms[catalog.STEP_DURATION, ()].sums
    )
    assert state.get(catalog.VALIDATION_LOSS, "test") == 1.5


def test_a_snapshot_does_not_change_afterwards(state):
    state.add(catalog.STEPS, 1)
    state.observe(catalog.STEP_DURATION, 0.25)
    snapshot, of_steps = state.snapshot(), state.values_of(catalog.STEPS)
    of_durations = state.histograms_of(catalog.STEP_DURATION)
    state.add(catalog.STEPS, 1)
    state.observe(catalog.STEP_DURATION, 0.25)
    assert snapshot.values[catalog.STEPS, ()] == of_steps[()] == 1
    assert sum(snapshot.histograms[catalog.STEP_DURATION, ()].counts) == 1
    assert sum(of_durations[()].counts) == 1


def test_what_nobody_wrote_is_absent(state):
    assert state.get(catalog.LOSS) is None
    assert state.values_of(catalog.LOSS) == {}
    assert state.histograms_of(catalog.STEP_DURATION) == {}
    state.withdraw(catalog.LOSS)
    state.withdraw_all(catalog.RUN_INFO)
    assert state.snapshot().values == {}


def test_series_are_withdrawn_one_by_one_or_all_of_a_metric(state):
    for stage in ("validation", "test"):
        state.set(catalog.VALIDATION_LOSS, 1.0, stage)
    state.withdraw(catalog.VALIDATION_LOSS, "test")
    assert state.values_of(catalog.VALIDATION_LOSS) == {("validation",): 1.0}
    state.withdraw_all(catalog.VALIDATION_LOSS)
    assert state.values_of(catalog.VALIDATION_LOSS) == {}


def test_a_later_run_goes_on_from_counters_and_histograms_alone(state):
    state.set(catalog.LOSS, 1.0)
    state.set(catalog.RUN_ACTIVE, 1)
    state.add(catalog.STEPS, 3)
    state.observe(catalog.STEP_DURATION, 0.1)
    state.forget_current()
    assert state.snapshot().values == {(catalog.STEPS, ()): 3}
    assert len(state.snapshot().histograms) == 1


def test_bounds_belong_to_the_bucket_below_them():
    histogram = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, math.nextafter(1.0, 2.0), 2.0, 2.5):
        histogram.observe(value, 1)
    assert histogram.counts == [2, 2, 1]
    assert histogram.sums == pytest.approx([1.0, 3.0, 2.5])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_no_value(state, value):
    state.set(catalog.LOSS, 1.0)
    state.set(catalog.LOSS, value)
    assert state.get(catalog.LOSS) is None
    state.add(catalog.TOKENS, 1)
    state.add(catalog.TOKENS, value)
    assert state.get(catalog.TOKENS) == 1
    state.observe(catalog.STEP_DURATION, value)
    assert state.histograms_of(catalog.STEP_DURATION) == {}


def test_a_counter_that_outgrows_64_bits_goes_on_as_a_float(state):
    for _ in range(3):
        state.add(catalog.TOKENS, 2**62)
    assert state.get(catalog.TOKENS) == 3.0 * 2**62
    assert type(state.get(catalog.TOKENS)) is float


def test_a_counter_at_the_end_of_floats_stays_there(state):
    for _ in range(3):
        state.add(catalog.TIME, 1.7e308, "step")
    assert state.get(catalog.TIME, "step") == 1.7e308


def test_an_observation_beyond_all_measure_costs_itself_alone(state):
    state.observe(catalog.STEP_DURATION, 1e308)
    state.observe(catalog.STEP_DURATION, 1e308, 10)
    state.observe(catalog.STEP_DURATION, 0.5)
    histogram = state.histograms_of(catalog.STEP_DURATION)[()]
    assert sum(histogram.counts) == 2
    assert sum(histogram.sums) == 1e308


def test_values_of_a_closed_set_are_kept_and_others_become_other(state):
    state.add(catalog.RUNS, 1, "completed", None)
    state.add(catalog.RUNS, 1, "exploded", "ValueError")
    assert state.values_of(catalog.RUNS) == {("completed", None): 1, (catalog.OTHER, "ValueError"): 1}
    assert state.get(catalog.BRIDGE_DROPS, "cardinality") == 1


CAPS = {attribute for metric in catalog.METRICS for attribute in metric.attributes if not attribute.values}


@pytest.mark.parametrize(
    "attribute", sorted(CAPS, key=lambda a: a.name), ids=lambda attribute: attribute.name
)
def test_values_from_outside_are_capped_and_counted(state, attribute):
    metric = next(metric for metric in catalog.METRICS if attribute in metric.attributes)
    fixed = [each.values[0] if each.values else "same" for each in metric.attributes]
    position = metric.attributes.index(attribute)
    for count in range(attribute.cap + 30):
        fixed[position] = f"value{count}"
        state.set(metric, count, *fixed)
    found = {labels[position] for labels in state.values_of(metric)}
    assert len(found) == attribute.cap + 1
    assert catalog.OTHER in found
    # An attribute that comes after one that was capped is a new combination, which its own cap counts too.
    assert state.get(catalog.BRIDGE_DROPS, "cardinality") >= 30


def test_caps_are_those_of_the_design():
    caps = {
        catalog.FIELD: 200, catalog.SHAPE_FIELD: 100, catalog.EVENT_NAME: 50, catalog.HOOK_NAME: 20,
    }  # fmt: skip
    assert {attribute: attribute.cap for attribute in caps} == caps


@given(st.lists(st.tuples(st.text(), st.text()), max_size=60))
def test_any_text_makes_a_label_that_can_be_encoded(pairs):
    state = State()
    for event, field in pairs:
        state.set(catalog.CUSTOM, 1, event, field)
    for labels in state.values_of(catalog.CUSTOM):
        for label in labels:
            label.encode("utf-8")


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("set"), st.floats() | st.integers()),
            st.tuples(st.just("add"), st.floats(min_value=0) | st.integers(min_value=0)),
        ),
        max_size=30,
    )
)
def test_whatever_arithmetic_makes_fits_otlp(steps):
    state = State()
    for how, value in steps:
        getattr(state, how)(catalog.LOSS, value)
    value = state.get(catalog.LOSS)
    assert value is None or (isinstance(value, float) and math.isfinite(value)) or -(2**63) <= value < 2**63


@given(st.lists(st.floats(0, 1000), min_size=1))
def test_a_histogram_has_every_observation_once(values):
    state = State()
    for value in values:
        state.observe(catalog.STEP_DURATION, value)
    histogram = state.histograms_of(catalog.STEP_DURATION)[()]
    assert sum(histogram.counts) == state.observations == len(values)
    assert sum(histogram.sums) == pytest.approx(sum(values), rel=1e-9)


def test_readers_see_whole_events_while_a_writer_makes_series(state):
    done = threading.Event()

    def write():
        for count in range(3000):
            with state.lock:
                state.add(catalog.STEPS, 1)
                state.set(catalog.CUSTOM, count, "event", f"field{random.randrange(300)}")
                state.add(catalog.TOKENS, 10)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    torn = []
    while not done.is_set():
        values = state.snapshot().values
        steps, tokens = (values.get((metric, ()), 0) for metric in (catalog.STEPS, catalog.TOKENS))
        if tokens != 10 * steps:
            torn.append((steps, tokens))
    writer.join()
    assert torn == []
    assert state.get(catalog.STEPS) == 3000
