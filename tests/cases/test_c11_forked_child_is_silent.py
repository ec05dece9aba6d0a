"""apache/airflow#73147: a forked child exports a frozen copy of its parent's totals."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, socket, sys, time, warnings
import torch
from torch.utils.data import DataLoader, Dataset
from opentelemetry.sdk.metrics.export import (
    MetricExporter, MetricExportResult, PeriodicExportingMetricReader,
)
import otel_training
import otel_training.life_cycle, otel_training.providers  # or the reader would tick before it has a provider

warnings.filterwarnings("ignore", message=".*multi-threaded.*fork")
way, folder, endpoint = sys.argv[1:]
port = 0

class FileSink(MetricExporter):
    def export(self, data, timeout_millis=10_000, **kwargs):
        with open(os.path.join(folder, "sink"), "a") as file:
            for resource in data.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        if metric.name == "training.steps":
                            file.write(f"{os.getpid()} {metric.data.data_points[0].value}\\n")
        return MetricExportResult.SUCCESS
    def force_flush(self, timeout_millis=10_000): return True
    def shutdown(self, timeout_millis=30_000, **kwargs): pass

class Items(Dataset):
    def __len__(self): return 4
    def __getitem__(self, item):
        import threading
        time.sleep(0.5)
        threads = [t.name for t in threading.enumerate() if "otel_training" in t.name]
        sockets = []
        for descriptor in os.listdir("/proc/self/fd"):
            try:
                with socket.socket(fileno=os.dup(int(descriptor))) as found:
                    if found.getsockname()[1] == port:
                        sockets.append(descriptor)
            except (OSError, IndexError, TypeError):
                pass
        telemetry.hook.on_event("train_step", {"step": 1000 + item})
        return torch.tensor([len(threads), len(sockets), os.getpid()])

if way == "reader":
    sent = {"metric_readers": [PeriodicExportingMetricReader(FileSink(), export_interval_millis=300)]}
else:
    sent = {"otlp_endpoint": endpoint, "export_interval_s": 0.3}
telemetry = otel_training.start(prometheus_port=0, devices=(), **sent)
port = int(telemetry.url.split(":")[2].split("/")[0])
telemetry.hook.on_event("train_start", {"start_step": 0})
for step in range(1, 8):
    telemetry.hook.on_event("train_step", {"step": step})
begun_s = time.monotonic()
for seen in DataLoader(Items(), num_workers=1, batch_size=None, multiprocessing_context="fork"):
    assert seen[:2].tolist() == [0, 0], f"threads and sockets of ours in the child: {seen}"
    assert seen[2] != os.getpid()
    step += 1
    telemetry.hook.on_event("train_step", {"step": step})
assert time.monotonic() - begun_s < 10
telemetry.close()
print(os.getpid())
"""


@pytest.mark.parametrize("way", ["reader", "otlp", "grpc"])
def test_only_the_training_process_exports(way, tmp_path, otlp_sink, otlp_grpc_sink):
    endpoint = otlp_grpc_sink.address if way == "grpc" else otlp_sink.url
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py", way.replace("grpc", "otlp"), tmp_path, endpoint],
        capture_output=True, text=True, timeout=55, env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    main_pid = int(done.stdout)
    if way == "reader":
        lines = [line.split() for line in (tmp_path / "sink").read_text().splitlines()]
        sent = [(int(pid), int(value)) for pid, value in lines]
    else:
        sink = otlp_grpc_sink if way == "grpc" else otlp_sink
        sent = [(point.resource["process.pid"], point.value) for point in sink.points("training.steps")]
    values = [value for _, value in sent]
    assert {pid for pid, _ in sent} == {main_pid}
    assert values == sorted(values)
    assert values[-1] == 11
