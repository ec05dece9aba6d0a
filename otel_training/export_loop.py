"""A daemon thread that exports one signal: on its interval, when asked, and one last time at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from otel_training.guard import Guard


class ExportLoop:
    """Calls ``export`` from a thread of its own, never from the caller's.

    The SDK's own processors and readers start threads in forked children and may block for long when they are
    shut down, so this drives theirs from outside.

    Args:
        signal: ``metrics`` or ``spans``; part of the thread's name.
        export: Exports what there is and returns whether it all went.
        finish: Called once on the thread after the last export: shuts the exporters down.
        interval_s: Seconds between two exports.
        guard: Takes what goes wrong.
    """

    def __init__(
        self,
        signal: str,
        export: Callable[[], bool],
        finish: Callable[[], None],
        interval_s: float,
        guard: Guard,
    ) -> None:
        self.signal = signal
        self._export = export
        self._finish = finish
        self._interval_s = interval_s
        self._guard = guard
        # Re-entrant: a signal handler of the main thread may flush while that thread is in here.
        self._condition = threading.Condition(threading.RLock())
        self._asked = 0
        self._done = 0
        self._all_went = True
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"otel_training {signal}", daemon=True)

    def start(self) -> bool:
        """Start the thread and return whether the machine let it."""
        return self._guard.run(f"export of {self.signal}", self._thread.start)

    def wake(self) -> None:
        """Export soon, without waiting for it."""
        with self._condition:
            self._asked += 1
            self._condition.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Export now and return whether everything went within ``timeout_s`` seconds."""
        deadline_s = time.monotonic() + timeout_s
        with self._condition:
            self._asked += 1
            ticket = self._asked
            self._condition.notify_all()
            while self._done < ticket and self._thread.is_alive():
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return False
                self._condition.wait(left_s)
            return self._done >= ticket and self._all_went

    def stop(self) -> None:
        """Ask for the last export, after which the thread ends."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()

    def join(self, deadline_s: float) -> bool:
        """Wait for the thread until a moment of ``time.monotonic`` and return whether it ended."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, deadline_s - time.monotonic()))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._condition:
                if not self._stopping and self._asked == self._done:
                    self._condition.wait(self._interval_s)
                ticket, stopping = self._asked, self._stopping
            self._all_went = False
            self._guard.run(f"export of {self.signal}", self._export_once)
            with self._condition:
                self._done = ticket
                self._condition.notify_all()
            if stopping:
                self._guard.run(f"shutdown of {self.signal}", self._finish)
                return

    def _export_once(self) -> None:
        self._all_went = self._export()
