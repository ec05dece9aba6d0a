"""When training ends: the one place that decides it, for all ranks at once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from trainer.ranks import Ranks
from trainer.signals import StopSignals

StopReason = Literal["target", "signal", "time"]

# What ranks tell each other: numbers, the highest of which counts. A signal is told as its own number.
_GO_ON, _TIME_IS_UP, _SIGNAL = 0, 1, 1000


@dataclass
class StopCondition:
    """Ends training at the target step, at a signal, or when the time is up.

    Args:
        target_step: Step to end at.
        max_time_s: Longest time, or None.
        signals: Notes signals to this rank.
        ranks: Who must end together: a signal to one rank, or a clock that is ahead, ends all at one step.
        elapsed_s: Seconds since training began.

    Attributes:
        signal: The signal that training ends by, once the ranks have agreed on it.
    """

    target_step: int
    max_time_s: float | None
    signals: StopSignals
    ranks: Ranks
    elapsed_s: Callable[[], float]
    signal: signal.Signals | None = None

    def agree(self, step: int) -> StopReason | None:
        """Return why training ends before the next step, the same on all ranks; None = it goes on.

        Args:
            step: The last applied step.
        """
        if step >= self.target_step:
            return "target"
        # sync: with more than one rank, their hosts wait for each other, at each step, for a few bytes over
        # gloo. Devices do not wait. Nothing else may decide to stop, or one rank would wait for ever.
        code = self.ranks.highest(self._code())
        if code > _SIGNAL:
            self.signal = signal.Signals(code - _SIGNAL)
            return "signal"
        return "time" if code == _TIME_IS_UP else None

    def is_near(self, step: int) -> bool:
        """Return whether this rank, for its part, would stop after ``step``."""
        return step >= self.target_step or self._code() != _GO_ON

    def _code(self) -> int:
        if self.signals.received is not None:
            return _SIGNAL + self.signals.received
        is_up = self.max_time_s is not None and self.elapsed_s() >= self.max_time_s
        return _TIME_IS_UP if is_up else _GO_ON
