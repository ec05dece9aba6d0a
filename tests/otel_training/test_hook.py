"""``OTelHook`` on given and on global providers, one after another, and with nothing but the API."""

import gc
import json
import subprocess
import sys
import textwrap

import pytest
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NoOpTracerProvider

from otel_training import OTelHook
from otel_training.testing import TelemetryCapture

COUNT_POINTS = """
import json
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from otel_training import OTelHook

reader, spans = InMemoryMetricReader(), InMemorySpanExporter()

def set_providers():
    metrics.set_meter_provider(MeterProvider([reader]))
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)

def points():
    data = reader.get_metrics_data()
    found = {}
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    value = point.value if hasattr(point, "value") else point.count
                    found.setdefault(metric.name, []).append(value)
    return found

def tell():
    print(json.dumps({"points": points(), "spans": [span.name for span in spans.get_finished_spans()]}))
"""


def in_a_process(program):
    """Run a program in an interpreter of its own, because a global provider can be set only once."""
    source = COUNT_POINTS + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source], capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_given_providers_have_everything(capture):
    capture.hook.on_event("train_start", {"start_step": 0})
    capture.hook.on_event("train_step", {"step": 1, "loss": 2.0})
    capture.hook.on_event("train_end", {"outcome": "completed"})
    assert capture.value("training.loss") == 2.0
    assert "training.run" in {span.name for span in capture.spans()}


def test_points_carry_the_three_attributes_of_the_identity_and_the_users_own(clock):
    capture = TelemetryCapture(run_id="run-7", run_name="a run", attributes={"team": "blue"}, clock=clock)
    capture.hook.on_event("train_start", {"start_step": 0})
    capture.hook.on_event("train_step", {"step": 1, "loss": 2.0})
    clock.advance(1.0)
    capture.hook.on_event("train_step", {"step": 2, "loss": 2.0})
    points = list(capture.points().values())
    for point in points:
        assert {
            "training.run.id": "run-7", "training.run.name": "a run", "training.rank": 0, "team": "blue",
        }.items() <= dict(point.attributes).items()  # fmt: skip
    assert len(points) > 10
    capture.close()


@pytest.mark.parametrize(
    "attributes",
    [{"a": None}, {"a": b"x"}, {"a": float("nan")}, {"a": 2**70}, {"": "x"}, {1: "x"}, {"a": {}}, "a=b,c"],
    ids=repr,
)
def test_attributes_that_cannot_be_carried_are_refused(attributes):
    with pytest.raises(ValueError, match="attributes"):
        OTelHook(meter_provider=NoOpMeterProvider(), attributes=attributes)


def test_a_wrong_rank_is_refused_at_the_start(monkeypatch):
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ValueError, match="RANK='first'"):
        OTelHook(meter_provider=NoOpMeterProvider())


def test_global_providers_are_used_and_not_replaced():
    (told,) = in_a_process("""
        set_providers()
        before = metrics.get_meter_provider(), trace.get_tracer_provider()
        hook = OTelHook()
        hook.on_event("train_start", {"start_step": 0})
        hook.on_event("train_step", {"step": 1, "loss": 2.0})
        tell()
        hook.close()
        assert before == (metrics.get_meter_provider(), trace.get_tracer_provider())
    """)
    assert told["points"]["training.loss"] == [2.0]
    assert told["points"]["training.steps"] == [1]


def test_a_provider_that_is_set_later_has_what_came_before():
    first, second = in_a_process("""
        hook = OTelHook(run_id="run-1")
        hook.on_event("train_start", {"start_step": 0})
        for step in (1, 2):
            hook.on_event("train_step", {"step": step, "loss": 2.0})
        set_providers()
        hook.on_event("train_step", {"step": 3, "loss": 1.0})
        tell()
        again = OTelHook(run_id="run-1")  # finds the provider, which is the same one
        again.on_event("train_step", {"step": 4, "loss": 0.5})
        tell()
        again.close()
        hook.close()
    """)
    assert first["points"]["training.steps"] == [3]
    assert first["points"]["training.loss"] == [1.0]
    assert first["points"]["training.step.duration"] == [3]
    assert second["points"]["training.steps"] == [4]


def test_a_hook_on_the_global_provider_and_one_on_the_same_given():
    (told,) = in_a_process("""
        set_providers()
        given = metrics.get_meter_provider()
        hooks = [OTelHook(run_id="run-1"), OTelHook(run_id="run-1", meter_provider=given)]
        for hook in hooks:
            hook.on_event("train_step", {"step": 1, "loss": 2.0})
        tell()
        for hook in hooks:
            hook.close()
    """)
    assert told["points"]["training.steps"] == [1]
    assert told["points"]["training.loss"] == [2.0]


def test_without_an_sdk_provider_nothing_happens():
    told = in_a_process("""
        hook = OTelHook()
        hook.on_event("train_start", {"start_step": 0})
        hook.on_event("train_step", {"step": 1, "loss": 2.0})
        assert hook.flush() is True
        hook.close()
    """)
    assert told == []


