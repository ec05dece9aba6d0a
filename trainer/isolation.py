"""Calls to code of others that may fail without ending training."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def attempt(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> tuple[R | None, Exception | None]:
    """Call and return ``(result, None)``, or ``(None, error)`` when it raised.

    ``KeyboardInterrupt``, ``SystemExit`` and the like go up: they ask for the end of the program.
    """
    try:
        return call(*args, **kwargs), None
    except Exception as error:  # noqa: BLE001 - a hook, a value's str() or a driver may raise anything
        return None, error


class Tally:
    """Counts faults and says when one is worth telling: the 1st, the 10th, the 100th, ... time.

    Attributes:
        count: Faults so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._tell_at = 1

    def add(self) -> bool:
        """Count one more fault and return whether to tell it."""
        self.count += 1
        if self.count < self._tell_at:
            return False
        self._tell_at *= 10
        return True
