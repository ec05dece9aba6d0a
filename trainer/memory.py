"""How much memory PyTorch holds on a device, asked without touching one that is not in use."""

from __future__ import annotations

import sys
from typing import Any

from trainer.isolation import attempt


def memory_usage_bytes(device: Any = None) -> int | None:
    """Return the bytes that PyTorch's allocator has handed out on a device, ``None`` where that is unknown.

    CUDA is asked only when it is in use already, because asking would make a context on a GPU; else Apple's
    MPS is asked. PyTorch is not imported for this: a process without it has nothing on a device.

    Args:
        device: A ``torch.device``, or what makes one; ``None`` is the current device.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    allocated_bytes, _ = attempt(_allocated_bytes, torch, device)
    return allocated_bytes


def _allocated_bytes(torch: Any, device: Any) -> int | None:
    kind = None if device is None else torch.device(device).type
    if kind in (None, "cuda") and torch.cuda.is_initialized():
        return int(torch.cuda.memory_allocated(device))
    if kind in (None, "mps") and torch.backends.mps.is_available():
        return int(torch.mps.current_allocated_memory())
    return None
