"""Where the wall time of a run goes: disjoint states that add up to the whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

STATES = (
    "step",
    "data_wait",
    "checkpoint_save",
    "checkpoint_restore",
    "compile",
    "validation",
    "outer_sync",
    "startup",
    "idle",
)


@dataclass(slots=True)
class Lap:
    """One stay in a state; ``duration_s`` is known once it is over."""

    duration_s: float = 0.0


class Stopwatch:
    """Books every second to exactly one state of ``STATES``, from its making on.

    Args:
        state: State to begin in.
        clock: Monotonic clock in seconds.
    """

    def __init__(self, state: str = "startup", clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._state = state
        self._began_s = self._since_s = clock()
        self._total_s = dict.fromkeys(STATES, 0.0)

    def switch(self, state: str) -> None:
        """Book the time since the last switch to the present state and go on in ``state``."""
        now_s = self._clock()
        self._total_s[self._state] += now_s - self._since_s
        self._state, self._since_s = state, now_s

    @contextmanager
    def during(self, state: str) -> Iterator[Lap]:
        """Be in ``state`` inside the block, then in the former state again, also when the block raises."""
        former, lap = self._state, Lap()
        self.switch(state)
        began_s = self._since_s
        try:
            yield lap
        finally:
            self.switch(former)
            lap.duration_s = self._since_s - began_s

    def totals_s(self) -> dict[str, float]:
        """Seconds by state up to now; their sum is :meth:`elapsed_s` up to rounding."""
        self.switch(self._state)
        return dict(self._total_s)

    def elapsed_s(self) -> float:
        """Seconds since the making."""
        return self._clock() - self._began_s
