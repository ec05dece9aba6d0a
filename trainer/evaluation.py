"""One pass over held-out data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from trainer.batch import count_batch, move_batch
from trainer.callbacks import call_each
from trainer.rng import preserved_rng

if TYPE_CHECKING:
    from trainer.trainer import Trainer


def evaluate(
    trainer: Trainer,
    loader: Iterable[Any],
    stage: str,
    *,
    max_batches: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the mean loss over ``loader``, each batch weighted by its samples.

    The model runs in evaluation mode; the batch callbacks of ``stage`` are called and its two events emitted.
    The random state is left as it was, so that training goes the same way with and without it.

    Args:
        trainer: Whose model, loss, callbacks and loggers are used.
        loader: Batches.
        stage: ``validation`` or ``test``.
        max_batches: Stop after so many; None = all.
        clock: Monotonic clock in seconds.

    Raises:
        ValueError: The loader gives no batch.
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
    if not batches:
        raise ValueError(f"the {stage} data loader gave no batch")
    # sync: the sum of the losses is read once, after the last batch.
    return float(total) / samples, batches
