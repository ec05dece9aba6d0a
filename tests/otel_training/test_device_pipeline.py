"""Device metrics through ``start()``: on the page and over OpenTelemetry, from one and the same reading."""

import threading
import time
import urllib.request

import pytest
from opentelemetry.sdk.metrics.export import (
    InMemoryMetricReader,
    MetricExporter,
    MetricExportResult,
    PeriodicExportingMetricReader,
)

import otel_training

THREAD = "otel_training devices"


def sampler_threads():
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


def page_with(telemetry, text):
    """Return the page as soon as it has ``text``."""
    for _ in range(200):
        with urllib.request.urlopen(telemetry.url, timeout=10) as answer:
            page = answer.read().decode()
        if text in page:
            return page
        time.sleep(0.05)
    raise AssertionError(f"no {text} on the page:\n{page}")


def values_of(reader):
    return numbers(reader.get_metrics_data())


def numbers(data):
    return {
        metric.name: [point.value for point in metric.data.data_points]
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if hasattr(metric.data.data_points[0], "value")
    }


def test_both_ways_out_show_the_same_reading():
    reader = InMemoryMetricReader()
    with otel_training.start(
        prometheus_port=0, metric_readers=[reader], device_interval_s=3600.0
    ) as telemetry:
        page = page_with(telemetry, "system_cpu_utilization{")
        seen = values_of(reader)["process.memory.usage"]
    [line] = [line for line in page.splitlines() if line.startswith("process_memory_usage_bytes{")]
    assert [float(line.rpartition(" ")[2])] == pytest.approx(seen)
    assert 'training_device_read_duration_seconds{training_device_source="cpu"' in page


def test_the_host_is_on_the_page_of_its_first_rank_alone(monkeypatch):
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with otel_training.start(run_id="r", prometheus_port=0, device_interval_s=0.1) as telemetry:
        page = page_with(telemetry, "process_cpu_utilization{")
    assert "system_" not in page
    assert "container_" not in page


@pytest.mark.parametrize("variables", [{}, {"OTEL_SDK_DISABLED": "true"}])
def test_none_asked_for_is_no_thread(monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    before = len(sampler_threads())
    with otel_training.start(prometheus_port=0, devices="auto" if variables else ()):
        assert len(sampler_threads()) == before


def test_closing_ends_the_thread():
    before = set(sampler_threads())
    with otel_training.start(prometheus_port=0, device_interval_s=3600.0):
        [thread] = set(sampler_threads()) - before
    thread.join(10)
    assert not thread.is_alive()


class Exporter(MetricExporter):
    """Keeps what it is given."""

    def __init__(self):
        super().__init__()
        self.exported = []

    def export(self, metrics_data, timeout_millis=10_000, **kwargs):
        self.exported.append(numbers(metrics_data))
        return MetricExportResult.SUCCESS

    def shutdown(self, timeout_millis=30_000, **kwargs):
        pass

    def force_flush(self, timeout_millis=10_000):
        return True


def test_the_last_export_has_a_last_reading():
    """What a run shorter than the interval did to memory is not lost."""
    exporter = Exporter()
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)
    telemetry = otel_training.start(
        prometheus_port=0, metric_readers=[reader], device_interval_s=3600.0, shutdown_timeout_s=20.0
    )
    page = page_with(telemetry, "process_cpu_utilization{")  # both first readings are over
    [line] = [line for line in page.splitlines() if line.startswith("process_memory_usage_bytes{")]
    block = bytearray(b"x") * (64 << 20)
    telemetry.close()
    assert len(block) == 64 << 20
    last = exporter.exported[-1]["process.memory.usage"]
    assert last[0] > float(line.rpartition(" ")[2]) + (32 << 20)
