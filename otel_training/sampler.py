"""A daemon thread that reads the devices on a clock of its own, so that neither a step nor a scrape waits."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from otel_training import catalog
from otel_training.device_cells import DeviceCells
from otel_training.devices.reading import Reading, Unavailable
from otel_training.devices.sources import Source
from otel_training.guard import describe, logger, outcome
from otel_training.state import State

SECOND_READING_AFTER_S = 1.0
"""Utilization needs two readings; a short run shall see it too."""

FAILURES_BEFORE_PAUSE = 3
LONGEST_PAUSE_S = 600.0


@dataclass
class _Watch:
    """A source and how it has been doing."""

    source: Source
    previous: Reading | None = None
    failures_in_a_row: int = 0
    paused_until_s: float = float("-inf")
    told: set[str] = field(default_factory=set)


class Sampler:
    """Reads each source once for all who look at the state.

    Args:
        sources: What is read.
        cells: Where it is written.
        state: The numbers of the run, whose lock is held while a source's cells are written.
        interval_s: Seconds between two readings.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        sources: Iterable[Source],
        cells: DeviceCells,
        state: State,
        interval_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watches = [_Watch(source) for source in sources]
        self._cells = cells
        self._state = state
        self._interval_s = interval_s
        self._clock = clock
        self._pid = os.getpid()
        # Re-entrant: a signal handler of the main thread may come in while that thread is in here.
        self._condition = threading.Condition(threading.RLock())
        self._asked = False
        self._stopping = False
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name="otel_training devices", daemon=True)

    def start(self) -> None:
        """Start the thread; its first reading is made at once, on it."""
        self._cells.on_device_known = self.wake
        _, error = outcome(self._thread.start)
        if error is not None:
            logger.warning("devices are not read: %s", describe(error))

    def wake(self) -> None:
        """Read soon, without waiting for it."""
        with self._condition:
            self._asked = True
            self._condition.notify_all()

    def stop(self, deadline_s: float) -> bool:
        """Make a last reading, end the thread, and return whether it ended in time.

        Args:
            deadline_s: A moment of ``time.monotonic`` from which on the reading is given up.
        """
        if os.getpid() != self._pid or self._thread.ident is None:
            return True  # a forked child has no such thread
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        self._thread.join(max(0.0, deadline_s - time.monotonic()))
        with self._state.lock:
            self._abandoned = True
        return not self._thread.is_alive()

    def read_once(self) -> None:
        """Read every source that is not paused."""
        for watch in self._watches:
            if self._clock() >= watch.paused_until_s:
                self._read(watch)

    def _run(self) -> None:
        wait_s = min(SECOND_READING_AFTER_S, self._interval_s)
        while True:
            with self._condition:
                stopping, self._asked = self._stopping, False
            self.read_once()
            if stopping:
                return
            with self._condition:
                self._condition.wait_for(lambda: self._asked or self._stopping, wait_s)
            wait_s = self._interval_s

    def _read(self, watch: _Watch) -> None:
        began_s = self._clock()
        answer, error = outcome(watch.source.read, watch.previous, began_s)
        reading = answer or Reading()
        if isinstance(error, Unavailable):
            self._tell(watch, logging.INFO, str(error), f"nothing is read: {error}")
        elif error is not None:
            reading.failures["anything"] = describe(error)
        with self._state.lock:
            if not self._abandoned:
                self._write(watch, reading, None if error else self._clock() - began_s)
        watch.previous = reading
        self._judge(watch, reading)

    def _write(self, watch: _Watch, reading: Reading, duration_s: float | None) -> None:
        name = watch.source.name
        # A source that has never said anything leaves alone what events may have told in its place.
        if reading.samples or (watch.previous is not None and watch.previous.samples):
            self._cells.replace(name, reading.samples)
        if duration_s is None:
            self._state.withdraw(catalog.DEVICE_READ_DURATION, name)
        else:
            self._state.set(catalog.DEVICE_READ_DURATION, duration_s, name)
        if reading.failures:
            self._state.add(catalog.DEVICE_READ_FAILURES, len(reading.failures), name)

    def _judge(self, watch: _Watch, reading: Reading) -> None:
        """Tell what went wrong, and give a source that fails as a whole a rest."""
        for what, why in reading.unsupported.items():
            self._tell(watch, logging.INFO, what, f"{what} is not offered here: {why}")
        for what, why in reading.failures.items():
            self._tell(watch, logging.WARNING, what, f"cannot read {what}, said once only: {why}")
        failed = bool(reading.failures) and not reading.samples
        watch.failures_in_a_row = watch.failures_in_a_row + 1 if failed else 0
        if watch.failures_in_a_row >= FAILURES_BEFORE_PAUSE:
            self._pause(watch)

    def _pause(self, watch: _Watch) -> None:
        doublings = min(watch.failures_in_a_row - FAILURES_BEFORE_PAUSE + 1, 10)
        pause_s = max(self._interval_s, min(LONGEST_PAUSE_S, self._interval_s * 2**doublings))
        watch.paused_until_s = self._clock() + pause_s
        self._tell(
            watch, logging.WARNING, "pause", "failed several times in a row, read less often from now on"
        )

    def _tell(self, watch: _Watch, level: int, subject: str, message: str) -> None:
        """Log a line, once per source and subject."""
        if subject not in watch.told:
            watch.told.add(subject)
            logger.log(level, "device metrics, source %s: %s", watch.source.name, message)
