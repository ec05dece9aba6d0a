"""A daemon thread that exports: on its interval, when asked, and one last time at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from otel_training.guard import Guard


class ExportLoop:
    """Calls ``export`` from a thread of its own, never from the caller's.

    The SDK's own processors and readers start threads in forked children and may block for long when they are
    shut down, so this drives them from outside. The thread exists from the start on, because none can be
    started once the interpreter ends.

    Args:
        subject: What is exported, for the log and the thread's name.
        export: Exports what there is and returns whether it all went.
        finish: Called once on the thread after the last export: shuts the exporters down.
        interval_s: Seconds between two exports; None: only when asked.
        guard: Takes what goes wrong.
    """

    def __init__(
        self,
        subject: str,
        export: Callable[[], bool],
        finish: Callable[[], None],
        interval_s: float | None,
        guard: Guard,
    ) -> None:
        self.subject = subject
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
        self._finished = False
        self._thread = threading.Thread(target=self._run, name=f"otel_training {subject}", daemon=True)

    def start(self) -> bool:
        """Start the thread and return whether the machine let it."""
        return self._guard.run(f"export of {self.subject}", self._thread.start)

    def ask(self) -> int:
        """Ask for an export soon, and return a ticket for it."""
        with self._condition:
            self._asked += 1
            self._condition.notify_all()
            return self._asked

    def wait(self, ticket: int, deadline_s: float) -> bool:
        """Wait for an export until a moment of ``time.monotonic``; return whether everything went by then."""
        with self._condition:
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
        """Wait for the end until a moment of ``time.monotonic``; return whether everything went by then."""
        if self._thread.is_alive():
            self._thread.join(max(0.0, deadline_s - time.monotonic()))
        return self._finished and self._all_went

    def _run(self) -> None:
        while not self._finished:
            with self._condition:
                if not self._stopping and self._asked == self._done:
                    self._condition.wait(self._interval_s)
                ticket, stopping = self._asked, self._stopping
            went: list[bool] = []
            self._guard.run(f"export of {self.subject}", lambda: went.append(self._export()))  # noqa: B023
            with self._condition:
                self._done, self._all_went = ticket, went == [True]
                self._condition.notify_all()
            if stopping:
                self._guard.run(f"shutdown of {self.subject}", self._finish)
                self._finished = True
