"""MetricLogger: a run's events as text, as JSON lines and to hooks, without ever ending the run."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable
from types import TracebackType
from typing import Any, TextIO

from trainer.dispatch import Dispatcher
from trainer.encoding import by_str, escape_controls, exact_str, json_line, text_line
from trainer.hooks import Hook, handler, hook_name, integer_step, own_every_steps
from trainer.isolation import attempt
from trainer.memory import memory_usage_bytes
from trainer.sinks import FileSink, StreamSink

__all__ = ["MetricLogger", "memory_usage_bytes"]

_LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}
_LEVEL_NAMES = {number: name for name, number in _LEVELS.items()}


class MetricLogger:
    """Writes each event as a text line and a JSON line, then calls the hooks.

    Safe to use from several threads, from its own hooks, from signal handlers and in forked children. Once it
    is made, no fault of a file, a stream or a hook is raised: it is warned about on the standard library's
    ``logging`` (the 1st, 10th, 100th, ... time), counted, and training goes on.

    Args:
        level: Lowest level of text lines: DEBUG, INFO, WARNING, ERROR, CRITICAL or its number in ``logging``.
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
        every_steps: The cadence.
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
        self._threshold = _threshold(level)
        if type(every_steps) is not int or every_steps < 1:
            raise ValueError(f"every_steps={every_steps!r}: accepted is a whole number of steps, 1 or more")
        if (
            file is not None
            and json_file is not None
            and os.path.realpath(file) == os.path.realpath(json_file)
        ):
            raise ValueError(f"json_file={os.fspath(json_file)!r}: accepted is another file than the text's")
        self.every_steps = every_steps
        self.hooks: list[Hook] = list(hooks or ())
        for hook in self.hooks:
            handler(hook)
        self.device: Any = None
        self.late_count = 0
        self._clock = clock
        self._wall_clock = wall_clock
        self._stamp = (-1, "")
        self._json = None if json_file is None else _open_file("json_file", json_file, clock)
        self._text = StreamSink(stream) if file is None else _open_file("file", file, clock)
        self._dispatcher = Dispatcher()
        self._lock = threading.RLock()
        self._closed = False
        self._pid = os.getpid()
        self._start_s = clock()

    @property
    def level(self) -> str:
        """Lowest level of text lines."""
        return _LEVEL_NAMES[self._threshold]

    @property
    def hook_failure_counts(self) -> dict[str, int]:
        """How often each hook that failed did so, by the hook's name."""
        return self._dispatcher.failure_counts

    @property
    def write_failure_count(self) -> int:
        """Lines of text and JSON that were not written, or later than they should have been."""
        return self._text.failures.count + (self._json.failures.count if self._json else 0)

    def emit(self, event: str, payload: dict[str, Any]) -> None:
        """Write an event and pass it to the hooks.

        ``elapsed_s``, the seconds since the logger was made, and ``memory_bytes``, what the device's
        allocator has handed out, are added when absent. A ``train_step`` outside the cadence goes only to
        hooks whose own cadence it meets. When this returns, the lines have been handed to the operating
        system. After ``close`` it does nothing but count. A payload may name fields in an attribute
        ``json_only``: they are too many for a line of text, which leaves them out. One that is no dict
        becomes the field ``payload`` of one.
        """
        self._notice_fork()
        # Asked before the lock as well: a hook's close() may be waiting for the thread that calls this.
        if self._is_late():
            return
        with self._lock:
            if not self._is_late():
                name = exact_str(event) if issubclass(type(event), str) else by_str(event)
                self._emit("INFO", name, payload)

    def log(self, level: str | int, message: str, *args: object) -> None:
        """Write a text line.

        Args:
            level: Its level, by name or by number.
            message: The text, with ``%`` marks for ``args`` if there are any.
            *args: What goes into the text.

        Raises:
            ValueError: There is no level of that name.
        """
        number = _LEVELS.get(level.upper()) if isinstance(level, str) else level
        if number is None:
            raise ValueError(f"level={level!r}: accepted is one of {', '.join(_LEVELS)}, or a number")
        if number < self._threshold:
            return
        text, error = attempt(lambda: message % args) if args else (by_str(message), None)
        if error is not None or text is None:
            text = " ".join(map(by_str, (message, *args)))
        self._notice_fork()
        with self._lock:
            if not self._is_late():
                self._write_text(_LEVEL_NAMES.get(number, str(number)), escape_controls(text))

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
        """Flush, and close each hook that has ``close()``, then the files. A second call does nothing.

        An event on its way when a hook or a signal handler calls this still reaches every hook.
        """
        self._notice_fork()
        with self._lock:
            if self._closed:
                return
            self._dispatcher.finish()
            for name in self._dispatcher.untold():
                self._tell_others(name)
            self._closed = True
        try:
            # Without the lock: a hook's close() may wait for a thread of its own that is about to emit.
            self._dispatcher.close(self.hooks)
        finally:
            with self._lock:
                # Those that failed to close: the log alone is there to be told.
                for name in self._dispatcher.untold():
                    self._write("WARNING", "hook_failed", self._with_elapsed(self._dispatcher.failure(name)))
                self._text.close()
                if self._json:
                    self._json.close()

    def __enter__(self) -> MetricLogger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _emit(self, level: str, event: str, payload: dict[str, Any], but: str | None = None) -> None:
        json_only, _ = attempt(getattr, payload, "json_only", ())
        payload = self._with_elapsed(payload)
        step = integer_step(event, payload)
        if step is None or step % self.every_steps == 0:
            if "memory_bytes" not in payload:
                allocated_bytes = memory_usage_bytes(self.device)
                if allocated_bytes is not None:
                    payload["memory_bytes"] = allocated_bytes
            self._write(level, event, payload, json_only or ())
        if not self.hooks:
            return
        due = [
            hook
            for hook in self.hooks
            if self._is_due(hook, step) and (but is None or hook_name(hook) != but)
        ]
        for name in self._dispatcher.deliver(due, event, payload):
            # Never about hook_failed: two broken hooks would tell each other of it for ever. And close() has
            # told already if it was called in between.
            if event != "hook_failed" and not self._closed:
                self._tell_others(name)

    def _tell_others(self, name: str) -> None:
        """Tell the log and the other hooks that the hook of this name has failed."""
        self._emit("WARNING", "hook_failed", self._dispatcher.failure(name), but=name)

    def _with_elapsed(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of the payload that has ``elapsed_s``."""
        own, _ = attempt(dict, payload)
        if own is None:
            own = {"payload": payload}
        if "elapsed_s" not in own:
            own["elapsed_s"] = self._clock() - self._start_s
        return own

    def _is_due(self, hook: Hook, step: int | None) -> bool:
        return step is None or step % (own_every_steps(hook) or self.every_steps) == 0

    def _write(
        self, level: str, event: str, payload: dict[str, Any], json_only: Collection[str] = ()
    ) -> None:
        if _LEVELS[level] >= self._threshold:
            shown = payload
            if json_only:
                shown = {field: value for field, value in payload.items() if field not in json_only}
            self._write_text(level, text_line(event, shown))
        if self._json:
            self._json.write_bytes(json_line(event, payload))

    def _write_text(self, level: str, line: str) -> None:
        second = int(self._wall_clock())
        if second != self._stamp[0]:
            self._stamp = (second, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second)))
        self._text.write(f"{self._stamp[1]} | {level} | {line}\n")

    def _is_late(self) -> bool:
        if self._closed:
            self.late_count += 1
        return self._closed

    def _notice_fork(self) -> None:
        """Make a forked child's copy usable: its lock may be held by a thread that only the parent has."""
        if os.getpid() != self._pid:
            self._pid = os.getpid()
            self._lock = threading.RLock()
            self._dispatcher.forget_deliveries()
            for sink in (self._text, self._json):
                if isinstance(sink, FileSink):
                    sink.after_fork()


def _threshold(level: str | int) -> int:
    number = _LEVELS.get(level.upper()) if isinstance(level, str) else level
    if not isinstance(number, int) or number not in _LEVEL_NAMES:
        raise ValueError(f"level={level!r}: accepted is one of {', '.join(_LEVELS)}")
    return number


def _open_file(setting: str, path: str | os.PathLike[str], clock: Callable[[], float]) -> FileSink:
    try:
        return FileSink(path, clock)
    except OSError as error:
        problem = f"{setting}={os.fspath(path)!r}: accepted is a file that can be written ({error.strerror})"
        raise OSError(error.errno, problem) from error
