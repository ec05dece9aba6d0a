"""What a trainer needs to know of DiLoCo: begin, sync, finish, close."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from trainer.diloco.coordinator import Coordinator
from trainer.diloco.objects import read_parameters
from trainer.diloco.outer import OuterLoop
from trainer.diloco.settings import DiLoCoSection
from trainer.diloco.store import Store
from trainer.stopwatch import Stopwatch


class DiLoCo:
    """A training process's part in DiLoCo: a worker, and in role ``single`` its master as well.

    Args:
        settings: Role ``single`` or ``worker`` and the schedule.
        store: Where workers and master meet.
        options: Keyword arguments of the store's file system.

    Raises:
        ValueError: The role does not train, or the store cannot be opened.
    """

    def __init__(self, settings: DiLoCoSection, store: str, options: dict[str, Any] | None = None) -> None:
        if not settings.is_worker:
            raise ValueError(f"diloco.role={settings.role!r} does not train; accepted: single, worker")
        self._settings = settings
        self._worker = settings.worker or settings.role
        self._store = Store(store, options)
        self._coordinator: Coordinator | None = None
        self._outer_loop: OuterLoop | None = None

    def begin(
        self,
        model: nn.Module,
        step: int,
        *,
        emit: Callable[[str, dict[str, Any]], None],
        warn: Callable[[str], None],
        watch: Stopwatch,
        is_stopping: Callable[[], bool],
    ) -> None:
        """Join at ``step``; see :class:`Coordinator` for the arguments.

        Raises:
            JoinError: No global weights came in time, or they do not fit the model.
        """
        if self._settings.role == "single":
            self._outer_loop = OuterLoop(
                self._settings, self._store, read_parameters(model), emit=emit, warn=warn
            )
            self._outer_loop.start()
        self._coordinator = Coordinator(
            self._settings,
            self._worker,
            self._store,
            model,
            emit=emit,
            warn=warn,
            watch=watch,
            is_stopping=is_stopping,
        )
        self._coordinator.begin(step)

    def sync(self, step: int) -> None:
        """Do what is due between two steps."""
        if self._coordinator is not None:
            self._coordinator.sync(step)

    def finish(self, step: int, *, is_complete: bool) -> bool:
        """Get the last local work into the global weights and adopt them, in time; return whether so."""
        return self._coordinator is not None and self._coordinator.finish(step, is_complete=is_complete)

    def close(self) -> None:
        """Stop all threads; called once more or without a start, it does nothing."""
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is not None:
            coordinator.close()
        outer_loop, self._outer_loop = self._outer_loop, None
        if outer_loop is not None:
            outer_loop.close(self._settings.shutdown_timeout_s)
