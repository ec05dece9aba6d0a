"""Batch callbacks: what they may implement, and how the trainer calls them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from trainer.trainer import Trainer


class Callback:
    """Base class of empty batch hooks; override what you need.

    Deriving from it is optional: the trainer calls whichever of these methods an object has.
    A callback is the user's code: an exception in it ends training (hooks of the logger are isolated,
    callbacks are not).

    ``batch_idx`` counts the micro-batches of the epoch from 0. ``outputs["loss"]`` is the loss of the
    micro-batch divided by the accumulation steps, a detached scalar on the trainer's device: reading it is a
    host/device sync.
    """

    def setup(self, trainer: Trainer, pl_module: nn.Module, stage: str) -> None:
        """Called once when ``fit``, ``validate`` or ``test`` begins, with that word as ``stage``."""

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: nn.Module, batch: Any, batch_idx: int
    ) -> None:
        """Called before the forward pass of each micro-batch."""

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: nn.Module, outputs: dict[str, Any], batch: Any, batch_idx: int
    ) -> None:
        """Called after the backward pass of each micro-batch, before the optimizer step."""

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: nn.Module, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called before each validation batch."""

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: nn.Module,
        outputs: dict[str, Any],
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Called after each validation batch."""

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: nn.Module, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called before each test batch."""

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: nn.Module,
        outputs: dict[str, Any],
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Called after each test batch."""


def call_each(callbacks: Iterable[object], method: str, *args: Any) -> None:
    """Call ``method`` on every callback that has it, in order; the first exception goes up.

    Args:
        callbacks: Objects with any of the methods of :class:`Callback`.
        method: Name of the method.
        args: What it is called with.
    """
    for callback in callbacks:
        function = getattr(callback, method, None)
        if function is not None:
            function(*args)
