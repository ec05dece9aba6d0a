"""Running totals of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Totals:
    """What has gone into the model so far, over all attempts; a skipped step counts nothing.

    Args:
        step: Optimizer steps applied.
        samples: Samples they were made of; likewise ``tokens`` and ``micro_batches``.
    """

    step: int = 0
    samples: int = 0
    tokens: int = 0
    micro_batches: int = 0


@dataclass
class StepSize:
    """What the step in progress is made of."""

    samples: int = 0
    tokens: int = 0
    micro_batches: int = 0

    def add(self, samples: int, tokens: int) -> None:
        """Count one more micro-batch."""
        self.samples += samples
        self.tokens += tokens
        self.micro_batches += 1

    def apply_to(self, totals: Totals) -> None:
        """Add this step to the totals."""
        totals.step += 1
        totals.samples += self.samples
        totals.tokens += self.tokens
        totals.micro_batches += self.micro_batches
