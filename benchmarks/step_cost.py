"""What telemetry adds to a training step, in the call: ours beside what people use today, in one run.

    python benchmarks/step_cost.py

Each takes the same `train_step`. The rounds of all take turns, so that a busy machine slows all alike; the
ratios of the fastest rounds are what to compare. Exporting and scraping happen on other threads and are not
in the call for any of them.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

from otel_training import OTelHook
from otel_training.clock import Clock, Moment
from trainer.metrics import MetricLogger

Emit = Callable[[dict[str, Any]], object]

ROUNDS = 20
STEPS_PER_ROUND = 500
TARGET_US = 60.0
"""A step through text, JSON lines and metrics stays below this."""

STEP_S = 0.1


class TrainingClock(Clock):
    """A clock on which a step takes 0.1 s: back to back, steps would be of no known speed."""

    def __init__(self) -> None:
        self._start = super().now()
        self._readings = 0

    def now(self) -> Moment:
        """Return the moment of the next step."""
        self._readings += 1
        since_s = self._readings * STEP_S
        return Moment(self._start.monotonic_s + since_s, self._start.unix_s + since_s)


def steps() -> Iterator[dict[str, Any]]:
    """Yield the payloads of a run."""
    step = 0
    while True:
        step += 1
        yield {
            "step": step, "loss": 2.71828182, "grad_norm": 0.5772156, "lr": 0.0002997,
            "steps_per_sec": 9.8461, "samples_per_sec": 630.153, "tokens_per_sec": 161319.3,
            "samples": 64 * step, "tokens": 16384 * step, "micro_batches": 4 * step,
            "data_wait_s": 0.00131, "step_s": 0.0985,
        }  # fmt: skip


@contextmanager
def hook() -> Iterator[OTelHook]:
    """Give an OTelHook on SDK providers that are read by somebody else."""
    meter_provider = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    tracer_provider = TracerProvider(shutdown_on_exit=False)
    hook = OTelHook(meter_provider=meter_provider, tracer_provider=tracer_provider, clock=TrainingClock())
    hook.on_event("train_start", {"start_step": 0, "samples": 0, "tokens": 0})
    yield hook
    hook.close()
    meter_provider.shutdown()
    tracer_provider.shutdown()


@contextmanager
def ours(folder: Path, *hooks: OTelHook) -> Iterator[Emit]:
    """Give a MetricLogger with text and JSON lines."""
    with MetricLogger(file=folder / "run.log", json_file=folder / "run.jsonl", hooks=hooks) as logger:
        yield lambda payload: logger.emit("train_step", payload)


@contextmanager
def otel_by_hand(_folder: Path) -> Iterator[Emit]:
    """Give 12 instruments of OpenTelemetry, called one by one as its documentation shows."""
    provider = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    meter = provider.get_meter("by hand")
    gauges = {name: meter.create_gauge(name) for name in next(steps()) if not name.endswith("_s")}
    histograms = {name: meter.create_histogram(name, "s") for name in ("data_wait_s", "step_s")}

    def emit(payload: dict[str, Any]) -> None:
        for name, gauge in gauges.items():
            gauge.set(payload[name])
        for name, histogram in histograms.items():
            histogram.record(payload[name])

    yield emit
    provider.shutdown()


@contextmanager
def tensorboard(folder: Path) -> Iterator[Emit]:
    """Give a TensorBoard writer with six scalars of a step."""
    from torch.utils.tensorboard import SummaryWriter

    names = ("loss", "grad_norm", "lr", "tokens_per_sec", "data_wait_s", "step_s")
    writer = SummaryWriter(str(folder / "tensorboard"))

    def emit(payload: dict[str, Any]) -> None:
        for name in names:
            writer.add_scalar(name, payload[name], payload["step"])

    yield emit
    writer.close()


@contextmanager
def wandb_offline(folder: Path) -> Iterator[Emit]:
    """Give a wandb run that writes to the disk alone."""
    import wandb

    os.environ.setdefault("WANDB_SILENT", "true")
    run = wandb.init(mode="offline", dir=str(folder), project="step-cost")
    yield run.log
    run.finish()


def contenders(folder: Path, stack: ExitStack) -> dict[str, Emit]:
    """Return what is compared, by name; the first is the one with the target."""
    entered = stack.enter_context
    found: dict[str, Emit] = {
        "ours: text + JSONL + OTelHook": entered(ours(folder, entered(hook()))),
        "ours: text + JSONL": entered(ours(folder)),
    }
    alone = entered(hook())
    found["ours: OTelHook alone"] = lambda payload: alone.on_event("train_step", payload)
    found["OpenTelemetry by hand, 12 calls"] = entered(otel_by_hand(folder))
    for name, module, make in (
        ("TensorBoard, 6 scalars", "tensorboard", tensorboard),
        ("wandb offline", "wandb", wandb_offline),
    ):
        if importlib.util.find_spec(module):
            found[name] = entered(make(folder))
    return found


def fastest_round_us(emits: dict[str, Emit]) -> dict[str, float]:
    """Return the cost of one step in the fastest round of each, in microseconds."""
    best = dict.fromkeys(emits, float("inf"))
    runs = {name: steps() for name in emits}
    for _ in range(ROUNDS):
        for name, emit in emits.items():
            payloads = [next(runs[name]) for _ in range(STEPS_PER_ROUND)]
            begin_ns = time.perf_counter_ns()
            for payload in payloads:
                emit(payload)
            cost_us = (time.perf_counter_ns() - begin_ns) / STEPS_PER_ROUND / 1000
            best[name] = min(best[name], cost_us)
    return best


def main() -> None:
    """Print a line for each, and whether the target is met."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        costs_us = fastest_round_us(contenders(Path(folder), stack))
    whole_us = next(iter(costs_us.values()))
    for name, cost_us in costs_us.items():
        print(f"{name:34} {cost_us:8.2f} us/step   {cost_us / whole_us:6.2f} x")
    met = "met" if whole_us < TARGET_US else "missed"
    print(f"target: {whole_us:.1f} us of at most {TARGET_US:.0f} us in the call ({met})")


if __name__ == "__main__":
    main()
