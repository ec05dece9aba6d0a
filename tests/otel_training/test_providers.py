"""Providers of a pipeline of our own: who speaks, what users attach, whose random numbers are used."""

import dataclasses
import logging
import math
import os
import random
import socket
import threading
import time

import pytest
from opentelemetry.sdk.metrics.export import (
    InMemoryMetricReader,
    MetricExporter,
    MetricExportResult,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_training.guard import Guard, Notices
from otel_training.identity import Identity
from otel_training.providers import Metrics, PrivateIds, Traces, resource
from otel_training.settings import resolve

IDENTITY = Identity(run_id="r1", run_name="name", rank=3, local_rank=1, world_size=8, host="node-7")
LONG_S = 30.0


@pytest.fixture
def refused_port():
    """A port that nobody listens on: it is bound, so that nobody else gets it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture
def make():
    """Make metrics or traces; their threads end with the test."""
    loops = []

    def make(kind, users=(), environ=None, **arguments):
        settings = resolve(arguments, {"OTEL_EXPORTER_OTLP_TIMEOUT": "500", **(environ or {})})
        made = kind(settings, resource(settings, IDENTITY), users, Guard(Notices()), lambda *_: None)
        for loop in made.loops:
            loop.start()
        loops.extend(made.loops)
        return made

    yield make
    for loop in loops:
        loop.stop()
    deadline_s = time.monotonic() + 1.0
    for loop in loops:
        loop.join(deadline_s)


def end(made):
    for loop in made.loops:
        loop.stop()
    return [loop.join(time.monotonic() + LONG_S) for loop in made.loops]


def lines(caplog):
    return [record.getMessage() for record in caplog.records]


# --- who speaks ---


def test_resource_is_the_identity():
    about = dict(resource(resolve({}, {}), IDENTITY).attributes)
    expected = {
        "service.name": "otel-training",
        "service.instance.id": IDENTITY.instance_id,
        "host.name": "node-7",
        "process.pid": os.getpid(),
        "training.run.id": "r1",
        "training.run.name": "name",
        "training.rank": 3,
        "training.local_rank": 1,
        "training.world_size": 8,
    }
    assert about.items() >= expected.items()


def test_a_user_adds_to_the_resource_and_may_name_the_host_but_not_the_run():
    attributes = {"team": "vision", "host.name": "mine", "training.run.id": "other"}
    about = dict(resource(resolve({"attributes": attributes}, {}), IDENTITY).attributes)
    assert (about["team"], about["host.name"], about["training.run.id"]) == ("vision", "mine", "r1")


# --- what users attach ---


class CountingExporter(MetricExporter):
    exports = 0

    def export(self, metrics_data, timeout_millis=10_000, **kwargs):
        self.exports += 1
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis=10_000):
        return True

    def shutdown(self, timeout_millis=30_000, **kwargs):
        pass


class UserReader(InMemoryMetricReader):
    """Records what happens to it, and may misbehave."""

    def __init__(self, error=None, hang=None):
        super().__init__()
        self.calls = []
        self._error = error
        self._hang = hang

    def _note(self, call):
        self.calls.append((call, threading.current_thread() is threading.main_thread()))
        if self._hang is not None:
            self._hang.wait()
        if self._error is not None:
            raise self._error

    def force_flush(self, timeout_millis=10_000):
        self._note("flush")
        return super().force_flush(timeout_millis)

    def shutdown(self, timeout_millis=30_000, **kwargs):
        self._note("shutdown")


def test_a_user_s_reader_is_flushed_and_shut_down_off_the_caller_s_thread(make):
    reader = UserReader()
    metrics = make(Metrics, [reader])
    [loop] = metrics.loops
    assert loop.wait(loop.ask(), time.monotonic() + LONG_S)
    assert end(metrics) == [True]
    assert reader.calls == [("flush", False), ("flush", False), ("shutdown", False)]


def test_a_user_s_reader_that_raises_or_hangs_keeps_nobody_else_waiting(make, caplog):
    released = threading.Event()
    bad, stuck, good = UserReader(RuntimeError("no")), UserReader(hang=released), UserReader()
    metrics = make(Metrics, [bad, stuck, good])
    for loop in metrics.loops:
        loop.stop()
    first, second, third = metrics.loops
    assert not first.join(time.monotonic() + LONG_S)
    assert third.join(time.monotonic() + LONG_S)
    assert not second.join(time.monotonic() + 0.01)
    assert good.calls[-1] == ("shutdown", False)
    assert lines(caplog) == [
        "export of UserReader failed, training goes on: RuntimeError: no",
        "shutdown of UserReader failed, training goes on: RuntimeError: no",
    ]
    released.set()


def test_a_user_s_reader_without_a_thread_gets_a_last_collection(make):
    exporter = CountingExporter()
    metrics = make(Metrics, [PeriodicExportingMetricReader(exporter, math.inf)])
    metrics.provider.get_meter("test").create_counter("c").add(5)
    end(metrics)
    assert exporter.exports >= 1


class Raises(SpanProcessor):
    def on_start(self, span, parent_context=None):
        raise RuntimeError("start")

    def on_end(self, span):
        raise RuntimeError("end")

    def force_flush(self, timeout_millis=30_000):
        return None


def test_a_user_s_processor_that_raises_costs_no_span_of_others(make):
    exporter = InMemorySpanExporter()
    traces = make(Traces, [Raises(), SimpleSpanProcessor(exporter)])
    traces.provider.get_tracer("test").start_span("a").end()
    assert [span.name for span in exporter.get_finished_spans()] == ["a"]
    assert end(traces) == [True, True]


def test_without_exporters_and_users_there_is_no_thread(make):
    assert make(Metrics).loops == []
    assert make(Traces).loops == []


def test_a_reader_without_interval_starts_no_thread_of_the_sdk(make, refused_port):
    make(Metrics, otlp_endpoint=f"http://127.0.0.1:{refused_port}", export_interval_s=1000.0)
    names = {thread.name for thread in threading.enumerate()}
    assert "otel_training metrics" in names
    assert not any(name.startswith("Otel") for name in names)


def test_in_a_forked_child_a_user_s_reader_finds_nothing(make):
    reader = InMemoryMetricReader()
    metrics = make(Metrics, [reader])
    metrics.provider.get_meter("test").create_counter("c").add(5)
    assert reader.get_metrics_data() is not None
    metrics.abandon_in_child()
    assert reader.get_metrics_data() is None


# --- what is told of failures ---


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_a_failure_names_the_destination_and_no_secret(make, refused_port, caplog, scheme):
    headers = {"authorization": "Bearer t0psecret"}
    endpoint = f"{scheme}127.0.0.1:{refused_port}"
    metrics = make(Metrics, otlp_endpoint=endpoint, otlp_headers=headers, export_interval_s=1000.0)
    metrics.provider.get_meter("test").create_counter("c").add(5)
    metrics.loops[-1].ask()
    deadline_s = time.monotonic() + LONG_S
    while not caplog.records and time.monotonic() < deadline_s:
        time.sleep(0.01)
    [line] = lines(caplog)
    assert line.startswith(f"export of metrics to {endpoint}")
    assert "training goes on" in line
    assert "t0psecret" not in line


def test_a_query_in_an_endpoint_is_shown_nowhere(make, refused_port, caplog):
    url = f"http://127.0.0.1:{refused_port}/in?token=t0psecret"
    traces = make(Traces, environ={"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": url})
    traces.provider.get_tracer("test").start_span("a").end()
    traces.wake()
    deadline_s = time.monotonic() + LONG_S
    while not caplog.records and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert f"export of spans to http://127.0.0.1:{refused_port}/in?***" in caplog.text
    assert "t0psecret" not in caplog.text


# --- random numbers ---


def test_ids_are_valid_and_differ():
    ids = PrivateIds()
    traces = {ids.generate_trace_id() for _ in range(100)}
    spans = {ids.generate_span_id() for _ in range(100)}
    assert len(traces) == len(spans) == 100
    assert all(0 < value < 2**128 for value in traces)
    assert all(0 < value < 2**64 for value in spans)


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_the_random_numbers_of_the_training_are_not_used_even_by_retries(make, refused_port, scheme, caplog):
    random.seed(7)
    before = random.getstate()
    endpoint = f"{scheme}127.0.0.1:{refused_port}"
    traces = make(Traces, otlp_endpoint=endpoint)
    metrics = make(Metrics, otlp_endpoint=endpoint, export_interval_s=0.1)
    metrics.provider.get_meter("test").create_counter("c").add(5)
    for _ in range(20):
        traces.provider.get_tracer("test").start_span("a").end()
    traces.wake()
    deadline_s = time.monotonic() + LONG_S
    while len(caplog.records) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert random.getstate() == before


def test_no_listener_stays_on_the_sdk_s_loggers(make):
    def filters():
        loggers = map(logging.getLogger, list(logging.root.manager.loggerDict))
        return {logger.name: len(logger.filters) for logger in loggers if logger.filters}

    make(Metrics, environ={"OTEL_METRICS_EXPORTER": "console"})  # imports what there is to import
    before = filters()
    metrics = make(Metrics, environ={"OTEL_METRICS_EXPORTER": "console"})
    assert filters() != before
    end(metrics)
    assert filters() == before


def test_settings_may_be_those_of_another_pipeline_without_its_exporters(make):
    settings = resolve({}, {"OTEL_METRICS_EXPORTER": "console"})
    alone = dataclasses.replace(settings, metrics_exporters=(), metrics_otlp=None)
    metrics = Metrics(alone, resource(alone, IDENTITY), [], Guard(Notices()), lambda *_: None)
    assert metrics.loops == []
