"""The runs of the recorded hour: one on four GPUs, DiLoCo workers, XLA and Apple, and two with a fault."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from typing import Any

from devices_recorded import apple, cluster_host, gpu, xla
from recording import LENGTH_S, Event, Rank

from otel_training.identity import Identity

RANKS_PER_HOST = 2
TARGET_STEP = 9000
STARTUP_S = 95.0
SLOW_RANK = 2
"""Its loader becomes slow in the second half of the hour."""

HEALTHY, NAN, STALLED = "llama-1b", "llama-1b-bf16", "llama-1b-nfs"
DILOCO, TPU, LAPTOP = "diloco-350m", "gemma-tpu", "char-gpt"

DIVERGES_S, NAN_S = 2700.0, 3120.0
LAST_STEP_OF_THE_STALLED = 4000


def healthy() -> list[Rank]:
    """A resumed run: some steps are done again, and one rank's loader becomes slow."""
    return _cluster(HEALTHY, "a1b2c3", "node-a", 4)


def with_nan() -> list[Rank]:
    """A run whose loss rises from the 45th minute on and is NaN from the 52nd."""
    return _cluster(NAN, "d4e5f6", "node-b", 2, diverges_s=DIVERGES_S, nan_s=NAN_S)


def stalled() -> list[Rank]:
    """A run that stands still since it saved a checkpoint: alive, but without another step."""
    return _cluster(STALLED, "789abc", "node-c", 2, last_step=LAST_STEP_OF_THE_STALLED)


def others() -> list[Rank]:
    """DiLoCo workers, a run on XLA, and one on an Apple laptop that ended."""
    workers = [
        Rank(_identity(DILOCO, "5eed01", rank, 4), f"site-{rank}:9464", _worker(rank)) for rank in range(4)
    ]
    tpu = Rank(_identity(TPU, "7b0001", 0, 1), "tpu-0:9464", _single("xla:0", 0.9), xla)
    laptop = Rank(
        _identity(LAPTOP, "0ff1ce", 0, 1), "laptop:9464", _single("mps:0", 0.4, ends_s=1500.0), apple, 1600.0
    )
    return [*workers, tpu, laptop]


def _identity(name: str, run_id: str, rank: int, world_size: int, per_host: int = 1) -> Identity:
    return Identity(
        run_id=run_id, run_name=name, rank=rank, local_rank=rank % per_host, world_size=world_size
    )


def _cluster(name: str, run_id: str, host: str, ranks: int, **fault: Any) -> list[Rank]:
    return [
        Rank(
            _identity(name, run_id, rank, ranks, RANKS_PER_HOST),
            f"{host}{rank // RANKS_PER_HOST}:{9464 + rank % RANKS_PER_HOST}",
            _synchronous(rank, ranks, **fault),
            cluster_host(gpu(rank), with_host=rank % RANKS_PER_HOST == 0),
        )
        for rank in range(ranks)
    ]


def _start(device: str, ranks: int, first: int = 0, **others: Any) -> dict[str, Any]:
    return {
        "start_step": first, "target_step": TARGET_STEP, "device": device, "precision": "bf16", "samples": 0,
        "tokens": 0, "accumulation_steps": 1, "parameters": 1.1e9, "world_size": ranks, **others,
    }  # fmt: skip


def _loss(step: int, noise: random.Random) -> float:
    return 2.1 + 8.4 * math.exp(-step / 700) + 2.4 * math.exp(-step / 4000) + noise.gauss(0.0, 0.04)


def _rate(step: int) -> float:
    warmup = min(1.0, step / 500)
    return 3e-4 * warmup * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * step / TARGET_STEP)))


