"""Metrics and spans of a full run over OTLP, through a real receiver, to a sink that reads every byte."""

import time
import urllib.request
from collections import defaultdict

import pytest
from prometheus_client.parser import text_string_to_metric_families

import otel_training
from otel_training import catalog

CUMULATIVE, DELTA = 2, 1
KINDS = {"gauge": "gauge", "counter": "sum", "updown": "sum", "histogram": "histogram"}
SECONDS = 1e9


def full_run(emit, steps=40):
    """All kinds of events, without pauses."""
    emit("compile", {"enabled": True, "duration_s": 0.5})
    start = {"start_step": 0, "target_step": steps, "precision": "bf16", "parameters": 1000, "tokens": 0}
    emit("train_start", {**start, "samples": 0, "micro_batches": 0, "world_size": 1})
    for step in range(1, steps + 1):
        emit("train_step", {
            "step": step, "loss": float("nan") if step == 7 else 2.0 / step, "lr": 1e-3, "grad_norm": 1.0,
            "tokens": step * 64, "samples": step * 4, "micro_batches": step, "data_wait_s": step * 1e-3,
        })  # fmt: skip
    emit("checkpoint", {"step": steps, "path": "c", "duration_s": 0.25, "size_bytes": 1234})
    emit("validation_end", {"step": steps, "stage": "validation", "loss": 1.5, "duration_s": 0.1})
    emit("delta_upload_queued", {"step": steps, "base_outer_step": 0})
    emit("delta_uploaded", {"step": steps})
    emit("train_end", {"steps": steps, "elapsed_s": 1.0, "outcome": "completed"})


def read_page(telemetry):
    with urllib.request.urlopen(telemetry.url, timeout=20) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return [sample for family in families for sample in family.samples]


def of_page(samples, name, **labels):
    return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_full_run_through_a_real_receiver(rotel, otlp_sink, protocol):
    endpoint = rotel.grpc_endpoint if protocol == "grpc" else rotel.http_url
    telemetry = otel_training.start(
        otlp_endpoint=endpoint, otlp_protocol=protocol, prometheus_port=0, run_id="r1", run_name="first",
        attributes={"team": "vision"}, step_span_ratio=0.25, devices=(),
    )  # fmt: skip
    full_run(telemetry.hook.on_event)
    page = read_page(telemetry)
    telemetry.close()
    otlp_sink.wait_for(lambda sink: sink.spans("training.run") and sink.points("training.steps"))
    time.sleep(0.3)
    check_metrics(otlp_sink.points(), page)
    check_spans(otlp_sink)


def check_metrics(points, page):
    about = {
        "service.name": "otel-training", "training.run.id": "r1", "training.run.name": "first",
        "training.rank": 0, "team": "vision",
    }  # fmt: skip
    declared = {metric.name: metric for metric in catalog.METRICS}
    last = {}
    for point in points:
        assert point.resource.items() >= about.items()
        assert "training.run.id" not in point.attributes
        metric = declared[point.name]
        assert (point.kind, point.unit) == (KINDS[metric.kind], metric.unit), point.name
        assert set(point.attributes) <= {attribute.name for attribute in metric.attributes}
        if point.kind == "sum":
            assert point.monotonic == (metric.kind == "counter"), point.name
        if point.kind != "gauge":
            assert point.temporality == CUMULATIVE
        last[point.name, frozenset(point.attributes.items())] = point

    compared = 0
    for (name, attributes), point in last.items():
        metric = declared[name]
        labels = {key.replace(".", "_"): str(value) for key, value in attributes}
        series = catalog.prometheus_name(metric)
        if metric.kind == "histogram":
            assert point.raw.count == of_page(page, series + "_count", **labels) > 0
            assert point.raw.sum == pytest.approx(of_page(page, series + "_sum", **labels), rel=1e-9)
            assert tuple(point.raw.explicit_bounds) == metric.bounds
            check_buckets(point.raw, page, series)
            compared += 1
        elif metric.kind == "counter" and labels:
            continue
        elif metric.kind == "counter":
            assert point.value == pytest.approx(of_page(page, series)), name
            compared += 1
    assert compared >= 10
    values = {name: point.value for (name, _), point in last.items()}
    assert (values["training.steps"], values["training.tokens"], values["training.loss"]) == (40, 2560, 0.05)
    assert values["training.run.active"] == 0


def check_buckets(raw, page, series):
    """The page's buckets are cumulative, OTLP's are not."""
    of_bound = {float(s.labels["le"]): s.value for s in page if s.name == series + "_bucket"}
    total = 0
    for bound, count in zip([*raw.explicit_bounds, float("inf")], raw.bucket_counts, strict=True):
        total += count
        assert of_bound[bound] == total


