"""When a run saves and restores, and what it says about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainer.checkpoint import CheckpointError, CheckpointManager
from trainer.report import AttemptReport
from trainer.resume import ResumableState
from trainer.totals import Totals


class Checkpointing:
    """Saves at a cadence and at the end, restores at the start, and emits the events of both.

    A save that fails (the disk is full) costs only itself: training goes on and the next save is tried.

    Args:
        manager: Where checkpoints go; None = nothing is saved or restored.
        state: What is saved.
        every_steps: Cadence, >= 1; None = at the end only.
        emit: Takes events.
        warn: Takes warnings for the log.
    """

    def __init__(
        self,
        manager: CheckpointManager | None,
        state: ResumableState,
        *,
        every_steps: int | None,
        emit: Callable[[str, dict[str, Any]], None],
        warn: Callable[[str], None],
    ) -> None:
        self.prior_kept_s = 0.0
        self._manager = manager
        self._state = state
        self._every_steps = every_steps
        self._emit = emit
        self._warn = warn
        self._tried_step = 0

    def begin(self, totals: Totals) -> None:
        """Take the run's present step as one that needs no saving."""
        self._tried_step = totals.step

    def restore(self, report: AttemptReport) -> Totals | None:
        """Restore the newest whole checkpoint and return its totals; None when there is none.

        Raises:
            CheckpointError: No checkpoint is whole, or it does not fit.
        """
        if self._manager is None:
            return None
        with report.watch.during("checkpoint_restore") as lap:
            found = self._manager.load_latest(self._warn)
            if found is None:
                self._warn(f"no checkpoint in {self._manager.directory} to resume from: starting over")
                return None
            path, state = found
            try:
                totals, self.prior_kept_s = self._state.load(state)
            except ValueError as error:
                raise CheckpointError(f"cannot resume from {path}: {error}") from error
        report.checkpoint = path
        payload = {"step": totals.step, "path": str(path), "duration_s": lap.duration_s}
        self._emit("checkpoint_restore", payload)
        return totals

    def save_if_due(self, totals: Totals, report: AttemptReport) -> bool:
        """Save at a step of the cadence that was not tried yet; return whether it was due."""
        due = self._every_steps is not None and totals.step % self._every_steps == 0
        if self._manager is None or not due or totals.step == self._tried_step:
            return False
        self._save(self._manager, totals, report)
        return True

    def save_last(self, totals: Totals, report: AttemptReport) -> None:
        """Save the last step, unless it is saved already."""
        if self._manager is None or (totals.step == self._tried_step and report.checkpoint_error is None):
            return
        self._save(self._manager, totals, report)

    def _save(self, manager: CheckpointManager, totals: Totals, report: AttemptReport) -> None:
        self._tried_step = totals.step
        report.checkpoint_error, size_bytes = None, None
        kept_s = self.prior_kept_s + report.watch.totals_s()["step"]
        with report.watch.during("checkpoint_save") as lap:
            try:
                # sync: the whole state is read from the device.
                size_bytes = manager.save(totals.step, self._state.collect(totals, kept_s)).size_bytes
            except CheckpointError as failure:
                error = failure.__cause__ or failure
                report.checkpoint_error = f"{type(error).__name__}: {error}"
                self._warn(f"{failure}; training goes on")
        path = manager.path_of(totals.step)
        payload: dict[str, Any] = {"step": totals.step, "path": str(path), "duration_s": lap.duration_s}
        if report.checkpoint_error is None:
            report.checkpoint = path
            payload["size_bytes"] = size_bytes
        else:
            payload["error"] = report.checkpoint_error.partition(":")[0]
        self._emit("checkpoint", payload)
