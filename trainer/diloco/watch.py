"""A worker's eye on the store: newer global weights are fetched while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable

from trainer.diloco.objects import GlobalWeights, read_newest_globals
from trainer.diloco.store import Store, StoreError

_JOIN_S = 1.0


class GlobalWatch:
    """Fetches each newer generation of the global weights, on a thread of its own.

    Args:
        store: Where they are.
        poll_s: Time between two looks, > 0.
        warn: Told when the store fails, once until it works again.
    """

    def __init__(self, store: Store, *, poll_s: float, warn: Callable[[str], None]) -> None:
        self._store = store
        self._poll_s = poll_s
        self._warn = warn
        self._newest: GlobalWeights | None = None
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="diloco-watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def newer_than(self, generation: int) -> GlobalWeights | None:
        """Return the newest global weights if they are newer than ``generation``."""
        newest = self._newest
        return newest if newest is not None and newest.generation > generation else None

    def wait_newer(self, generation: int, timeout_s: float) -> GlobalWeights | None:
        """Return global weights newer than ``generation``; None when none arrive in time."""
        with self._changed:
            self._changed.wait_for(lambda: self.newer_than(generation) is not None, timeout_s)
        return self.newer_than(generation)

    def close(self) -> None:
        """Stop; a look into a store that hangs is left behind."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._look()
            self._stopped.wait(self._poll_s)

    def _look(self) -> None:
        above = -1 if self._newest is None else self._newest.generation
        try:
            found = read_newest_globals(self._store, above)
        except StoreError as error:
            if not self._is_failing:
                self._warn(f"diloco: {error}; will be tried again")
            self._is_failing = True
            return
        self._is_failing = False
        if found is not None:
            with self._changed:
                self._newest = found
                self._changed.notify_all()
