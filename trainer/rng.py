"""State of every random number generator a training process draws from."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def capture_rng() -> dict[str, Any]:
    """Return the states of Python, torch, CUDA (once initialised) and NumPy (when imported).

    Plain values and tensors only, so that a checkpoint holding it loads with ``weights_only=True``.
    """
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, gauss = numpy.random.get_state()
        state["numpy"] = (str(name), keys.tolist(), int(position), int(has_gauss), float(gauss))
    return state


def restore_rng(state: dict[str, Any]) -> None:
    """Put back what :func:`capture_rng` returned; generators that are absent here are left out."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        numpy.random.set_state(state["numpy"])


@contextmanager
def preserved_rng() -> Iterator[None]:
    """Leave all generators after the block as they were before it."""
    state = capture_rng()
    try:
        yield
    finally:
        restore_rng(state)
