"""Passes over held-out data: when, over what, and what they tell."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from trainer.batch import count_batch, move_batch
from trainer.callbacks import call_each
from trainer.rng import preserved_rng

if TYPE_CHECKING:
    from trainer.trainer import Trainer


class HeldOut:
    """The held-out data of a run.

    Args:
        loaders: Batches by stage, ``validation`` and ``test``; None where there are none.
        max_batches: Batches of one pass of this rank; None = all.
        every_steps: Cadence of validation in training; None = never.
        clock: Monotonic clock in seconds.
    """

    def __init__(
        self,
        loaders: Mapping[str, Iterable[Any] | None],
        *,
        max_batches: int | None,
        every_steps: int | None,
        clock: Callable[[], float],
    ) -> None:
        self._loaders = loaders
        self._max_batches = max_batches
        self._every_steps = every_steps
        self._clock = clock
        self._validated_step = 0

    def begin(self, step: int) -> None:
        """Take ``step`` as one that needs no validation."""
        self._validated_step = step

    def is_due(self, step: int) -> bool:
        """Return whether ``step`` is at the cadence; once true, it is not so again for the same step."""
        due = self._every_steps is not None and step % self._every_steps == 0 and step != self._validated_step
        if due:
            self._validated_step = step
        return due

    def evaluate(self, trainer: Trainer, stage: str) -> float:
        """Return the mean loss over the data of ``stage``; see :func:`evaluate`.

        Raises:
            ValueError: There are no data, or they are empty.
        """
        loader = self._loaders[stage]
        if loader is None:
            raise ValueError(f"the trainer has no {stage} data: give it a {stage}_dataloader")
        return evaluate(trainer, loader, stage, max_batches=self._max_batches, clock=self._clock)


def evaluate(
    trainer: Trainer,
    loader: Iterable[Any],
    stage: str,
    *,
    max_batches: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the mean loss over ``loader``, each batch weighted by its samples, those of all ranks together.

    The model runs in evaluation mode; the batch callbacks of ``stage`` are called and its two events emitted.
    The random state is left as it was, so that training goes the same way with and without it.

    Args:
        trainer: Whose model, loss, callbacks and loggers are used.
        loader: Batches.
        stage: ``validation`` or ``test``.
        max_batches: Stop after so many; None = all.
        clock: Monotonic clock in seconds.

    Raises:
        ValueError: No rank's loader gives a batch.
    """
    trainer.emit("validation_start", {"step": trainer.step, "stage": stage})
    began_s, was_training = clock(), trainer.model.training
    trainer.model.eval()
    try:
        with preserved_rng(), torch.no_grad():
            loss, batches = _mean_loss(trainer, islice(loader, max_batches), stage)
    finally:
        trainer.model.train(was_training)
    result = {"step": trainer.step, "stage": stage, "loss": loss, "batches": batches}
    trainer.emit("validation_end", {**result, "duration_s": clock() - began_s})
    return loss


def _mean_loss(trainer: Trainer, host_batches: Iterable[Any], stage: str) -> tuple[float, int]:
    model, callbacks = trainer.model, trainer.callbacks
    total, samples, batches = torch.zeros((), device=trainer.device), 0, 0
    for batch_idx, host_batch in enumerate(host_batches):
        batch = move_batch(host_batch, trainer.device)
        call_each(callbacks, f"on_{stage}_batch_start", trainer, model, batch, batch_idx, 0)
        loss = trainer.compute_loss(batch).detach().float()
        call_each(callbacks, f"on_{stage}_batch_end", trainer, model, {"loss": loss}, batch, batch_idx, 0)
        weight = max(1, count_batch(batch)[0])
        total, samples, batches = total + loss * weight, samples + weight, batches + 1
    # sync: the sum of the losses is read once, after the last batch; the hosts of ranks wait for each other.
    total_loss, all_samples = trainer.ranks.sums(float(total), samples)
    if not all_samples:
        raise ValueError(f"the {stage} data loader gave no batch")
    return total_loss / all_samples, batches
