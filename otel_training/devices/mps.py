"""Memory of Apple's GPU, from PyTorch."""

from __future__ import annotations

from typing import Any

from otel_training import catalog
from otel_training.devices.reading import Reading


def read(mps: Any, _previous: Reading | None) -> Reading:
    """Read what ``torch.mps`` has allocated; ``mps`` is that module."""
    reading = Reading()
    reading.put(catalog.MPS_ALLOCATED, reading.ask("allocated memory", mps.current_allocated_memory))
    reading.put(
        catalog.MPS_DRIVER_ALLOCATED, reading.ask("memory of the driver", mps.driver_allocated_memory)
    )
    return reading
