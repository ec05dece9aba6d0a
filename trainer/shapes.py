"""Sizes that a device computes with well, and those of a run that are not such."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

TENSOR_CORE_ALIGNMENT = 8
"""Elements of 16 bits; below it matrix units compute with padding.

Source: NVIDIA, "Matrix Multiplication Background User's Guide" (16 bytes; 8 elements of FP16 or BF16).
"""

Dimension = Literal["batch", "sequence", "model", "vocabulary"]


@dataclass(frozen=True)
class Size:
    """One size of a run.

    Args:
        field: Setting that decides it, such as ``model.width``.
        value: Elements, >= 1.
        dimension: What is counted.
    """

    field: str
    value: int
    dimension: Dimension


@dataclass(frozen=True)
class ShapeWarning:
    """A size that is not a multiple of the alignment: the payload of ``shape_warning``.

    Args:
        field: Setting that decides it.
        value: What it is.
        suggested: Next multiple of the alignment.
        alignment: Multiple that it should be.
        code: Which dimension it is, such as ``batch_alignment``.
        reason: Why it matters.
    """

    field: str
    value: int
    suggested: int
    alignment: int
    code: str
    reason: str

    def payload(self) -> dict[str, Any]:
        """Return the event's payload."""
        return asdict(self)


@dataclass(frozen=True)
class ShapeProfile:
    """What the device likes, and which sizes do not suit it.

    Args:
        device_type: Kind of the device.
        precision: Number format of the forward pass.
        alignment: Multiple that sizes should have; None = none is known, and nothing is checked.
        warnings: The sizes that are not.
    """

    device_type: str
    precision: str
    alignment: int | None
    warnings: tuple[ShapeWarning, ...] = ()

    def payload(self) -> dict[str, Any]:
        """Return the payload of ``shape_profile``."""
        return {
            "device_type": self.device_type,
            "precision": self.precision,
            "alignment": self.alignment,
            "warning_count": len(self.warnings),
        }


@dataclass(frozen=True)
class ShapeCheck:
    """The sizes of a run, and what they are to be checked against.

    Args:
        sizes: The sizes.
        alignment: ``auto`` = 8 in half precision on CUDA and else none; a number, on any device; None = no
            check.
        vocabulary: Whether the vocabulary is checked as well, which is often given by a tokenizer.

    Raises:
        ValueError: The alignment is a number below 1.
    """

    sizes: tuple[Size, ...] = ()
    alignment: int | Literal["auto"] | None = "auto"
    vocabulary: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.alignment, int) and self.alignment < 1:
            raise ValueError(f"shapes.alignment must be auto, null or at least 1, got {self.alignment}")

    def profile(self, device: torch.device, precision: str) -> ShapeProfile:
        """Return the profile of a device and a precision, with a warning for each size that does not fit.

        Args:
            device: Device of the model.
            precision: ``bf16``, ``fp16`` or ``fp32``.
        """
        alignment = self._alignment(device, precision)
        if alignment is None:
            return ShapeProfile(device.type, precision, None)
        warnings = [
            _warning(size, alignment)
            for size in self.sizes
            if size.value % alignment and (self.vocabulary or size.dimension != "vocabulary")
        ]
        return ShapeProfile(device.type, precision, alignment, tuple(warnings))

    def _alignment(self, device: torch.device, precision: str) -> int | None:
        if self.alignment != "auto":
            return self.alignment
        return TENSOR_CORE_ALIGNMENT if device.type == "cuda" and precision != "fp32" else None


def sizes_of_run(
    *, batch_size: int, context: int, width: int, heads: int, vocabulary: int
) -> tuple[Size, ...]:
    """Return the sizes that a configuration decides: those of the matrices that its GPT multiplies."""
    return (
        Size("data.batch_size", batch_size, "batch"),
        Size("model.context", context, "sequence"),
        Size("model.width", width, "model"),
        Size("model.width / model.heads", width // heads, "model"),
        Size("vocabulary", vocabulary, "vocabulary"),
    )


_REASONS: Mapping[Dimension, str] = {
    "batch": "samples of a micro-batch are rows of every matrix product",
    "sequence": "tokens of a sample are rows of every matrix product and columns of attention",
    "model": "features are the inner size of every matrix product",
    "vocabulary": "token ids are columns of the output layer",
}


def _warning(size: Size, alignment: int) -> ShapeWarning:
    suggested = -(-size.value // alignment) * alignment
    code = f"{size.dimension}_alignment"
    return ShapeWarning(size.field, size.value, suggested, alignment, code, _REASONS[size.dimension])
