"""Learning rate over the steps of a run."""

from __future__ import annotations

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def warmup_cosine(step: int, *, warmup_steps: int, decay_steps: int | None, min_fraction: float) -> float:
    """Return the fraction (0..1) of the peak learning rate for the step that follows ``step`` applied ones.

    Linear from ``1 / warmup_steps`` to 1, then half a cosine down to ``min_fraction`` at ``decay_steps``,
    then flat. The schedule does not know where a run will stop: one resumed with more steps equals one never
    stopped.

    Args:
        step: Optimizer steps applied so far, from 0.
        warmup_steps: Steps of the linear rise; 0 = none.
        decay_steps: Step at which the decay ends; None = no decay.
        min_fraction: Floor as a fraction of the peak, 0..1.

    Source: Loshchilov and Hutter, SGDR, https://arxiv.org/abs/1608.03983 (one cycle, no restart).
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if decay_steps is None:
        return 1.0
    progress = min(1.0, (step - warmup_steps) / max(1, decay_steps - warmup_steps))
    return min_fraction + (1.0 - min_fraction) * 0.5 * (1.0 + math.cos(math.pi * progress))


def make_scheduler(
    optimizer: Optimizer, *, warmup_steps: int = 0, decay_steps: int | None = None, min_fraction: float = 0.1
) -> LambdaLR:
    """Return a scheduler that multiplies the optimizer's learning rates by :func:`warmup_cosine`."""

    def fraction(step: int) -> float:
        return warmup_cosine(
            step, warmup_steps=warmup_steps, decay_steps=decay_steps, min_fraction=min_fraction
        )

    return LambdaLR(optimizer, fraction)
