"""A long run through everything: log, JSON lines with rotation, hook, scrape page, OTLP, device metrics.

    python tests/safety/endurance.py [--steps 1000000]

It trains nothing: steps follow each other as fast as they are taken in, which is what a run of months would
bring. All the while the page is scraped and a collector in another process is sent everything. At the end it
tells how much memory the process holds compared to that after 20,000 steps, what a step costs then and now,
and every counter that is not what it should be; exit status 1 when one of these is wrong.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import torch  # noqa: F401 - every training holds it, and the log asks it for memory
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

import otel_training
from otel_training import catalog
from trainer.metrics import MetricLogger

SETTLED_STEPS = 20_000
SETTLED_SCRAPES = 80
MOST_GROWTH = 0.02
MOST_BLOCKS = 20_000  # spans that wait for their export come and go; one object a step would be a million
MOST_SLOWER = 1.5  # other work on the same cores costs as much
BATCH_STEPS = 1000
ROTATE_STEPS = 50_000
CHECKPOINT_STEPS, SKIP_STEPS, VALIDATION_STEPS, NONFINITE_STEPS = 1000, 997, 5000, 10_007
OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}

COUNTERS = (
    catalog.STEPS, catalog.SAMPLES, catalog.TOKENS, catalog.MICRO_BATCHES, catalog.CHECKPOINTS,
    catalog.STEP_SKIPS, catalog.NONFINITE_VALUES, catalog.STEP_DURATION, catalog.DATA_WAIT_DURATION,
    catalog.CHECKPOINT_DURATION,
)  # fmt: skip
"""What is compared in the end; histograms by their count."""


# ------------------------------------------------------------------------------------------- the collector


def collect() -> None:
    """Be a collector: say the port, and at the end of standard input the last value of each series."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    last: dict[str, dict[str, float]] = {}
    requests: Counter[str] = Counter()

    def take(body: bytes) -> None:
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in getattr(metric, metric.WhichOneof("data")).data_points:
                        value = getattr(point, "count", None)
                        if value is None:
                            value = getattr(point, point.WhichOneof("value"))
                        labels = ",".join(sorted(str(pair.value) for pair in point.attributes))
                        last.setdefault(metric.name, {})[labels] = value

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            requests[self.path] += 1
            if self.path.endswith("metrics"):
                take(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()
    sums = {name: sum(series.values()) for name, series in last.items()}
    print(json.dumps({"sums": sums, "requests": requests}), flush=True)


class Collector:
    """The collector in its own process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--collect"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout
        self.url = f"http://127.0.0.1:{self._process.stdout.readline().strip()}"

    def end(self) -> dict[str, Any]:
        """Return what it received."""
        said, _ = self._process.communicate("", timeout=60.0)
        received: dict[str, Any] = json.loads(said)
        return received


# --------------------------------------------------------------------------------------------- the scraper


class Scraper(threading.Thread):
    """Scrapes without a pause worth mentioning, in both formats, and sees to it that no counter falls."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._ended = threading.Event()
        self.scrapes = 0
        self.fallen: set[str] = set()

    def run(self) -> None:
        """Scrape until the end."""
        before: dict[str, float] = {}
        while not self._ended.wait(0.05):
            sums = self.sums(openmetrics=self.scrapes % 2 == 1)
            self.fallen |= {name for name in before if sums.get(name, 0.0) < before[name]}
            before = sums
            self.scrapes += 1

    def sums(self, *, openmetrics: bool = False) -> dict[str, float]:
        """Return the counters of a scrape, summed over their series; histograms by their count."""
        request = urllib.request.Request(self._url, headers=OPENMETRICS if openmetrics else {})
        with urllib.request.urlopen(request, timeout=30.0) as answer:
            text = answer.read().decode()
        sums: Counter[str] = Counter()
        for family in (parse_openmetrics if openmetrics else text_string_to_metric_families)(text):
            if family.type in ("counter", "histogram"):
                for sample in family.samples:
                    if sample.name.endswith(("_total", "_count")):
                        sums[sample.name] += sample.value
        return dict(sums)

    def end(self) -> None:
        """Scrape no more."""
        self._ended.set()
        self.join()


# ------------------------------------------------------------------------------------------------- the run


class Files:
    """The log's two files, rotated now and then, and how many lines they have had."""

    def __init__(self, folder: Path) -> None:
        self.text, self.json = folder / "run.log", folder / "run.jsonl"
        self._lines: Counter[str] = Counter()

    def rotate(self) -> None:
        """Move both away; what was moved before is counted and gone."""
        for path in (self.text, self.json):
            old = self._moved(path)
            self._count(old, path.name)
            path.rename(old)

    def lines(self) -> dict[str, int]:
        """Return the lines there were in all."""
        for path in (self.text, self.json):
            self._count(self._moved(path), path.name)
            self._count(path, path.name)
        return dict(self._lines)

    @staticmethod
    def _moved(path: Path) -> Path:
        return path.with_name(f"{path.name}.1")

    def _count(self, path: Path, name: str) -> None:
        if path.exists():
            with path.open("rb") as file:
                self._lines[name] += sum(1 for _ in file)
            path.unlink()


class Expected:
    """What every counter should say."""

    def __init__(self) -> None:
        self.events = 0
        self.sums: Counter[catalog.Metric] = Counter()

    def emit(self, log: MetricLogger, event: str, payload: dict[str, Any], *metrics: catalog.Metric) -> None:
        """Emit an event that adds 1 to each of these."""
        log.emit(event, payload)
        self.events += 1
        self.sums.update(metrics)


@dataclass(frozen=True)
class Memory:
    """What the process holds.

    Args:
        resident_bytes: Resident memory, without what the allocator only keeps for later.
        blocks: Blocks that Python's allocator has given out: what the objects are made of.
    """

    resident_bytes: int
    blocks: int

    @classmethod
    def now(cls) -> Memory:
        """Return what it holds now."""
        gc.collect()
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)
        return cls(psutil.Process().memory_info().rss, sys.getallocatedblocks())


