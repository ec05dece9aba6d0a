"""The figures of docs/scale.md that can be counted here are counted here, on real pages and real exports."""

import gzip
import json
import re
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

import otel_training
from otel_training import catalog
from otel_training.devices import cuda
from otel_training.devices.cuda import CudaSource

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"


@pytest.fixture(scope="module")
def stated():
    """The counted figures by name, as the table in the document has them."""
    text = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    table = text.partition("<!-- counted -->")[2].partition("<!-- end -->")[0]
    return {name: int(figure) for name, figure in re.findall(r"^\| (.+?) \| (\d+) \|", table, re.MULTILINE)}


def run_of_100_steps(emit):
    """A usual data-parallel rank: compiled, checkpoints, validation, an hour-like spread of times."""
    emit("compile", {"enabled": True, "duration_s": 0.5})
    totals = {"tokens": 0, "samples": 0, "micro_batches": 0}
    emit("train_start", {
        "start_step": 0, "target_step": 100, "precision": "bf16", "parameters": 1000, "device": "cuda:0",
        "accumulation_steps": 1, "world_size": 8, **totals,
    })  # fmt: skip
    for step in range(1, 101):
        emit("train_step", {
            "step": step, "loss": 2.0 / step, "lr": 1e-3, "grad_norm": 1.0, "data_wait_s": 1e-3 * step,
            "tokens": step * 64, "samples": step * 4, "micro_batches": step, "memory_bytes": 1,
        })  # fmt: skip
    emit("checkpoint", {"step": 100, "path": "c", "duration_s": 0.25, "size_bytes": 1234})
    emit("validation_start", {"step": 100, "stage": "validation"})
    emit("validation_end", {"step": 100, "stage": "validation", "loss": 1.5, "duration_s": 0.1})


def local_steps_and_uploads(emit):
    """What DiLoCo adds."""
    for step in (50, 100):
        emit("delta_upload_queued", {"step": step, "base_outer_step": 0})
        emit("delta_uploaded", {"step": step})
    emit("delta_upload_failed", {"step": 150, "error": "away"})
    emit("delta_upload_skipped", {"step": 150, "reason": "upload_in_flight"})
    emit("outer_step", {
        "outer_step": 1, "deltas_found": 4, "deltas_included": 3, "deltas_rejected": 1, "duration_s": 1.0,
    })  # fmt: skip


def page_of(*streams):
    telemetry = otel_training.start(prometheus_port=0, run_id="r1", run_name="gpt-small", devices=())
    for stream in streams:
        stream(telemetry.hook.on_event)
    with urllib.request.urlopen(telemetry.url, timeout=20.0) as answer:
        lines = answer.read().decode().splitlines()
    telemetry.close()
    return [line for line in lines if not line.startswith("#")]


def about(count):
    """Within the states of training.time, each of which shows as soon as it has had a moment."""
    return pytest.approx(count, abs=3)


def test_series_of_a_rank(stated):
    lines = page_of(run_of_100_steps)
    assert len(lines) == about(stated["training loop"])
    assert len([line for line in lines if "_bucket{" in line]) == stated["of these, buckets of histograms"]


def test_series_that_diloco_adds(stated):
    more = len(page_of(run_of_100_steps, local_steps_and_uploads)) - len(page_of(run_of_100_steps))
    assert more == about(stated["DiLoCo, more"])


def test_series_of_a_cuda_device(stated):
    statistics = json.loads((DATA / "cuda_memory_stats.json").read_text())
    library = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 1,
        memory_stats=lambda device=0: statistics,
        get_device_properties=lambda index: SimpleNamespace(total_memory=80 << 30),
    )
    usual = cuda.read(CudaSource(library, 0, all_stats=False), None)
    everything = cuda.read(CudaSource(library, 0, all_stats=True), None)
    read = {"training.device.read.duration", "training.device.read.failures"}
    assert read <= {metric.name for metric in catalog.METRICS}
    assert len(usual.samples) == stated["CUDA allocator"]
    assert len(everything.samples) - len(usual.samples) == stated['CUDA allocator with `devices="all"`, more']


def test_series_of_a_gpu_by_nvml(stated):
    metrics = [metric for metric in catalog.METRICS if metric.name.startswith("hw.")]
    # Three tasks of the GPU and two kinds of errors; all others are one series each.
    assert len(metrics) + 2 + 1 == stated["GPU by NVML"]


def test_size_of_an_export(stated, otlp_sink):
    telemetry = otel_training.start(otlp_endpoint=otlp_sink.url, prometheus=False, run_id="r1", devices=())
    run_of_100_steps(telemetry.hook.on_event)
    assert telemetry.flush(20.0)
    bodies = [body for path, _, body in otlp_sink.requests if path == "/v1/metrics"]
    points = len(otlp_sink.points())
    telemetry.close()
    assert points == about(stated["points of one export of a rank, training loop"])
    # Names and times make it vary a little.
    assert sum(map(len, bodies)) == pytest.approx(stated["bytes of it"], rel=0.1)
    assert sum(len(gzip.compress(body)) for body in bodies) == pytest.approx(
        stated["bytes of it, gzip"], rel=0.1
    )
