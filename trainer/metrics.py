"""MetricLogger: a run's events as text, as JSON lines and to hooks, without ever ending the run."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, TextIO

from trainer.encoding import by_str, escape_controls, json_line, text_line
from trainer.hooks import Hook, close_hook, handler, hook_name, integer_step, own_every_steps
from trainer.isolation import Tally, attempt
from trainer.sinks import FileSink, StreamSink

_log = logging.getLogger(__name__)

_LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}
_LEVEL_NAMES = {number: name for name, number in _LEVELS.items()}


def memory_usage_bytes(device: Any = None) -> int | None:
    """Return the bytes that PyTorch has allocated on a device, or ``None`` when that cannot be said.

    CUDA is asked only when it is in use already, so this makes no context on a GPU; else Apple's MPS is asked.
    PyTorch itself is not imported: a process without it has no memory of its on a device.

    Args:
        device: A ``torch.device``, or what makes one; ``None`` is the current device.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    used_bytes, _ = attempt(_allocated_bytes, torch, device)
    return used_bytes


def _allocated_bytes(torch: Any, device: Any) -> int | None:
    kind = None if device is None else torch.device(device).type
    if kind in (None, "cuda") and torch.cuda.is_initialized():
        return int(torch.cuda.memory_allocated(device))
    if kind in (None, "mps") and torch.backends.mps.is_available():
        return int(torch.mps.current_allocated_memory())
    return None


class _Delivery(NamedTuple):
    """An event on its way to the hooks that are still due for it."""

    due: deque[Hook]
    event: str
    payload: dict[str, Any]
    failures: list[tuple[Hook, Exception]]


@dataclass
class _HookFailures:
    """How often a hook failed, and what of that the log has been told."""

    tally: Tally = field(default_factory=Tally)
    told_count: int = 0
    last_event: str = ""
    last_error: str = ""