def train(
    log: MetricLogger, files: Files, steps: int, expected: Expected, settle: Callable[[float], None]
) -> tuple[list[float], Memory]:
    """Take all steps in; return the CPU time of a step of each batch in us, and the memory when settled."""
    emit, costs_us, settled = expected.emit, [], Memory.now()
    emit(
        log,
        "train_start",
        {"start_step": 0, "target_step": steps, "samples": 0, "tokens": 0, "micro_batches": 0},
    )
    began_ns = time.thread_time_ns()
    for step in range(1, steps + 1):
        loss = math.nan if step % NONFINITE_STEPS == 0 else 2.0 + 1.0 / step
        emit(
            log, "train_step",
            {
                "step": step, "loss": loss, "lr": 3e-4, "grad_norm": 0.5, "steps_per_sec": 1e4,
                "samples": 64 * step, "tokens": 16_384 * step, "micro_batches": 4 * step,
                "data_wait_s": 1e-6, "step_s": 1e-5,
            },
            catalog.STEPS, catalog.STEP_DURATION, catalog.DATA_WAIT_DURATION,
        )  # fmt: skip
        if math.isnan(loss):
            expected.sums[catalog.NONFINITE_VALUES] += 1
        if step % SKIP_STEPS == 0:
            emit(log, "optimizer_step_skipped", {"step": step, "reason": "overflow"}, catalog.STEP_SKIPS)
        if step % CHECKPOINT_STEPS == 0:
            saved = {"step": step, "path": f"step_{step:012}.pt", "duration_s": 1e-6, "size_bytes": 1000}
            emit(log, "checkpoint", saved, catalog.CHECKPOINTS, catalog.CHECKPOINT_DURATION)
        if step % VALIDATION_STEPS == 0:
            emit(log, "validation_start", {"step": step, "stage": "validation"})
            emit(
                log, "validation_end", {"step": step, "stage": "validation", "loss": 2.0, "duration_s": 1e-6}
            )
        if step % BATCH_STEPS == 0:
            costs_us.append((time.thread_time_ns() - began_ns) / BATCH_STEPS / 1000)
            if step <= SETTLED_STEPS:
                settle(step / SETTLED_STEPS)
            if step == SETTLED_STEPS:
                settled = Memory.now()
            if step % ROTATE_STEPS == ROTATE_STEPS // 5:
                files.rotate()
            began_ns = time.thread_time_ns()
    emit(log, "train_end", {"steps": steps, "elapsed_s": 1.0})
    for metric, each in ((catalog.SAMPLES, 64), (catalog.TOKENS, 16_384), (catalog.MICRO_BATCHES, 4)):
        expected.sums[metric] = each * steps
    return costs_us, settled