def test_providers_of_the_api_alone_are_accepted():
    hook = OTelHook(meter_provider=NoOpMeterProvider(), tracer_provider=NoOpTracerProvider())
    hook.on_event("train_start", {"start_step": 0})
    hook.on_event("train_step", {"step": 1, "loss": 2.0})
    assert hook.flush() is True
    hook.close()


# ------------------------------------------------------------------------------------ one after another


class Readable:
    """A meter provider with a reader, and hooks on it."""

    def __init__(self, clock):
        self.reader = InMemoryMetricReader()
        self.meter_provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.tracer_provider = TracerProvider(shutdown_on_exit=False)
        self._clock = clock

    def hook(self, run_id="run-1"):
        return OTelHook(
            meter_provider=self.meter_provider,
            tracer_provider=self.tracer_provider,
            run_id=run_id,
            clock=self._clock,
        )

    def values(self, name):
        data = self.reader.get_metrics_data()
        return {
            point.attributes["training.run.id"]: getattr(point, "value", None) or point.count
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        }


@pytest.fixture
def readable(clock):
    readable = Readable(clock)
    yield readable
    readable.meter_provider.shutdown()
    readable.tracer_provider.shutdown()


def train(hook, clock, steps=3):
    hook.on_event("train_start", {"start_step": 0, "tokens": 0})
    for step in range(1, steps + 1):
        clock.advance(0.1)
        hook.on_event("train_step", {"step": step, "tokens": 10 * step, "loss": 1.0})
    hook.on_event("train_end", {"outcome": "completed"})


def test_counters_of_one_identity_go_on_and_never_fall(readable, clock):
    seen = []
    for _ in range(3):
        hook = readable.hook()
        train(hook, clock)
        seen.append(
            [
                readable.values(name).get("run-1")
                for name in ("training.steps", "training.tokens", "training.runs")
            ]
        )
        assert readable.values("training.step.duration") == {"run-1": seen[-1][0]}
        hook.close()
    assert seen == [[3, 30, 1], [6, 60, 2], [9, 90, 3]]


def test_gauges_of_the_run_before_are_not_those_of_the_next(readable, clock):
    hook = readable.hook()
    train(hook, clock)
    hook.close()
    hook = readable.hook()
    assert readable.values("training.loss") == {}
    assert readable.values("training.steps") == {"run-1": 3}
    hook.close()


def test_a_closed_run_is_seen_no_more(readable, clock):
    hook = readable.hook()
    train(hook, clock)
    hook.close()
    assert readable.values("training.steps") == {}
    assert readable.values("training.run.active") == {}


def test_closing_collects_once_before_it_withdraws(clock):
    from opentelemetry.sdk.metrics.export import (
        MetricExporter,
        MetricExportResult,
        PeriodicExportingMetricReader,
    )

    class Recording(MetricExporter):
        def __init__(self):
            super().__init__()
            self.steps = []

        def export(self, metrics_data, timeout_millis=10_000, **_):
            for resource in metrics_data.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        if metric.name == "training.steps":
                            self.steps += [point.value for point in metric.data.data_points]
            return MetricExportResult.SUCCESS

        def force_flush(self, timeout_millis=10_000):
            return True

        def shutdown(self, timeout_millis=30_000, **_):
            pass

    exporter = Recording()
    provider = MeterProvider(
        [PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)], shutdown_on_exit=False
    )
    hook = OTelHook(meter_provider=provider, tracer_provider=NoOpTracerProvider(), clock=clock)
    train(hook, clock)
    hook.close()
    assert exporter.steps == [3]
    provider.shutdown()


def test_runs_side_by_side_are_series_of_their_own(readable, clock):
    hooks = [readable.hook(run_id) for run_id in ("a", "b")]
    train(hooks[0], clock, steps=2)
    train(hooks[1], clock, steps=5)
    assert readable.values("training.steps") == {"a": 2, "b": 5}
    hooks[0].close()
    assert readable.values("training.steps") == {"b": 5}
    hooks[1].close()


def test_instruments_are_made_once_for_a_provider(readable, clock, caplog):
    for _ in range(3):
        readable.hook().close()
    assert caplog.records == []  # the SDK would warn of an instrument made twice
    first, second = readable.hook("a"), readable.hook("b")
    train(first, clock)
    train(second, clock)
    assert readable.values("training.steps") == {"a": 3, "b": 3}
    first.close()
    second.close()
    assert caplog.records == []


def test_a_provider_that_nobody_holds_is_let_go(clock):
    import weakref

    readable = Readable(clock)
    hook = readable.hook()
    train(hook, clock)
    hook.close()
    readable.meter_provider.shutdown()
    readable.tracer_provider.shutdown()
    alive = weakref.ref(readable.meter_provider)
    del readable, hook
    gc.collect()
    assert alive() is None


def test_a_hook_has_the_logs_interface(capture):
    assert OTelHook.every_steps == 1
    assert capture.hook.location is None
    capture.hook.close()
    capture.hook.close()
