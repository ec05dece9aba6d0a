"""What a trainer's running totals add, whatever the cadence, after resumes, resets and rewinds."""

from __future__ import annotations

from otel_training.values import Number


class StepCount:
    """Counts applied steps from step numbers: by differences, never by events."""

    def __init__(self) -> None:
        self.last: Number | None = None
        self._highest: Number = 0

    def begin(self, start_step: Number, last_step_reached: Number | None) -> None:
        """Start at ``start_step``; steps up to ``last_step_reached`` were done before and come again."""
        if last_step_reached is not None:
            self._highest = last_step_reached
        elif start_step <= 0:
            self._highest = 0
        self._highest = max(self._highest, start_step)
        self.last = start_step

    def advance(self, step: Number) -> tuple[Number, Number]:
        """Return how many steps were applied since the last call, and how many of them were replays."""
        if self.last is None or step < self.last:
            # The first step of a trainer that announced none, or a rewind: this step itself was done.
            before: Number = step - 1
        else:
            before = self.last
        self.last = step
        replays = max(0, min(step, self._highest) - before)
        self._highest = max(self._highest, step)
        return step - before, replays


class Total:
    """Turns a running total into increments.

    Some trainers report what one step did instead of a running total (speedtronic's ``micro_batches``). A
    total grows with every applied step, so a second reading that does not grow shows which of the two it is.
    """

    def __init__(self) -> None:
        self.counted: Number | None = None
        """Sum of all increments; None before the first reading."""
        self._base: Number | None = None
        self._readings = 0
        self._owed: Number = 0
        self._per_step = False

    def begin(self, base: Number | None) -> None:
        """Start from ``base``, or from the first total seen when it is not known."""
        self._base = base
        self._readings = 0
        self._per_step = False

    def advance(self, value: Number, steps: Number) -> Number:
        """Return what the reading ``value`` adds after ``steps`` applied steps; never below 0."""
        increment = self._increment(max(0, value), steps)
        self.counted = (self.counted or 0) + increment
        return increment

    def _increment(self, value: Number, steps: Number) -> Number:
        base, self._base = self._base, value
        self._readings += 1
        if self._per_step:
            return value * steps
        grown = 0 if base is None else max(0, value - base)
        if self._readings == 1:
            self._owed = max(0, value * steps - grown)
        elif self._readings == 2 and steps > 0 and base is not None and 0 < value <= base:
            self._per_step = True
            return value * steps + self._owed
        return grown
