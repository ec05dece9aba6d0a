"""Running figures of steps: what a window saw, and which step was slow."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque

from otel_training.values import Number

_REMEMBERED_STEPS = 101
_ENOUGH_STEPS = 10
_SHORTEST_SLOW_S = 0.001
"""Below the finest bucket of step durations, the machine's noise is many medians long and no news."""


class SlowSteps:
    """Tells a slow step by the median of the steps before it.

    Args:
        factor: A step is slow when it takes more than this many medians.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._in_order: deque[float] = deque()
        self._by_size: list[float] = []

    def is_slow(self, duration_s: float) -> bool:
        """Judge a step by those before it, then remember it; the first few are never slow."""
        by_size = self._by_size
        slow = (
            len(by_size) >= _ENOUGH_STEPS
            and duration_s >= _SHORTEST_SLOW_S
            and duration_s > self._factor * by_size[len(by_size) // 2]
        )
        self._in_order.append(duration_s)
        insort(by_size, duration_s)
        if len(self._in_order) > _REMEMBERED_STEPS:
            place = bisect_left(by_size, self._in_order.popleft())
            # A slice: after an interrupt between the two lines above, the duration is missing.
            del by_size[place : place + 1]
        return slow


class WindowFigures:
    """What happened between the start and the end of a window."""

    def __init__(self) -> None:
        self.first_step: Number | None = None
        self.last_step: Number | None = None
        self.loss: Number | None = None
        self.nonfinite_count = 0
        self.steps_count = 0
        self.total_s = 0.0
        self.shortest_s = math.inf
        self.longest_s = 0.0

    def add_step(self, step: Number | None, duration_s: float | None, applied: Number) -> None:
        """Take in a step event that stands for ``applied`` steps of ``duration_s`` seconds each."""
        if step is not None:
            self.first_step = step if self.first_step is None else self.first_step
            self.last_step = step
        if duration_s is not None and applied > 0:
            self.steps_count += int(applied)
            self.total_s += duration_s * applied
            self.shortest_s = min(self.shortest_s, duration_s)
            self.longest_s = max(self.longest_s, duration_s)
