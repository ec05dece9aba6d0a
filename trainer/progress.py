"""A progress bar fed by events."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class ProgressBar:
    """A hook that shows step, loss and speed on a terminal.

    Args:
        console: Where it is drawn; a terminal's stderr, so that stdout stays clean.
    """

    every_steps = 1

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress.add_task("train", total=None, numbers="", start=False)
        self._loss = ""

    def on_event(self, event: str, payload: dict[str, Any]) -> None:
        """Follow a run from its start to its end."""
        if event == "train_start":
            self._progress.start()
            self._progress.start_task(self._task)
            self._progress.update(self._task, total=payload["target_step"], completed=payload["start_step"])
        elif event == "train_step":
            if "loss" in payload:
                self._loss = f"loss {payload['loss']:.3f}"
            numbers = f"{self._loss}  {payload.get('tokens_per_sec', 0.0):,.0f} tokens/s"
            self._progress.update(self._task, completed=payload["step"], numbers=numbers)
        elif event == "train_end":
            self.close()

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._progress.stop()
