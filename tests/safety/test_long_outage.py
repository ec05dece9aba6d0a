"""An hour without a collector: memory stays bounded, the log short, and afterwards everything arrives."""

import gc
import socket
import time
import tracemalloc

import pytest

import otel_training
from otel_training import catalog, providers
from otel_training.guard import REPEAT_AFTER_S, Guard, Notices
from otel_training.identity import Identity
from otel_training.settings import resolve

EXPORTS = 60  # an hour's, at the default interval
DROPS = catalog.prometheus_name(catalog.BRIDGE_DROPS)
LONG_S = 20.0


@pytest.fixture
def away():
    """A port that refuses connections: bound, so that nobody else gets it, and not listened on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
@pytest.mark.parametrize("scheme", ["http://", ""], ids=["http", "grpc"])
def test_memory_is_bounded_over_an_hour_s_worth_of_exports(
    away, monkeypatch, page_values, scheme, temporality, caplog
):
    """Each export has a window span that cannot leave, and delta metrics that no later export repeats."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "100")  # ms: the rest of a minute would be a pause
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "16")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", temporality)
    monkeypatch.setattr("otel_training.delivery.MAX_UNSENT_DELTAS", 16)
    telemetry = otel_training.start(
        otlp_endpoint=scheme + away, export_interval_s=3600.0, prometheus_port=0, devices=(),
        shutdown_timeout_s=0.5, step_span_ratio=1.0,
    )  # fmt: skip
    emit = telemetry.hook.on_event
    emit("train_start", {"start_step": 0})

    def exports(count, first_step):
        for step in range(first_step, first_step + count):
            emit("train_step", {"step": step, "loss": 1.0})
            emit("checkpoint", {"step": step, "path": f"step-{step}", "duration_s": 0.0})
            assert not telemetry.flush(LONG_S)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        exports(20, 1)  # the queues are full by now
        before_bytes = exports(5, 21)
        growth_bytes = exports(EXPORTS, 26) - before_bytes
    finally:
        tracemalloc.stop()
    assert growth_bytes < 64 * 1024

    dropped = page_values(telemetry, DROPS)
    assert dropped[("queue",)] >= EXPORTS  # spans that found no room
    assert dropped[("export",)] >= EXPORTS - 16  # exports of metrics
    telemetry.close()
    assert len([line for line in caplog.messages if "export of" in line]) == 2


class Hour:
    """A clock that a test moves."""

    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_an_outage_is_one_line_then_one_in_five_minutes_and_one_at_its_end(request, caplog, protocol):
    sink = request.getfixturevalue("otlp_grpc_sink" if protocol == "grpc" else "otlp_sink")
    endpoint = sink.address if protocol == "grpc" else sink.url
    sink.stop()
    hour = Hour()
    settings = resolve(
        {"otlp_endpoint": endpoint, "otlp_protocol": protocol, "export_interval_s": 3600.0},
        {"OTEL_EXPORTER_OTLP_TIMEOUT": "200"},
    )
    about = providers.resource(settings, Identity(run_id="r", run_name="r"))
    guard = Guard(Notices(hour))
    metrics = providers.Metrics(settings, about, (), guard, lambda count, reason: None)
    metrics.provider.get_meter("test").create_counter("c").add(5)
    [loop] = metrics.loops
    loop.start()

    def export():
        return loop.wait(loop.ask(), time.monotonic() + LONG_S)

    told = []
    for minute in range(61):
        hour.now_s = minute * 60.0
        assert not export()
        if len(caplog.records) > len(told):
            told.append(minute)
    assert told == list(range(0, 61, int(REPEAT_AFTER_S // 60)))
    assert [("more since" in line) for line in caplog.messages] == [False] + [True] * 12
    caplog.clear()
    sink.start()
    deadline_s = time.monotonic() + LONG_S
    while not export():  # gRPC waits a moment before it connects again
        assert time.monotonic() < deadline_s
    assert export()
    [line] = caplog.messages
    assert line.endswith("delivered again")
    assert [point.value for point in sink.points("c")][-1] == 5
    loop.stop()
    assert loop.join(time.monotonic() + LONG_S)
