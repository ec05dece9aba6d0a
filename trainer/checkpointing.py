"""When a run saves and restores, and what it says about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.checkpoint import CheckpointError, CheckpointManager
from trainer.ranks import Ranks
from trainer.report import AttemptReport
from trainer.resume import ResumableState
from trainer.totals import Totals


class Checkpointing:
    """Saves at a cadence and at the end, restores at the start, and emits the events of both.

    A save that fails (the disk is full) costs only itself: training goes on and the next save is tried. All
    ranks take part in each save and restore; rank 0 writes, and tells of it.

    Args:
        manager: Where checkpoints go; None = nothing is saved or restored.
        state: What is saved.
        ranks: Ranks that train together.
        every_steps: Cadence, >= 1; None = at the end only.
        emit: Takes events.
        warn: Takes warnings for the log.
    """

    def __init__(
        self,
        manager: CheckpointManager | None,
        state: ResumableState,
        ranks: Ranks,
        *,
        every_steps: int | None,
        emit: Callable[[str, dict[str, Any]], None],
        warn: Callable[[str], None],
    ) -> None:
        self.prior_kept_s = 0.0
        self._manager = manager
        self._state = state
        self._ranks = ranks
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
            found = self._find(self._manager)
            if found is None:
                self._warn(f"no checkpoint in {self._manager.directory} to resume from: starting over")
                return None
            path, state = found
            try:
                totals, self.prior_kept_s = self._state.load(state, self._ranks)
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

    def save_last(self, totals: Totals, report: AttemptReport, *, again: bool = False) -> None:
        """Save the last step; if it is saved already, only when ``again`` says that weights have changed."""
        is_saved = totals.step == self._tried_step and report.checkpoint_error is None
        if self._manager is None or (is_saved and not again):
            return
        self._save(self._manager, totals, report)

    def _find(self, manager: CheckpointManager) -> tuple[Path, dict[str, Any]] | None:
        """Return path and state of the newest whole checkpoint: rank 0 says which one that is."""
        read: list[dict[str, Any]] = []

        def newest() -> Path | None:
            found = manager.load_latest(self._warn)
            if found is None:
                return None
            read.append(found[1])
            return found[0]

        path = self._ranks.from_first(newest)
        if path is None:
            return None
        return path, read[0] if read else manager.load(path)

    def _save(self, manager: CheckpointManager, totals: Totals, report: AttemptReport) -> None:
        self._tried_step = totals.step
        report.checkpoint_error, size_bytes = None, None
        kept_s = self.prior_kept_s + report.watch.totals_s()["step"]
        # Other ranks wait for rank 0 here, so that none of them takes the wait for a slow step.
        with report.watch.during("checkpoint_save" if self._ranks.is_first else "idle") as lap:
            own = self._ranks.gather(self._state.collect_own(totals))
            if own is not None:
                try:
                    # sync: the whole state is read from the device.
                    size_bytes = manager.save(totals.step, self._state.collect(own, kept_s)).size_bytes
                except CheckpointError as failure:
                    error = failure.__cause__ or failure
                    report.checkpoint_error = f"{type(error).__name__}: {error}"
                    self._warn(f"{failure}; training goes on")
            # All know of a failure, because all try again at the end.
            report.checkpoint_error = self._ranks.from_first(lambda: report.checkpoint_error)
        path = manager.path_of(totals.step)
        if report.checkpoint_error is None:
            report.checkpoint = path
        if self._ranks.is_first:
            self._tell(totals.step, path, lap.duration_s, size_bytes, report.checkpoint_error)

    def _tell(
        self, step: int, path: Path, duration_s: float, size_bytes: int | None, error: str | None
    ) -> None:
        payload: dict[str, Any] = {"step": step, "path": str(path), "duration_s": duration_s}
        if error is None:
            payload["size_bytes"] = size_bytes
        else:
            payload["error"] = error.partition(":")[0]
        self._emit("checkpoint", payload)
