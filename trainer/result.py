"""What a training run came to."""

from __future__ import annotations

import math
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

# Buckets 2 % apart: fine enough for a table, and a run of a million steps needs a few hundred of them.
_BUCKET_LOG = math.log(1.02)


class StepTimes:
    """Quantiles of many durations in little memory, exact to 1 %."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()

    def add(self, duration_s: float) -> None:
        """Count one duration."""
        self._buckets[round(math.log(max(duration_s, 1e-9)) / _BUCKET_LOG)] += 1

    def quantile_s(self, fraction: float) -> float | None:
        """Return the duration that ``fraction`` (0..1) of the steps do not exceed; None without steps."""
        rank = math.ceil(fraction * self._buckets.total())
        for bucket in sorted(self._buckets):
            rank -= self._buckets[bucket]
            if rank <= 0:
                return math.exp(bucket * _BUCKET_LOG)
        return None


def goodput_of(kept_s: float, elapsed_s: float) -> float | None:
    """Return the part of the time that went into steps which were kept, 0..1; None when no time has passed.

    The time of a step is kept once a checkpoint holds it, and before that as long as its attempt lives. Waits
    for data, checkpoints, restores, start-up and steps that have to be made again are not kept.

    Args:
        kept_s: Step time of all attempts that was kept, seconds.
        elapsed_s: Wall time of all attempts, seconds.
    """
    return min(1.0, kept_s / elapsed_s) if elapsed_s > 0.0 else None


@dataclass(frozen=True)
class TrainResult:
    """The outcome of ``fit``.

    Args:
        outcome: ``completed`` (target step or time reached) or ``interrupted`` (by a signal).
        start_step: Step at which this attempt began.
        steps: Steps applied in all, absolute.
        target_step: Step that training was to end at; a run that completed below it had used up its time.
        first_loss: Loss of this attempt's first step; None when it made none.
        loss: Loss of its last step; likewise.
        elapsed_s: Wall time of ``fit``.
        samples: Running total over all attempts; likewise ``tokens`` and ``micro_batches``.
        tokens_per_sec: Tokens of this attempt per second of its steps and data waits.
        step_p50_s: Median step time; likewise ``step_p99_s``.
        time_by_state_s: Wall time by state, summing to ``elapsed_s``.
        goodput: Part of the time since the first attempt that went into steps which were kept, 0..1; None
            when no time has passed. See :func:`goodput_of`.
        run_id: Identity of the run.
        attempt: Number of this attempt, from 0.
        checkpoint: Last checkpoint written or restored.
        checkpoint_error: Why the final checkpoint could not be written; None when it was.
        signal: The signal that interrupted the run.
    """

    outcome: str
    start_step: int
    steps: int
    first_loss: float | None
    loss: float | None
    elapsed_s: float
    samples: int
    tokens: int
    micro_batches: int
    tokens_per_sec: float | None
    step_p50_s: float | None
    step_p99_s: float | None
    run_id: str
    attempt: int
    target_step: int | None = None
    time_by_state_s: dict[str, float] = field(default_factory=dict)
    goodput: float | None = None
    checkpoint: Path | None = None
    checkpoint_error: str | None = None
    signal: signal.Signals | None = None
