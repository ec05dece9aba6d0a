"""From gradients to an applied optimizer step, or to a skipped one."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from trainer.precision import Precision

# fp16 starts at a loss scale of 2^16 and halves it at each overflow: many times what finding its scale takes.
_MAX_SKIPS_IN_A_ROW = 200


class Update:
    """Applies the gradients of a model.

    Args:
        model: Whose gradients.
        optimizer: Applies them.
        precision: Its scaler is used in fp16.
        scheduler: Stepped with the optimizer, except on a plateau scheduler; None = constant learning rate.
        clip_norm: Longest gradient norm; None = no clipping.

    Attributes:
        lr: Learning rate of the last applied step.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        precision: Precision,
        scheduler: LRScheduler | None,
        clip_norm: float | None,
    ) -> None:
        self.lr = 0.0
        self._parameters = list(model.parameters())
        self._optimizer = optimizer
        self._scaler = precision.scaler
        self._scheduler = scheduler
        self._clip_norm = math.inf if clip_norm is None else clip_norm
        self._skips_in_a_row = 0

    def clip(self) -> Tensor:
        """Scale gradients back and clip them; return their norm before that, a scalar on the device."""
        self._scaler.unscale_(self._optimizer)
        return torch.nn.utils.clip_grad_norm_(self._parameters, self._clip_norm)

    def apply(self) -> None:
        """Step optimizer and scheduler."""
        # sync: only when the optimizer keeps its learning rate on the device, which few do.
        self.lr = float(self._optimizer.param_groups[0]["lr"])
        # sync: only in fp16, where the scaler reads whether a gradient overflowed.
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        if self._scheduler is not None and not isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step()
        self._skips_in_a_row = 0

    def skip(self) -> str:
        """Drop non-finite gradients; return the reason: ``fp16_overflow`` or ``nonfinite_gradient``.

        Raises:
            FloatingPointError: It was the 200th time in a row.
        """
        self._skips_in_a_row += 1
        if self._skips_in_a_row == _MAX_SKIPS_IN_A_ROW:
            raise FloatingPointError(f"the gradients were non-finite {_MAX_SKIPS_IN_A_ROW} times in a row")
        if self._scaler.is_enabled():
            self._scaler.step(self._optimizer)  # does nothing after an overflow ...
            self._scaler.update()  # ... but lowers the scale
        self._optimizer.zero_grad(set_to_none=True)
        return "fp16_overflow" if self._scaler.is_enabled() else "nonfinite_gradient"

    def tell_validation_loss(self, loss: float) -> None:
        """Step a plateau scheduler; others do not care."""
        if isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step(loss)
