"""Which device this process trains on, as far as anybody has said."""

from __future__ import annotations

import re
import sys
from typing import Any

from otel_training.guard import attempt


class RankDevice:
    """The device of one rank: what ``start(device=...)`` said, else what the run's events say.

    Args:
        name: The device as PyTorch names it, such as ``cuda:1``; None when nobody has said.
    """

    def __init__(self, name: str | None = None) -> None:
        self.kind: str | None = None
        self.index: int | None = None
        self._given = name is not None
        if name is not None:
            self._take(name)

    @property
    def name(self) -> str | None:
        """The device as PyTorch names it, with its index as soon as that is known."""
        return self.kind if self.kind is None or self.index is None else f"{self.kind}:{self.index}"

    def index_of(self, kind: str) -> int | None:
        """Return the index of this process's device of a kind, or None when it is not known."""
        return self.index if self.kind == kind else None

    def learn(self, device: Any = None) -> bool:
        """Take what an event says of the device; called on the thread that trains.

        CUDA's current device is each thread's own, so that this is the one place to ask for it.

        Args:
            device: The event's device, a name or a ``torch.device``; None when it says nothing.

        Returns:
            Whether anything new is known.
        """
        before = self.name
        if device is not None and not self._given:
            self._take(attempt(str, device) or "")
        if self.index is None and self.kind in ("cuda", None):
            cuda = getattr(sys.modules.get("torch"), "cuda", None)
            if cuda is not None and attempt(cuda.is_initialized):
                current = attempt(cuda.current_device)
                if current is not None:
                    self.kind, self.index = "cuda", current
        return self.name != before

    def _take(self, name: str) -> None:
        match = re.fullmatch(r"([a-z][a-z0-9_]*)(?::([0-9]+))?", name)
        if match and (match[1] != self.kind or match[2] is not None):
            self.kind, self.index = match[1], None if match[2] is None else int(match[2])
