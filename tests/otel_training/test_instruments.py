"""The catalog on real SDK providers: kinds, values, histograms, readers, temporality, views, faults."""

import math
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics import (
    Counter,
    Histogram,
    MeterProvider,
    ObservableCounter,
    ObservableGauge,
    ObservableUpDownCounter,
)
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.sdk.metrics.view import DropAggregation, View

from otel_training import catalog
from otel_training.guard import Guard, Notices
from otel_training.instruments import Instruments
from otel_training.prometheus import RunCollector
from otel_training.state import State

DELTA = {
    Counter: AggregationTemporality.DELTA,
    ObservableCounter: AggregationTemporality.DELTA,
    Histogram: AggregationTemporality.DELTA,
    ObservableUpDownCounter: AggregationTemporality.CUMULATIVE,
    ObservableGauge: AggregationTemporality.CUMULATIVE,
}


class Run:
    """A run as instruments see it."""

    def __init__(self, **attributes):
        self.state = State()
        self.point_attributes = attributes


class Bench:
    """Instruments on a provider with readers."""

    def __init__(self, *readers, views=()):
        self.readers = readers or (InMemoryMetricReader(),)
        self.provider = MeterProvider(self.readers, views=views, shutdown_on_exit=False)
        self.instruments = Instruments(self.provider, Guard(Notices()))
        self.run = Run()
        self.state = self.run.state
        self.instruments.attach(self.run)

    def metrics(self, reader=0):
        data = self.readers[reader].get_metrics_data()
        scopes = [
            scope for resource in (data.resource_metrics if data else ()) for scope in resource.scope_metrics
        ]
        assert all(scope.scope.name == catalog.SCOPE for scope in scopes)
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    def points(self, name, reader=0):
        metric = self.metrics(reader).get(name)
        return list(metric.data.data_points) if metric else []

    def numbers(self, reader=0):
        """Each metric's value or count in one collection."""
        return {
            name: point.value if hasattr(point, "value") else point.count
            for name, metric in self.metrics(reader).items()
            for point in metric.data.data_points
        }

    def value(self, name, reader=0):
        (point,) = self.points(name, reader)
        return point.value


@pytest.fixture
def bench():
    bench = Bench()
    yield bench
    bench.provider.shutdown()


def fill(state):
    """Give every metric of the catalog a series."""
    for position, metric in enumerate(catalog.METRICS, start=1):
        labels = [attribute.values[0] if attribute.values else "v" for attribute in metric.attributes]
        if metric.kind == "histogram":
            state.observe(metric, float(position), 2, *labels)
        else:
            state.set(metric, position, *labels)


def test_every_metric_of_the_catalog_has_its_kind_unit_meaning_and_value(bench):
    fill(bench.state)
    found = bench.metrics()
    assert set(found) == {metric.name for metric in catalog.METRICS}
    for position, metric in enumerate(catalog.METRICS, start=1):
        data = found[metric.name].data
        assert (found[metric.name].unit, found[metric.name].description) == (metric.unit, metric.brief)
        (point,) = data.data_points
        assert set(point.attributes) == {attribute.name for attribute in metric.attributes}
        if metric.kind == "histogram":
            assert tuple(point.explicit_bounds) == metric.bounds
            assert (point.count, point.sum) == (2, pytest.approx(2 * position))
            continue
        assert point.value == position
        assert isinstance(data, sdk.Gauge if metric.kind == "gauge" else sdk.Sum)
        if metric.kind != "gauge":
            assert data.is_monotonic == (metric.kind == "counter")
            assert data.aggregation_temporality == AggregationTemporality.CUMULATIVE


def test_everything_can_be_encoded(bench):
    fill(bench.state)
    encoded = encode_metrics(bench.readers[0].get_metrics_data())
    assert len(encoded.resource_metrics[0].scope_metrics[0].metrics) == len(catalog.METRICS)


def test_values_stay_over_any_number_of_collections(bench):
    bench.state.set(catalog.LOSS, 0.5)
    bench.state.observe(catalog.STEP_DURATION, 0.1)
    for _ in range(3):
        assert bench.value("training.loss") == 0.5
        assert bench.points("training.step.duration")[0].count == 1


