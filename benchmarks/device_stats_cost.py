"""What device stats cost: our DeviceStatsMonitor beside Lightning's, and a step with and without the sampler.

    python benchmarks/device_stats_cost.py

Both monitors log each step at its start and at its end on the CPU, ours as text and JSON lines, Lightning's
with its CSVLogger; without Lightning installed ours is measured alone. The rounds of all take turns, so that
a busy machine slows all alike; the ratios of the fastest rounds are what to compare.
"""

from __future__ import annotations

import importlib.util
import logging
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import otel_training
from otel_training.device_stats import DeviceStatsMonitor
from trainer.metrics import MetricLogger

Step = Callable[[int], object]

ROUNDS = 10
STEPS_PER_ROUND = 200
TARGET_RATIO = 0.2
"""Ours costs at most this part of Lightning's."""

SAMPLED_STEPS = 1000
SAMPLER_INTERVAL_S = 0.1
"""A hundred times as often as by default, so that a cost would show."""


def ours(folder: Path) -> Step:
    """Return a step of our monitor with our logger."""
    trainer = SimpleNamespace(
        loggers=[MetricLogger(file=folder / "ours.log", json_file=folder / "ours.jsonl")],
        device=torch.device("cpu"),
        accumulation_steps=1,
        step=0,
    )
    monitor = DeviceStatsMonitor()
    monitor.setup(trainer, None, "fit")

    def step(number: int) -> None:
        monitor.on_train_batch_start(trainer, None, None, number)
        monitor.on_train_batch_end(trainer, None, None, None, number)
        trainer.step += 1

    return step


def lightnings(folder: Path) -> Step:
    """Return a step of Lightning's monitor with its CSVLogger."""
    from lightning.pytorch.accelerators import CPUAccelerator  # type: ignore[import-not-found]
    from lightning.pytorch.callbacks import DeviceStatsMonitor as TheirMonitor  # type: ignore[import-not-found]
    from lightning.pytorch.loggers import CSVLogger  # type: ignore[import-not-found]

    trainer: Any = SimpleNamespace(
        loggers=[CSVLogger(folder)],
        strategy=SimpleNamespace(root_device=torch.device("cpu")),
        accelerator=CPUAccelerator(),
        _logger_connector=SimpleNamespace(should_update_logs=True),
        fit_loop=SimpleNamespace(epoch_loop=SimpleNamespace(_batches_that_stepped=0)),
    )
    monitor = TheirMonitor()
    monitor.setup(trainer, None, "fit")

    def step(number: int) -> None:
        trainer.fit_loop.epoch_loop._batches_that_stepped = number
        monitor.on_train_batch_start(trainer, None, None, number)
        monitor.on_train_batch_end(trainer, None, None, None, number)
        for logger in trainer.loggers:  # as its Trainer does after each batch
            if number % 100 == 0:
                logger.save()

    return step


def fastest_round_us(steps: dict[str, Step]) -> dict[str, float]:
    """Return the cost of a step in the fastest round of each, in microseconds."""
    fastest_s = dict.fromkeys(steps, float("inf"))
    for turn in range(ROUNDS):
        for name, step in steps.items():
            began_s = time.perf_counter()
            for number in range(turn * STEPS_PER_ROUND, (turn + 1) * STEPS_PER_ROUND):
                step(number)
            fastest_s[name] = min(fastest_s[name], (time.perf_counter() - began_s) / STEPS_PER_ROUND)
    return {name: 1e6 * seconds for name, seconds in fastest_s.items()}


def sampled_step_us() -> tuple[float, float]:
    """Return the time of a small step of training without and with the sampler: the fastest tenth of each."""
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
    batch = torch.randn(64, 256)

    def steps_s() -> list[float]:
        times_s = []
        for _ in range(SAMPLED_STEPS // 4):
            began_s = time.perf_counter()
            model(batch).sum().backward()
            times_s.append(time.perf_counter() - began_s)
        return times_s

    alone_s, sampled_s = [], []
    steps_s()
    for _ in range(8):
        alone_s += steps_s()
        with otel_training.start(prometheus_port=0, device_interval_s=SAMPLER_INTERVAL_S):
            sampled_s += steps_s()
    return 1e6 * sorted(alone_s)[len(alone_s) // 10], 1e6 * sorted(sampled_s)[len(sampled_s) // 10]


def main() -> None:
    """Print the ledger."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as name:
        steps = {"ours": ours(Path(name))}
        if importlib.util.find_spec("lightning"):
            steps["Lightning's"] = lightnings(Path(name))
        costs_us = fastest_round_us(steps)
    for contender, cost_us in costs_us.items():
        print(f"DeviceStatsMonitor at each step, {contender:<12} {cost_us:8.1f} us")
    if "Lightning's" in costs_us:
        ratio = costs_us["ours"] / costs_us["Lightning's"]
        verdict = "ok" if ratio <= TARGET_RATIO else "TOO MUCH"
        print(f"ours by Lightning's {ratio:.2f}, wanted at most {TARGET_RATIO}: {verdict}")
    alone_us, sampled_us = sampled_step_us()
    print(f"a small step alone {alone_us:.0f} us, read each {SAMPLER_INTERVAL_S} s {sampled_us:.0f} us")
    print(f"ratio {sampled_us / alone_us:.3f}; at the default interval a hundredth of what is above 1")


if __name__ == "__main__":
    main()
