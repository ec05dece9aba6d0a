"""Where the wall time of the training thread went, how fast it goes, and how much of it was kept."""

from __future__ import annotations

from collections import deque

from otel_training import catalog
from otel_training.state import State
from otel_training.values import Number

WINDOW_S = 60.0
"""Length of the window over which throughput is measured."""

_MIN_SPACING_S = 0.5

_STEP_STATES = frozenset({"step", "data_wait", "idle"})


class TimeBook:
    """Splits the time between two events of the training thread into disjoint states that add up to it.

    Each event claims the durations that it reports, clamped to the time since the event before; what is left
    goes to the state that the event says the rest was. Goodput follows from the same book.

    Args:
        state: Where ``training.time`` and the goodput are written.
        now_s: Monotonic time from which the book is kept.
    """

    def __init__(self, state: State, now_s: float) -> None:
        self._state = state
        self._last_s = now_s
        self._elapsed_s = 0.0
        self._prior_elapsed_s = 0.0
        self._kept_s = 0.0
        self._since_checkpoint_s = 0.0
        self._begun = False
        self.outside_steps_s = 0.0
        """Time since the last ``take_outside_steps`` that was neither step nor data wait."""

    def begin(self, prior_elapsed_s: Number | None, prior_kept_s: Number | None) -> None:
        """Open an attempt: what was not checkpointed is lost, and a trainer that knows the past says it.

        Args:
            prior_elapsed_s: Seconds that earlier attempts took, those of this process included.
            prior_kept_s: Step time of theirs that checkpoints kept.
        """
        self._since_checkpoint_s = 0.0
        begun, self._begun = self._begun, True
        if prior_elapsed_s is not None:
            if begun:  # what came before the first attempt of this process was its own start-up
                self._elapsed_s = 0.0
            self._prior_elapsed_s = max(0.0, prior_elapsed_s)
            self._kept_s = max(0.0, prior_kept_s or 0.0)

    def assign(self, now_s: float, rest: str, *claims: tuple[str, Number | None]) -> None:
        """Split the time up to ``now_s``.

        Args:
            now_s: Monotonic time of the event.
            rest: State of what no claim takes.
            claims: States with their durations in seconds, None when the event did not report it.
        """
        left_s = now_s - self._last_s
        if left_s <= 0.0:
            return
        self._last_s = now_s
        self._elapsed_s += left_s
        for name, claimed_s in claims:
            taken_s = min(claimed_s or 0.0, left_s)
            if taken_s > 0.0:
                self._add(name, taken_s)
                left_s -= taken_s
        if left_s > 0.0:
            self._add(rest, left_s)
        self._publish_goodput()

    def keep(self) -> None:
        """Count the step time so far as kept: a checkpoint holds it, or the run is complete."""
        self._kept_s += self._since_checkpoint_s
        self._since_checkpoint_s = 0.0

    def lose(self) -> None:
        """Drop the step time since the last checkpoint: the run failed."""
        self._since_checkpoint_s = 0.0
        self._publish_goodput()

    def take_outside_steps(self) -> float:
        """Return the seconds spent in neither step nor data wait since the last call."""
        outside_s, self.outside_steps_s = self.outside_steps_s, 0.0
        return outside_s

    def _add(self, name: str, seconds: float) -> None:
        self._state.add(catalog.TIME, seconds, name)
        if name == "step":
            self._since_checkpoint_s += seconds
        elif name not in _STEP_STATES:
            self.outside_steps_s += seconds

    def _publish_goodput(self) -> None:
        total_s = self._prior_elapsed_s + self._elapsed_s
        if total_s > 0.0:
            kept_s = self._kept_s + self._since_checkpoint_s
            self._state.set(catalog.GOODPUT_UTILIZATION, min(1.0, kept_s / total_s))


class RateWindow:
    """Rates over the last minute from running totals; the first window has its time, not only its steps."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, tuple[Number, ...]]] = deque()

    def restart(self, now_s: float, totals: tuple[Number, ...]) -> None:
        """Begin anew with ``totals`` as they stand now."""
        self._points.clear()
        self._points.append((now_s, totals))

    def rates(self, now_s: float, totals: tuple[Number, ...]) -> tuple[float, ...] | None:
        """Return each total's growth per second, or None as long as no time has passed."""
        points = self._points
        if not points or now_s <= points[0][0]:
            # Nothing to divide by: what arrives at the anchor's own instant belongs before the window.
            self.restart(now_s, totals)
            return None
        while len(points) > 1 and points[1][0] <= now_s - WINDOW_S:
            points.popleft()
        since_s, base = points[0]
        if now_s - points[-1][0] >= _MIN_SPACING_S:
            points.append((now_s, totals))
        passed_s = now_s - since_s
        return tuple([(total - start) / passed_s for total, start in zip(totals, base, strict=True)])