def test_an_attribute_that_is_absent_is_not_on_the_point(bench):
    bench.state.add(catalog.RUNS, 1, "completed", None)
    (point,) = bench.points("training.runs")
    assert dict(point.attributes) == {"training.run.outcome": "completed"}


def test_a_withdrawn_series_is_gone_at_the_next_collection(bench):
    bench.state.set(catalog.LOSS, 0.5)
    assert bench.value("training.loss") == 0.5
    bench.state.withdraw(catalog.LOSS)
    assert bench.points("training.loss") == []


def histogram_of_the_page(state, metric):
    families = {family.name: family for family in RunCollector(state, ("r", "r", "0")).collect()}
    samples = families[catalog.prometheus_name(metric)].samples
    cumulative = [sample.value for sample in samples if sample.name.endswith("_bucket")]
    counts = [after - before for before, after in zip([0, *cumulative], cumulative, strict=False)]
    (total,) = (sample.value for sample in samples if sample.name.endswith("_sum"))
    return counts, total


OBSERVATIONS = st.lists(
    st.tuples(
        st.one_of(st.floats(0, 5000), st.sampled_from(catalog.STEP_BOUNDS_S), st.floats(0, 1e300)),
        st.integers(1, 20),
    ),
    max_size=40,
)


@settings(max_examples=40, deadline=None)
@given(st.lists(OBSERVATIONS, min_size=1, max_size=4))
def test_histograms_are_those_of_the_page_bucket_by_bucket(batches):
    bench = Bench()
    for batch in batches:
        for value, times in batch:
            bench.state.observe(catalog.STEP_DURATION, value, times)
        bench.metrics()
    points = bench.points("training.step.duration")
    if any(batches):
        counts, total = histogram_of_the_page(bench.state, catalog.STEP_DURATION)
        (point,) = points
        assert list(point.bucket_counts) == counts
        assert point.sum == pytest.approx(total, rel=1e-9)
    else:
        assert points == []
    bench.provider.shutdown()


@pytest.mark.parametrize("bound", catalog.STEP_BOUNDS_S)
def test_a_value_at_a_bound_or_next_to_it_stays_in_its_bucket(bench, bound):
    for value in (bound, math.nextafter(bound, 0), math.nextafter(bound, math.inf)):
        bench.state.observe(catalog.STEP_DURATION, value, 3)
    (point,) = bench.points("training.step.duration")
    assert list(point.bucket_counts) == histogram_of_the_page(bench.state, catalog.STEP_DURATION)[0]


def test_several_readers_see_the_same():
    bench = Bench(
        InMemoryMetricReader(), InMemoryMetricReader(preferred_temporality=DELTA), InMemoryMetricReader()
    )
    for round_ in range(1, 4):
        bench.state.add(catalog.STEPS, 2)
        bench.state.set(catalog.LOSS, 1.0 / round_)
        bench.state.observe(catalog.STEP_DURATION, 0.1, 2)
        for reader, steps in ((0, 2 * round_), (1, 2), (2, 2 * round_)):
            found = bench.numbers(reader)
            assert found["training.steps"] == found["training.step.duration"] == steps
            assert found["training.loss"] == 1.0 / round_
    bench.provider.shutdown()


def test_delta_readers_have_what_is_new_and_never_less_than_nothing():
    bench = Bench(InMemoryMetricReader(preferred_temporality=DELTA))
    bench.state.add(catalog.STEPS, 5)
    bench.state.observe(catalog.STEP_DURATION, 0.1, 5)
    assert bench.numbers() == {"training.steps": 5, "training.step.duration": 5}
    assert bench.numbers() == {"training.steps": 0}
    bench.instruments.detach(bench.run)
    assert bench.numbers() == {}
    bench.state.add(catalog.STEPS, 2)
    bench.instruments.attach(bench.run)  # a later run of the identity goes on with the same state
    assert bench.numbers() == {"training.steps": 2}
    bench.provider.shutdown()


