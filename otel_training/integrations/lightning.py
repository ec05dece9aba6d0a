"""``OTelCallback`` for the Trainer of Lightning."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from otel_training.guard import attempt
from otel_training.integrations.relay import Relay, guarded, trained_parameters
from otel_training.values import Number, is_tensor, number, on_device

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError as error:
    raise ImportError("this OTelCallback needs lightning: pip install 'otel-training[lightning]'") from error

_PRECISIONS = {"bf16": "bf16", "16": "fp16", "32": "fp32", "64": "fp64"}
"""By what stands before the dash in the framework's names, such as ``16-mixed``."""


class OTelCallback(Callback):
    """Tells what a Trainer does: each optimizer step, each validation, and how training ended.

    Lightning writes checkpoints after it has asked its callbacks for their state, and tells none of them when
    it is done: there are no checkpoint events.

    Args:
        target: Takes the events: a ``Telemetry``, an ``OTelHook``, or a log with ``emit(event, payload)``.
            None starts telemetry of the callback's own and closes it as training ends.
        validation_loss: Name under which the module logs the loss that a validation is judged by.
        **start_arguments: Arguments of ``otel_training.start`` when there is no target.

    Raises:
        TypeError: The target cannot take events, or there are arguments beside it.
        ValueError: ``start`` does not accept an argument's value.
    """

    def __init__(
        self, target: object = None, *, validation_loss: str = "val_loss", **start_arguments: Any
    ) -> None:
        self.relay = Relay(target, start_arguments)
        self._validation_loss = validation_loss
        self._step = 0
        self._lr: Any = None

    @guarded
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Emit train_start."""
        self._step = trainer.global_step
        precision = str(trainer.precision)
        # Where it cannot be told, such as with a schedule of accumulation, the framework raises.
        target_step = attempt(lambda: trainer.estimated_stepping_batches)
        self.relay.train_start(
            {
                "start_step": trainer.global_step,
                "target_step": target_step if target_step and 0 < target_step < math.inf else None,
                "device": str(pl_module.device),
                "precision": _PRECISIONS.get(precision.partition("-")[0], precision),
                "accumulation_steps": trainer.accumulate_grad_batches,
                "parameters": trained_parameters(pl_module),
                "world_size": trainer.world_size,
                "framework": "lightning",
            }
        )

    @guarded
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        """Note the step's learning rate; when the batch ends, the scheduler has set the next one's."""
        self._lr = optimizer.param_groups[0]["lr"]

    @guarded
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Emit train_step if the batch completed an optimizer step; the loss is that of its last batch."""
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        loss = self._loss(trainer, outputs)
        if loss is not None and pl_module.automatic_optimization:
            loss *= trainer.accumulate_grad_batches  # the framework has divided it
        self.relay.emit("train_step", {"step": self._step, "loss": loss, "lr": self._lr})

    @guarded
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Emit validation_start."""
        if not trainer.sanity_checking:
            self.relay.emit("validation_start", {"step": trainer.global_step, "stage": "validation"})

    @guarded
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Emit validation_end."""
        if not trainer.sanity_checking:
            loss = trainer.callback_metrics.get(self._validation_loss)
            end = {"step": trainer.global_step, "stage": "validation", "loss": _read(loss)}
            self.relay.emit("validation_end", end)

    @guarded
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Emit train_end."""
        self.relay.train_end(trainer.global_step)

    @guarded
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Emit train_end with what ended training: a failure, or an interrupt."""
        self.relay.train_end(trainer.global_step, exception)

    def _loss(self, trainer: Trainer, outputs: Any) -> Number | None:
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        # On an accelerator, reading waits for it: only where the framework's own log does.
        cadence = trainer.log_every_n_steps  # type: ignore[attr-defined] # documented, but set from outside
        if on_device(loss) and self._step % max(1, cadence) != 0:
            return None
        return _read(loss)


def _read(value: Any) -> Number | None:
    """Return a tensor of one number as that number; a sync point when it is on an accelerator."""
    return number(value.detach().cpu() if is_tensor(value) else value)