class MetricLogger:
    """Writes each event as a text line and a JSON line, then calls the hooks.

    Safe to use from several threads, from its own hooks, from signal handlers and in forked children. After it has
    been made, no fault of a file, a stream or a hook is raised: it is told on the standard library's ``logging`` (the
    1st, 10th, 100th, ... time), counted, and training goes on.

    Args:
        level: Lowest level of text lines: DEBUG, INFO, WARNING, ERROR or CRITICAL, or its number in ``logging``. Files of
            JSON lines and hooks get everything.
        file: Text file, in place of the stream.
        json_file: File of JSON lines.
        every_steps: Cadence of ``train_step`` in steps, >= 1.
        stream: Text stream; ``None`` is standard output.
        hooks: What hears the events: objects with ``on_event(event, payload)``, or functions. A hook with an
            attribute ``every_steps`` has a cadence of its own.
        clock: Monotonic seconds.
        wall_clock: Seconds since the epoch.

    Attributes:
        hooks: The hooks, a plain list.
        device: Device whose memory events tell; ``None`` is the current one.
        late_count: Events that came after ``close`` and went nowhere.

    Raises:
        ValueError: An argument is out of range.
        TypeError: A hook cannot be called.
        OSError: A file or its folder cannot be made.
    """

    def __init__(
        self,
        level: str | int = "INFO",
        file: str | os.PathLike[str] | None = None,
        json_file: str | os.PathLike[str] | None = None,
        every_steps: int = 1,
        stream: TextIO | None = None,
        hooks: Iterable[Hook] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._threshold = _level_number(level)
        if isinstance(every_steps, bool) or not isinstance(every_steps, int) or every_steps < 1:
            raise ValueError(f"every_steps={every_steps!r}: accepted is a whole number of steps, 1 or more")
        self.every_steps = every_steps
        self.hooks: list[Hook] = list(hooks or ())
        for hook in self.hooks:
            handler(hook)
        self.device: Any = None
        self.late_count = 0
        self._hook_failures: dict[str, _HookFailures] = {}
        self._clock = clock
        self._wall_clock = wall_clock
        self._stamp_second = -1
        self._stamp = ""
        self._text = _open_file("file", file, clock) or StreamSink(stream)
        self._json = _open_file("json_file", json_file, clock)
        self._lock = threading.RLock()
        self._deliveries: list[_Delivery] = []
        self._closed = False
        self._pid = os.getpid()
        self._start_s = clock()

    @property
    def level(self) -> str:
        """The lowest level of text lines."""
        return _LEVEL_NAMES[self._threshold]

    @property
    def hook_failure_counts(self) -> dict[str, int]:
        """How often each hook that failed did so, by the hook's name."""
        return {name: failures.tally.count for name, failures in self._hook_failures.items()}

    @property
    def write_failure_count(self) -> int:
        """Lines of text and JSON that were not written, or later than they should have been."""
        return self._text.failures.count + (self._json.failures.count if self._json else 0)

    def emit(self, event: str, payload: dict[str, Any]) -> None:
        """Write an event and pass it to the hooks.

        ``elapsed_s``, the seconds since the logger was made, and ``memory_bytes``, what the device's allocator holds,
        are added when absent. A ``train_step`` outside the cadence goes only to the hooks whose own cadence it meets.
        When this returns, the lines have been handed to the operating system.
        """
        if os.getpid() != self._pid:
            self._after_fork()
        # Asked before the lock as well: close() may be waiting for the thread that calls this.
        if self._closed:
            self.late_count += 1
            return
        with self._lock:
            if self._closed:
                self.late_count += 1
                return
            self._emit("INFO", event, payload)

    def log(self, level: str | int, message: str, *args: object) -> None:
        """Write a text line, ``message % args``, at a level.

        Raises:
            ValueError: There is no such level.
        """
        if _level_number(level) < self._threshold:
            return
        text, error = attempt(lambda: str(message) % args if args else str(message))
        if error is not None:
            text = " ".join(map(by_str, (message, *args)))
        if os.getpid() != self._pid:
            self._after_fork()
        with self._lock:
            if not self._closed:
                self._write_text(_LEVEL_NAMES[_level_number(level)], escape_controls(text or ""))

    def debug(self, message: str, *args: object) -> None:
        """Write a text line at DEBUG."""
        self.log("DEBUG", message, *args)

    def info(self, message: str, *args: object) -> None:
        """Write a text line at INFO."""
        self.log("INFO", message, *args)

    def warning(self, message: str, *args: object) -> None:
        """Write a text line at WARNING."""
        self.log("WARNING", message, *args)

    def error(self, message: str, *args: object) -> None:
        """Write a text line at ERROR."""
        self.log("ERROR", message, *args)

    def close(self) -> None:
        """Close the hooks that have ``close()``, then the files. A second call does nothing.

        An event that is on its way when this is called, from a hook or a signal handler, still reaches every hook.
        """
        if os.getpid() != self._pid:
            self._after_fork()
        with self._lock:
            if self._closed:
                return
            for delivery in reversed(self._deliveries):
                self._deliver(delivery)
            self._tell_untold()
            self._closed = True
        # Without the lock: a hook's close() may wait for a thread of its own that is about to emit.
        try:
            for hook in {id(hook): hook for hook in self.hooks}.values():
                _, error = attempt(close_hook, hook)
                if error is not None:
                    self._count_failure(hook, "close", error)
        finally:
            with self._lock:
                self._tell_untold()
                self._text.close()
                if self._json:
                    self._json.close()

    def __enter__(self) -> MetricLogger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _emit(self, level: str, event: str, payload: dict[str, Any], but: Hook | None = None) -> None:
        own = dict(payload)
        if "elapsed_s" not in own:
            own["elapsed_s"] = self._clock() - self._start_s
        step = integer_step(event, own)
        if step is None or step % self.every_steps == 0:
            if "memory_bytes" not in own:
                used_bytes = memory_usage_bytes(self.device)
                if used_bytes is not None:
                    own["memory_bytes"] = used_bytes
            self._write(level, event, own)
        if not self.hooks:
            return
        due = deque(hook for hook in self.hooks if hook is not but and self._is_due(hook, step))
        delivery = _Delivery(due, event, own, [])
        deliveries = self._deliveries
        deliveries.append(delivery)
        try:
            self._deliver(delivery)
        finally:
            deliveries.remove(delivery)
        for hook, error in delivery.failures:
            self._hook_failed(hook, event, error)

    def _write(self, level: str, event: str, payload: dict[str, Any]) -> None:
        if _LEVELS[level] >= self._threshold:
            self._write_text(level, text_line(event, payload))
        if self._json:
            self._json.write_bytes(json_line(event, payload))

    def _write_text(self, level: str, line: str) -> None:
        now = int(self._wall_clock())
        if now != self._stamp_second:
            self._stamp_second, self._stamp = now, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
        self._text.write(f"{self._stamp} | {level} | {line}\n")

    def _is_due(self, hook: Hook, step: int | None) -> bool:
        return step is None or step % (own_every_steps(hook) or self.every_steps) == 0

    def _deliver(self, delivery: _Delivery) -> None:
        """Call the hooks that are due. Each is taken out first: close() in between goes on from there."""
        while delivery.due:
            hook = delivery.due.popleft()
            _, error = attempt(_call, hook, delivery.event, delivery.payload)
            if error is not None:
                delivery.failures.append((hook, error))

    def _hook_failed(self, hook: Hook, event: str, error: Exception) -> None:
        """Count a failure and, at growing intervals, tell the log and the other hooks."""
        failures, tell = self._count_failure(hook, event, error)
        # Never about hook_failed itself: two broken hooks would tell each other of it for ever.
        if tell and event != "hook_failed" and not self._closed:
            failures.told_count = failures.tally.count
            self._emit("WARNING", "hook_failed", _failure_payload(hook_name(hook), failures), but=hook)

    def _count_failure(self, hook: Hook, event: str, error: Exception) -> tuple[_HookFailures, bool]:
        name = hook_name(hook)
        failures = self._hook_failures.setdefault(name, _HookFailures())
        failures.last_event = event
        failures.last_error = f"{type(error).__name__}: {by_str(error)}"
        tell = failures.tally.add()
        if tell:
            _log.warning(
                "hook %s failed at %s (%d times so far; training goes on)",
                name,
                event,
                failures.tally.count,
                exc_info=error,
            )
        return failures, tell

    def _tell_untold(self) -> None:
        """Write the final count of each hook that failed after it was last told."""
        for name, failures in list(self._hook_failures.items()):
            if failures.tally.count > failures.told_count:
                failures.told_count = failures.tally.count
                payload = _failure_payload(name, failures)
                if self._closed:
                    self._write("WARNING", "hook_failed", payload)
                else:
                    self._emit("WARNING", "hook_failed", payload)

    def _after_fork(self) -> None:
        """Make a forked child's copy usable: its lock may be held by a thread that the child does not have."""
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._deliveries = []
        for sink in (self._text, self._json):
            if isinstance(sink, FileSink):
                sink.after_fork()


def _call(hook: Hook, event: str, payload: dict[str, Any]) -> None:
    handler(hook)(event, dict(payload))


def _failure_payload(name: str, failures: _HookFailures) -> dict[str, Any]:
    return {
        "hook": name,
        "failed_event": failures.last_event,
        "error": failures.last_error,
        "count": failures.tally.count,
    }


def _level_number(level: str | int) -> int:
    number = _LEVELS.get(level.upper()) if isinstance(level, str) else level
    if number not in _LEVEL_NAMES:
        raise ValueError(f"level={level!r}: accepted is one of {', '.join(_LEVELS)}")
    return number


def _open_file(
    setting: str, path: str | os.PathLike[str] | None, clock: Callable[[], float]
) -> FileSink | None:
    if path is None:
        return None
    try:
        return FileSink(path, clock)
    except OSError as error:
        reason = f"{setting}={os.fspath(path)!r}: a file that can be written is wanted ({error.strerror})"
        raise OSError(error.errno, reason) from error
