"""Choice of the device to train on."""

from __future__ import annotations

import torch


def pick_device(name: str | torch.device | None = None) -> torch.device:
    """Return the device called ``name``.

    Args:
        name: ``cpu``, ``cuda``, ``cuda:1``, ``mps``, ...; ``auto`` or None = CUDA, else MPS, else the CPU.

    Raises:
        ValueError: There is no such device here.
    """
    if name not in (None, "auto"):
        try:
            device = torch.device(name)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
            reason = (str(error).splitlines() or [""])[0]
            raise ValueError(
                f"device {name!r} cannot be used ({reason}); accepted: auto, cpu, cuda, cuda:N, mps"
            ) from error
        return device
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
