"""Weights & Biases: each event becomes a row of the run's history."""

from __future__ import annotations

import os
from typing import Any

from trainer.encoding import plain, tensor_value
from trainer.integrations import is_main_rank
from trainer.payloads import copy_with


class WandbHook:
    """Logs each event to a Weights & Biases run, with ``step`` as the step metric; on rank 0 only.

    Args:
        project: Name of the project; ``None`` leaves it to wandb's own settings.
        **settings: Further arguments of ``wandb.init``.

    Attributes:
        location: URL of the run, or its folder when offline; ``None`` on other ranks.

    Raises:
        ModuleNotFoundError: wandb is not installed.
        ValueError: wandb cannot begin a run: no API key, settings it does not accept, no connection.
    """

    def __init__(self, project: str | None = None, **settings: Any) -> None:
        self._run: Any = None
        self.location: str | None = None
        self._open = is_main_rank()
        self._pid = os.getpid()
        if not self._open:
            return
        try:
            import wandb
        except ModuleNotFoundError as error:
            if error.name != "wandb":
                raise
            raise ModuleNotFoundError(
                'WandbHook needs wandb: pip install "otel-training[wandb]"', name="wandb"
            ) from None
        try:
            self._run = wandb.init(project=project, **settings)
        except wandb.Error as error:
            raise ValueError(f"wandb cannot begin a run: {error}") from error
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        self.location = self._run.url or self._run.dir

    def on_event(self, event: str, payload: dict[str, Any]) -> None:
        """Log the payload and the event's name as one row."""
        # A forked child shares the run's connection with its parent and must leave it alone.
        if not self._open or os.getpid() != self._pid:
            return
        try:
            # Images, tables and the like are passed on; a tensor could be on a GPU, and wandb would read it.
            self._run.log({**copy_with(payload, tensor_value), "event": event})
        except (TypeError, ValueError, RecursionError):
            # wandb refuses the whole row for one value or key that it does not know.
            self._run.log({**plain(payload), "event": event})

    def close(self) -> None:
        """Finish the run: what is still queued is sent. A second call does nothing."""
        if self._open and os.getpid() == self._pid:
            self._open = False
            self._run.finish()
