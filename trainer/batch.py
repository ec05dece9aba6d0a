"""What a batch is: moving it, counting it, and the loss a model gives for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

LossFunction = Callable[[Any, Any], Tensor]


def move_batch(batch: Any, device: torch.device) -> Any:
    """Return ``batch`` with every tensor inside (tuples, lists, mappings) on ``device``."""
    if isinstance(batch, Tensor):
        # Asynchronous from pinned memory, so no sync with the device.
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: move_batch(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move_batch(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(move_batch(value, device) for value in batch)
    return batch


def count_batch(batch: Any) -> tuple[int, int]:
    """Return ``(samples, tokens)`` of a batch, from the shape of its first tensor.

    Samples are its first dimension. Tokens are its elements when it holds integers (token ids); data that is
    not made of tokens counts none.
    """
    first = _first_tensor(batch)
    if first is None:
        return 0, 0
    samples = first.shape[0] if first.ndim else 1
    holds_ids = not (first.is_floating_point() or first.is_complex() or first.dtype == torch.bool)
    return samples, first.numel() if holds_ids else 0


def compute_loss(forward: Callable[..., Any], batch: Any, loss_fn: LossFunction | None = None) -> Tensor:
    """Run the model on a batch and return its scalar loss.

    A tuple or list is passed as positional arguments, a mapping as keyword arguments, anything else as the
    only one. Without ``loss_fn`` the model computes the loss itself and returns it as a scalar, as the scalar
    in a tuple (``(logits, loss)``), under the key ``loss``, or as the attribute ``loss``. With ``loss_fn``
    the last element of the batch is the target: ``loss_fn(model(*inputs), target)``.

    Raises:
        TypeError: There is no scalar loss to be found, or ``loss_fn`` is used with a batch that has no
        target.
    """
    if loss_fn is not None:
        if not isinstance(batch, list | tuple) or len(batch) < 2:
            raise TypeError(f"loss_fn needs batches of (inputs..., target), got {type(batch).__name__}")
        *inputs, target = batch
        return loss_fn(forward(*inputs), target)
    if isinstance(batch, Mapping):
        output = forward(**batch)
    elif isinstance(batch, list | tuple):
        output = forward(*batch)
    else:
        output = forward(batch)
    return _find_loss(output)


def _find_loss(output: Any) -> Tensor:
    candidates: list[Any] = [output]
    if isinstance(output, Mapping):
        candidates = [output.get("loss")]
    elif isinstance(output, list | tuple):
        candidates = list(output)
    elif hasattr(output, "loss"):
        candidates = [output.loss]
    for value in candidates:
        if isinstance(value, Tensor) and value.ndim == 0:
            return value
    raise TypeError(
        f"the model returned {type(output).__name__} without a scalar loss; accepted: a scalar tensor, a "
        "tuple that holds one, a mapping or object with 'loss'; or give the trainer a loss_fn(output, target)"
    )


def _first_tensor(batch: Any) -> Tensor | None:
    if isinstance(batch, Tensor):
        return batch
    if isinstance(batch, Mapping):
        values = [batch["input_ids"]] if "input_ids" in batch else list(batch.values())
    elif isinstance(batch, list | tuple):
        values = list(batch)
    else:
        return None
    return next((found for value in values if (found := _first_tensor(value)) is not None), None)