def run(steps: int, folder: Path) -> list[str]:
    """Make the run, print its figures and return what is wrong."""
    collector, files, expected = Collector(), Files(folder), Expected()
    telemetry = otel_training.start(
        otlp_endpoint=collector.url, export_interval_s=1.0, prometheus_port=0, window_s=1.0,
        devices=("cpu",), device_interval_s=0.5, shutdown_timeout_s=30.0,
    )  # fmt: skip
    scraper = Scraper(telemetry.url or "")
    scraper.start()
    log = MetricLogger(file=files.text, json_file=files.json, hooks=[telemetry.hook])
    began_s = time.monotonic()

    def settle(part: float) -> None:
        """Give what happens by the clock its time: 20,000 steps take a second here, and minutes elsewhere."""
        while scraper.scrapes < part * SETTLED_SCRAPES:
            time.sleep(0.1)
        telemetry.flush(30.0)

    costs_us, settled = train(log, files, steps, expected, settle)
    took_s, end = time.monotonic() - began_s, Memory.now()
    scraper.end()
    page = scraper.sums()
    log.close()
    received = collector.end()

    growth, more_blocks = end.resident_bytes / settled.resident_bytes - 1.0, end.blocks - settled.blocks
    half = len(costs_us) // 2
    early_us, late_us = min(costs_us[:half]), min(costs_us[half:])
    print(
        f"{steps:,} steps in {took_s:.0f} s, {scraper.scrapes} scrapes, exports {received['requests']}\n"
        f"memory: {settled.resident_bytes / 2**20:.1f} MiB after {SETTLED_STEPS:,} steps,"
        f" {end.resident_bytes / 2**20:.1f} MiB at the end ({growth:+.2%}, at most {MOST_GROWTH:+.0%}),"
        f" {more_blocks:+,} objects (at most {MOST_BLOCKS:+,})\n"
        f"a step: {early_us:.1f} us of CPU early, {late_us:.1f} us late ({late_us / early_us:.2f} x)"
    )
    wrong = [f"{name} fell" for name in sorted(scraper.fallen)]
    if growth > MOST_GROWTH:
        wrong.append(f"memory grew by {growth:.2%}")
    if more_blocks > MOST_BLOCKS:
        wrong.append(f"there are {more_blocks:,} more objects")
    if late_us > MOST_SLOWER * early_us:
        wrong.append(f"a step costs {late_us / early_us:.2f} times what it did")
    return wrong + differences(expected, page, received["sums"], files.lines())


def differences(
    expected: Expected, page: dict[str, float], otlp: dict[str, float], lines: dict[str, int]
) -> list[str]:
    """Return every counter that is not what it should be."""
    found = []
    for metric in COUNTERS:
        name = catalog.prometheus_name(metric) + ("_count" if metric.kind == "histogram" else "")
        for road, value in (("page", page.get(name)), ("OTLP", otlp.get(metric.name))):
            if value != expected.sums[metric]:
                found.append(f"{metric.name} by {road} is {value}, not {expected.sums[metric]}")
    events = page.get(catalog.prometheus_name(catalog.BRIDGE_EVENTS))
    if events != expected.events:
        found.append(f"{events} events were handled, not {expected.events}")
    if drops := page.get(catalog.prometheus_name(catalog.BRIDGE_DROPS)):
        found.append(f"{drops} values were dropped")
    found += [
        f"{name} has {count} lines, not {expected.events}"
        for name, count in lines.items()
        if count != expected.events
    ]
    return found


def main() -> int:
    """Run, and say what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--collect", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.collect:
        collect()
        return 0
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        del os.environ[name]
    with tempfile.TemporaryDirectory() as folder:
        wrong = run(arguments.steps, Path(folder))
    print("\n".join(f"wrong: {line}" for line in wrong) or "nothing is wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
