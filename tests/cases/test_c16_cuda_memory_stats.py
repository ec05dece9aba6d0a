"""C16 (pytorch/pytorch#117130): no statistics means no points and no error; with them, bytes by name."""

import json
import time
from pathlib import Path

import pytest
import torch
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import otel_training

RECORDED = json.loads((Path(__file__).resolve().parents[1] / "data" / "cuda_memory_stats.json").read_text())


@pytest.fixture
def run():
    """Run two steps and return the metrics by name, as soon as every source that has something was read."""
    started = []

    def go(devices, sources):
        reader = InMemoryMetricReader()
        telemetry = otel_training.start(
            prometheus=False, metric_readers=[reader], device_interval_s=0.1, devices=devices
        )
        started.append(telemetry)
        telemetry.hook.on_event("train_start", {"start_step": 0, "device": "cpu"})
        for step in (1, 2):
            telemetry.hook.on_event("train_step", {"step": step, "loss": 0.5})
        for _ in range(100):
            found = collect(reader)
            read = {attributes["training.device.source"] for attributes, _ in points(found, READ)}
            if read >= sources:
                return found
            time.sleep(0.05)
        raise AssertionError(f"{sources} were not read: {sorted(found)}")

    yield go
    for telemetry in started:
        telemetry.close()


READ = "training.device.read.duration"


def collect(reader):
    data = reader.get_metrics_data()
    return {
        metric.name: metric
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def points(found, name):
    data = found[name].data.data_points if name in found else ()
    return [(dict(point.attributes), point.value) for point in data]


def patch_cuda(monkeypatch, stats):
    for name, value in {"is_available": True, "device_count": 1, "current_device": 0}.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device=None: dict(stats))


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA may be in use here")
def test_a_machine_without_cuda_has_no_point_of_it_and_no_error(run, caplog):
    found = run(("cpu", "cuda"), {"cpu"})
    assert not [name for name in found if "cuda" in name]
    assert "system.memory.usage" in found
    assert caplog.records == []
    assert not torch.cuda.is_initialized()


def test_statistics_have_bytes_and_current_and_peak_apart(run, monkeypatch):
    patch_cuda(
        monkeypatch,
        {"allocated_bytes.all.current": 100, "allocated_bytes.all.peak": 900,
         "reserved_bytes.all.current": 1000, "num_ooms": 2},
    )  # fmt: skip
    found = run("auto", {"cpu", "cuda"})
    device = {"torch.device.index": "0"}
    assert points(found, "torch.cuda.memory.allocated") == [(device, 100)]
    assert points(found, "torch.cuda.memory.peak.allocated") == [(device, 900)]
    assert points(found, "torch.cuda.memory.reserved") == [(device, 1000)]
    assert points(found, "torch.cuda.allocator.ooms") == [(device, 2)]
    assert found["torch.cuda.memory.allocated"].unit == "By"
    assert found["torch.cuda.allocator.ooms"].data.is_monotonic


def test_one_key_is_one_point(run, monkeypatch, caplog):
    patch_cuda(monkeypatch, {"allocated_bytes.all.current": 100})
    found = run("all", {"cpu", "cuda"})
    assert [name for name in found if name.startswith("torch.cuda")] == ["torch.cuda.memory.allocated"]
    assert caplog.records == []


def test_the_whole_answer_has_the_documented_few_by_default(run, monkeypatch):
    patch_cuda(monkeypatch, RECORDED)
    names = {name for name in run("auto", {"cuda"}) if name.startswith("torch.cuda")}
    assert len(RECORDED) >= 120
    assert len(names) < 30
    assert "torch.cuda.memory.stat" not in names