def _synchronous(
    rank: int, ranks: int, diverges_s: float = math.inf, nan_s: float = math.inf, last_step: int = TARGET_STEP
) -> Iterator[Event]:
    """A rank of a run whose ranks wait for each other at each step."""
    shared = random.Random(7)  # all ranks take as long, and see the same gradient norm
    own = random.Random(100 + rank)
    first, at_s, samples = 1200, STARTUP_S, 1200 * 8
    yield Event(0.5, "compile", {"enabled": True, "duration_s": 0.0})
    yield Event(at_s, "train_start", _start(
        f"cuda:{rank % RANKS_PER_HOST}", ranks, first, samples=samples, tokens=samples * 4096, attempt=1,
        last_step_reached=1260, prior_elapsed_s=900.0, prior_kept_s=760.0, flops_per_token=6.6e9,
        peak_flops_per_s=989e12,
    ))  # fmt: skip
    yield Event(at_s + 4.0, "checkpoint_restore", {"step": first, "duration_s": 4.0})
    at_s += 4.0
    for step in range(first + 1, TARGET_STEP + 1):
        slow_s = 0.12 if at_s > LENGTH_S / 2 else 0.0
        wait_s = 0.004 * own.lognormvariate(0.0, 0.4) + (slow_s if rank == SLOW_RANK else 0.0)
        step_s = 0.52 + slow_s + shared.lognormvariate(-4.2, 0.8)
        at_s += step_s
        samples += 8
        loss, norm = _loss(step, own), 0.9 + 3.0 * math.exp(-step / 900) + abs(shared.gauss(0.0, 0.12))
        if at_s > diverges_s:
            rise = (at_s - diverges_s) / 420.0
            loss, norm = loss + 2.6 * rise**2, norm * (1 + 9 * rise) * shared.lognormvariate(0.0, 0.4)
        if at_s > nan_s:
            loss = norm = math.nan
        yield Event(at_s, "train_step", {
            "step": step, "loss": loss, "grad_norm": norm, "lr": _rate(step), "samples": samples,
            "tokens": samples * 4096, "micro_batches": step - first, "data_wait_s": wait_s, "step_s": step_s,
        })  # fmt: skip
        if step % 500 == 0:
            yield Event(at_s, "validation_start", {"step": step, "stage": "validation"})
            at_s += 9.0
            validation = {"step": step, "stage": "validation", "batches": 40, "duration_s": 9.0}
            value = math.nan if at_s > nan_s else _loss(step, shared) + 0.08
            yield Event(at_s, "validation_end", {**validation, "loss": value})
        if step % 1000 == 0:
            at_s += 15.0  # all wait for the slowest
            saved = {
                "step": step,
                "path": f"step-{step}",
                "duration_s": 15.0 - own.random(),
                "size_bytes": 13.2e9,
            }
            yield Event(at_s, "checkpoint", saved)
        if step % 1711 == 0:
            yield Event(at_s, "optimizer_step_skipped", {"step": step, "reason": "nonfinite_gradients"})
        if step == last_step:
            return


def _worker(rank: int) -> Iterator[Event]:
    """A worker of DiLoCo, on its own for 100 steps at a time; worker 0 leads the outer steps."""
    own = random.Random(200 + rank)
    at_s, pace_s = 20.0 + 3 * rank, (0.42, 0.44, 0.43, 0.71)[rank]
    yield Event(at_s, "train_start", _start("cuda:0", 4))
    for step in range(1, TARGET_STEP):
        at_s += pace_s * own.lognormvariate(0.0, 0.1)
        tokens = step * 16 * 1024
        yield Event(at_s, "train_step", {
            "step": step, "loss": _loss(step, own), "lr": _rate(step), "samples": step * 16, "tokens": tokens,
            "data_wait_s": 0.003 * own.lognormvariate(0.0, 0.3), "step_s": pace_s, "memory_bytes": 19.5e9,
        })  # fmt: skip
        if step % 100 == 0:
            for event in _delivery(step, at_s, own):
                at_s = max(at_s, event.at_s)
                yield event
            if rank == 0:
                at_s += 1.5
                rejected = int(own.random() < 0.15)
                found = own.choice((3, 4, 4, 4))
                yield Event(at_s, "outer_step", {
                    "outer_step": step // 100, "deltas_found": found, "deltas_included": found - rejected,
                    "deltas_rejected": rejected, "duration_s": 1.5 + own.random(),
                })  # fmt: skip


def _delivery(step: int, at_s: float, own: random.Random) -> Iterator[Event]:
    chance = own.random()
    if chance < 0.05:
        yield Event(at_s, "delta_upload_skipped", {"step": step, "reason": "upload_in_flight"})
        return
    yield Event(at_s, "delta_upload_queued", {"step": step, "base_outer_step": step // 100 - 1})
    upload_s = 4.0 * own.lognormvariate(0.0, 0.5)
    if chance < 0.12:
        yield Event(at_s + upload_s, "delta_upload_failed", {"step": step, "error": "TimeoutError"})
        return
    yield Event(at_s + upload_s, "delta_uploaded", {"step": step, "duration_s": upload_s, "size_bytes": 7e8})
    if chance > 0.9:
        yield Event(at_s + upload_s, "delta_upload_stale", {"step": step, "generation": step // 100})


def _single(device: str, pace_s: float, ends_s: float = math.inf) -> Iterator[Event]:
    """A run of one process, with events and fields of its own, and now and then a failing hook."""
    own = random.Random(300)
    at_s = 12.0
    yield Event(at_s, "train_start", _start(device, 1))
    for step in range(1, TARGET_STEP):
        at_s += pace_s * own.lognormvariate(0.0, 0.1)
        if at_s > ends_s:
            yield Event(at_s, "train_end", {"steps": step - 1, "elapsed_s": at_s, "outcome": "completed"})
            return
        yield Event(at_s, "train_step", {
            "step": step, "loss": _loss(step, own), "lr": _rate(step), "samples": step * 4,
            "tokens": step * 4 * 2048, "data_wait_s": 0.002, "router_entropy": 1.2 + own.gauss(0.0, 0.05),
        })  # fmt: skip
        if step % 700 == 0:
            failed = {
                "hook": "TensorboardHook",
                "failed_event": "train_step",
                "error": "disk full",
                "count": step // 700,
            }
            yield Event(at_s, "hook_failed", failed)
        if step % 900 == 0:
            yield Event(at_s, "train_step", {"step": step, "lr": "constant"})


def everything() -> Iterable[Rank]:
    """All runs of the hour."""
    return [*healthy(), *with_nan(), *stalled(), *others()]
