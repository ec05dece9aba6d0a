"""Numeric precision of the forward pass and the loss scaling it needs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

PRECISIONS = ("auto", "bf16", "fp16", "fp32")
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """A resolved precision: its name, its autocast region and its gradient scaler.

    Args:
        name: ``auto`` (bf16 where a CUDA device computes in it natively, else fp32), ``bf16``, ``fp16`` or
            ``fp32``.
        device: Device of the model.

    Raises:
        ValueError: ``name`` is none of these.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        if name not in PRECISIONS:
            raise ValueError(f"precision: {name!r} is unknown; accepted: {', '.join(PRECISIONS)}")
        self.name = _best(device) if name == "auto" else name
        self._device = device
        # Disabled, it passes loss and step through untouched: the loop needs no second path.
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.name == "fp16")

    def autocast(self) -> AbstractContextManager[object]:
        """Return the region the forward pass runs in."""
        if self.name == "fp32":
            return nullcontext()
        return torch.autocast(self._device.type, dtype=_DTYPES[self.name])


def _best(device: torch.device) -> str:
    if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return "bf16"
    return "fp32"