def test_views_drop_and_rename():
    bench = Bench(
        InMemoryMetricReader(),
        views=[
            View(instrument_name="training.run.info", aggregation=DropAggregation()),
            View(instrument_name="training.step.duration", aggregation=DropAggregation()),
            View(instrument_name="training.loss", name="my.loss"),
            View(instrument_name="training.validation.loss", attribute_keys=set()),
        ],
    )
    fill(bench.state)
    found = bench.metrics()
    gone = {"training.run.info", "training.step.duration", "training.loss"}
    assert set(found) == {metric.name for metric in catalog.METRICS} - gone | {"my.loss"}
    (point,) = found["training.validation.loss"].data.data_points
    assert dict(point.attributes) == {}
    (point,) = found["training.data.wait.duration"].data.data_points
    assert point.count == 2
    bench.provider.shutdown()


def test_runs_are_told_apart_by_their_attributes(bench):
    other = Run(**{"training.run.id": "other"})
    bench.instruments.attach(other)
    bench.instruments.attach(other)
    for state, steps in ((bench.state, 1), (other.state, 2)):
        state.add(catalog.STEPS, steps)
        state.observe(catalog.STEP_DURATION, 0.1, steps)
    for name, numbers in (("training.steps", "value"), ("training.step.duration", "count")):
        found = {
            point.attributes.get("training.run.id"): getattr(point, numbers) for point in bench.points(name)
        }
        assert found == {None: 1, "other": 2}


def test_what_a_run_observed_last_is_fed_when_it_is_detached(bench):
    bench.state.observe(catalog.STEP_DURATION, 0.1)
    bench.instruments.detach(bench.run)
    assert bench.points("training.step.duration")[0].count == 1


class ClosedByASignal(State):
    """Is detached while it is being fed, as by a signal that comes in the middle of a collection."""

    def __init__(self, detach):
        super().__init__()
        self._detach = detach

    def histograms_of(self, metric):
        histograms = super().histograms_of(metric)
        self._detach()
        return histograms


def test_a_run_may_be_detached_in_the_middle_of_a_collection(bench):
    bench.run.state = ClosedByASignal(lambda: bench.instruments.detach(bench.run))
    bench.run.state.observe(catalog.STEP_DURATION, 0.1)
    assert bench.points("training.step.duration")[0].count == 1


class BrokenState(State):
    """Cannot read one metric."""

    def values_of(self, metric):
        if metric is catalog.LOSS:
            raise RuntimeError("broken")
        return super().values_of(metric)


def test_a_fault_in_a_callback_costs_one_metric_and_one_line(bench, caplog):
    whole = Run()
    bench.run.state = BrokenState()
    bench.instruments.attach(whole)
    fill(bench.run.state)
    fill(whole.state)
    for _ in range(3):
        found = bench.metrics()
    assert set(found) == {metric.name for metric in catalog.METRICS}
    assert found["training.loss"].data.data_points[0].value == whole.state.get(catalog.LOSS)
    (record,) = caplog.records
    assert "training.loss failed" in record.getMessage()


class BrokenHistogram:
    def __init__(self):
        self.calls = 0

    def record(self, *_):
        self.calls += 1
        raise RuntimeError("broken")


def test_an_instrument_that_raises_costs_itself_alone(bench, caplog):
    bench.instruments._recordings[catalog.STEP_DURATION] = broken = BrokenHistogram()
    fill(bench.state)
    found = bench.metrics()
    assert set(found) == {metric.name for metric in catalog.METRICS} - {"training.step.duration"}
    assert broken.calls == 1
    assert [record.getMessage() for record in caplog.records] == [
        "training.step.duration failed, training goes on: RuntimeError: broken"
    ]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_nothing_to_tell(bench):
    fill(bench.state)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        count = len(bench.instruments._observe(catalog.LOSS, None))
        os.write(writing, str(count).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        assert answer.read() == "0"
    assert bench.value("training.loss") == bench.state.get(catalog.LOSS)
