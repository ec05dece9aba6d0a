"""What one logged step costs: our MetricLogger beside what people use today, in one run.

    python benchmarks/emit_cost.py

Each writes the same `train_step` of 12 fields as a text line and as a JSON line to files. The rounds of all
take turns, so that a busy machine slows all alike; the ratios of the fastest rounds are what to compare.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.metrics import MetricLogger

Emit = Callable[[str, dict[str, Any]], object]

ROUNDS = 20
EVENTS_PER_ROUND = 2_000
STEP = {
    "step": 1234, "lr": 0.0002997, "steps_per_sec": 9.8461, "samples_per_sec": 630.153, "tokens_per_sec":
    161319.3, "samples": 78976, "tokens": 20217856, "micro_batches": 4936, "loss": 2.71828182, "grad_norm":
    0.5772156, "data_wait_s": 0.00131, "step_s": 0.101562,
}  # fmt: skip


def ignore(event: str, payload: dict[str, Any]) -> None:
    """Hear an event and do nothing."""


def ours(folder: Path, **settings: Any) -> Emit:
    """Return the emit of a MetricLogger that writes text and JSON lines."""
    return MetricLogger(file=folder / "ours.log", json_file=folder / "ours.jsonl", **settings).emit


def stdlib(folder: Path) -> Emit:
    """Return what is written by hand without a library: `logging` for text, `json.dumps` to an open file."""
    handler = logging.FileHandler(folder / "stdlib.log")
    handler.setFormatter(logging.Formatter("%(asctime)s | %(levelname)s | %(message)s"))
    logger = logging.Logger("stdlib")
    logger.addHandler(handler)
    lines = (folder / "stdlib.jsonl").open("a", encoding="utf-8")

    def emit(event: str, payload: dict[str, Any]) -> None:
        logger.info("%s %s", event, " ".join(f"{key}={value:.6g}" for key, value in payload.items()))
        lines.write(json.dumps({"event": event, **payload}) + "\n")
        lines.flush()

    return emit


def speedtronic(folder: Path) -> Emit:
    """Return the emit of speedtronic's logger of the same name."""
    from speedtronic.profiling import MetricLogger as TheirLogger  # type: ignore[import-not-found]

    emit: Emit = TheirLogger(file=str(folder / "their.log"), json_file=str(folder / "their.jsonl")).emit
    return emit


def contenders(folder: Path) -> dict[str, Emit]:
    """Return what is compared, by name; the first is what the others are measured against."""
    found = {
        "ours": ours(folder),
        "ours, 3 hooks": ours(folder, hooks=[ignore] * 3),
        "ours, step outside the cadence": ours(folder, every_steps=1000),
        "json.dumps + logging": stdlib(folder),
    }
    if importlib.util.find_spec("speedtronic"):
        found["speedtronic"] = speedtronic(folder)
    return found


def fastest_round_us(emits: dict[str, Emit]) -> dict[str, float]:
    """Return the cost of one event in the fastest round of each, in microseconds."""
    best = dict.fromkeys(emits, float("inf"))
    for _ in range(ROUNDS):
        for name, emit in emits.items():
            begin_ns = time.perf_counter_ns()
            for _ in range(EVENTS_PER_ROUND):
                emit("train_step", STEP)
            cost_us = (time.perf_counter_ns() - begin_ns) / EVENTS_PER_ROUND / 1000
            best[name] = min(best[name], cost_us)
    return best


def main() -> None:
    """Print a line for each."""
    with tempfile.TemporaryDirectory() as folder:
        costs_us = fastest_round_us(contenders(Path(folder)))
    ours_us = next(iter(costs_us.values()))
    for name, cost_us in costs_us.items():
        print(f"{name:32} {cost_us:8.2f} us/event   {cost_us / ours_us:6.2f} x ours")


if __name__ == "__main__":
    main()