def check_spans(sink):
    spans = defaultdict(list)
    for span in sink.spans():
        spans[span.name].append(span)
        assert span.resource["training.run.id"] == span.attributes["training.run.id"] == "r1"
        assert span.raw.start_time_unix_nano <= span.raw.end_time_unix_nano
    [run], [start], [window] = spans["training.run"], spans["training.run.start"], spans["training.window"]
    assert run.parent_id == window.parent_id == b""
    assert window.links == [(run.trace_id, run.span_id)]
    assert window.trace_id != run.trace_id
    assert window.is_error
    assert window.attributes["training.nonfinite.count"] == 1
    assert not run.is_error
    in_run = (
        "training.run.start", "training.compile", "training.checkpoint.save", "training.validation",
        "training.delta.upload",
    )  # fmt: skip
    for name in in_run:
        [span] = spans[name]
        assert (span.trace_id, span.parent_id) == (run.trace_id, run.span_id), name
    [save] = spans["training.checkpoint.save"]
    assert save.raw.end_time_unix_nano - save.raw.start_time_unix_nano == pytest.approx(
        0.25 * SECONDS, rel=1e-6
    )
    assert start.raw.start_time_unix_nano == start.raw.end_time_unix_nano
    assert len(spans["training.step"]) >= 10
    assert {step.parent_id for step in spans["training.step"]} == {window.span_id}
    assert set(spans) <= {span.name for span in catalog.spans.SPANS}


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_delta_temporality_adds_up(rotel, otlp_sink, monkeypatch, protocol):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
    endpoint = rotel.grpc_endpoint if protocol == "grpc" else rotel.http_url
    telemetry = otel_training.start(
        otlp_endpoint=endpoint, otlp_protocol=protocol, prometheus=False, devices=(), export_interval_s=1000.0
    )
    for step in range(1, 31):
        telemetry.hook.on_event("train_step", {"step": step, "data_wait_s": 0.01})
        if step % 10 == 0:
            assert telemetry.flush()
    telemetry.close()
    counted = otlp_sink.wait_for(lambda sink: total(sink, "training.data.wait.duration") == 30)
    assert counted
    assert total(otlp_sink, "training.bridge.events") == 30
    sums = otlp_sink.points("training.bridge.events")
    assert {point.temporality for point in sums} == {DELTA}
    active = otlp_sink.points("training.time")
    assert {point.temporality for point in active} == {DELTA}


def total(sink, name):
    """The sum of all deltas; one that was sent twice is known by its start."""
    points = {
        (p.raw.start_time_unix_nano, frozenset(p.attributes.items())): p.value for p in sink.points(name)
    }
    return sum(points.values())


@pytest.mark.timeout(120)
@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_receiver_killed_and_restarted_in_the_middle_loses_nothing(
    rotel, otlp_sink, monkeypatch, protocol, temporality, caplog
):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", temporality)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1500")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
    endpoint = rotel.grpc_endpoint if protocol == "grpc" else rotel.http_url
    telemetry = otel_training.start(
        otlp_endpoint=endpoint, otlp_protocol=protocol, prometheus=False, devices=(), export_interval_s=0.2,
        step_span_ratio=1.0,
    )  # fmt: skip
    emit = telemetry.hook.on_event
    emit("train_start", {"start_step": 0})
    step = 0

    def train(seconds):
        nonlocal step
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            step += 1
            emit("train_step", {"step": step, "data_wait_s": 0.01})
            time.sleep(0.02)

    train(1.0)
    # Everything on its way must be out of the receiver: what it has taken and not handed on dies with it.
    assert telemetry.flush(20.0)
    before = step
    otlp_sink.wait_for(lambda sink: len(sink.spans("training.step")) == before)
    rotel.kill()
    train(3.0)
    rotel.start()
    train(0.5)
    deadline_s = time.monotonic() + 30.0
    while not telemetry.flush(20.0):
        assert time.monotonic() < deadline_s
    emit("train_end", {"steps": step})
    telemetry.close()

    otlp_sink.wait_for(lambda sink: sink.spans("training.run"))
    otlp_sink.wait_for(
        lambda sink: len({s.attributes["training.step.number"] for s in sink.spans("training.step")}) == step
    )
    if temporality == "delta":
        otlp_sink.wait_for(lambda sink: total(sink, "training.data.wait.duration") == step)
        otlp_sink.wait_for(lambda sink: total(sink, "training.steps") == step)
    else:
        otlp_sink.wait_for(lambda sink: sink.points("training.steps")[-1].value == step)
        otlp_sink.wait_for(lambda sink: sink.points("training.data.wait.duration")[-1].raw.count == step)
    otlp_sink.wait_for(lambda sink: sink.points("training.run.active")[-1].value == 0)
    assert len(caplog.records) <= 4, caplog.text  # down and up again, for metrics and for spans
