"""Rates since the previous logged step."""

from __future__ import annotations

import time
from collections.abc import Callable


class Throughput:
    """Turns running totals into rates over the window since the previous mark.

    The first window begins at the making, with the totals of that moment, so that the first step's work is
    never divided by less than the time it took.

    Args:
        step: Steps done at the making.
        samples: Samples done at the making.
        tokens: Tokens done at the making.
        clock: Monotonic clock in seconds.
    """

    def __init__(
        self, step: int, samples: int, tokens: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._clock = clock
        self._mark = (clock(), step, samples, tokens)

    def rates(self, step: int, samples: int, tokens: int, *, mark: bool) -> dict[str, float]:
        """Return ``steps_per_sec``, ``samples_per_sec``, ``tokens_per_sec``; empty while no time has passed.

        Args:
            step: Steps done by now.
            samples: Samples done by now.
            tokens: Tokens done by now.
            mark: Whether the next window begins here (this step is logged).
        """
        then_s, *before = self._mark
        now_s = self._clock()
        window_s = now_s - then_s
        if window_s <= 0.0:
            return {}
        done = (step, samples, tokens)
        if mark:
            self._mark = (now_s, *done)
        names = ("steps_per_sec", "samples_per_sec", "tokens_per_sec")
        return {name: (new - old) / window_s for name, new, old in zip(names, done, before, strict=True)}
