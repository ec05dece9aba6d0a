"""Where lines go: files and streams. After set-up nothing that goes wrong with one is raised."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from trainer.isolation import Tally, attempt

_log = logging.getLogger(__name__)

_FOLLOW_INTERVAL_S = 1.0
_SETTLE_S = 0.02


class FileSink:
    """Appends lines to a file, each with one write, so that those of several processes stay whole.

    The file is followed by its name: when it was moved or removed, a new one is made within a second. A last
    line without an end, left by a process that was killed, is closed off. When the disk is full, lines are
    lost, counted and warned about; the rest of a line that was taken in part goes before the next one.

    Args:
        path: The file; it is made with its folders when absent.
        clock: Monotonic seconds.

    Attributes:
        failures: Lines that were not written, or later than they should have been.

    Raises:
        OSError: The folder cannot be made or the file cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.path = Path(path)
        self.failures = Tally()
        self._clock = clock
        self._owed = b""  # what belongs before the next line
        self._fd = -1
        self._identity = (-1, -1)
        self._reopen = False
        self._open()
        self._follow_at_s = clock() + _FOLLOW_INTERVAL_S

    def write(self, text: str) -> None:
        """Append text that ends with a newline."""
        self.write_bytes(text.encode("utf-8", "backslashreplace"))

    def write_bytes(self, line: bytes) -> None:
        """Append a line in UTF-8 that ends with a newline."""
        now_s = self._clock()
        if now_s >= self._follow_at_s:
            self._follow_at_s = now_s + _FOLLOW_INTERVAL_S
            self._follow()
        # Taken before the write, so that a signal handler's line in between does not write it again.
        owed, self._owed = self._owed, b""
        data = owed + line
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError as error:
            self._owed = data[written:] if written > len(owed) else owed[written:]
            self._reopen = True  # the handle itself may be what is broken, as on a network's file system
            self._failed(error)

    def close(self) -> None:
        """Close the file, with a last try to write what is owed."""
        self._put(-1)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # For a sink that nobody closed. ``close`` is bound here: at exit the module may be gone already.
        if self._fd >= 0:
            close(self._fd)

    def after_fork(self) -> None:
        """Begin a line of the child's own where the parent has one to complete."""
        self._owed = b"\n" if self._owed else b""

    def _follow(self) -> None:
        """Open the file anew when its name leads to another one, or to none."""
        try:
            with contextlib.suppress(FileNotFoundError):
                if not self._reopen and _identity(self.path.stat()) == self._identity:
                    return
            self._open()
        except OSError as error:
            self._failed(error)

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Non-blocking matters for a named pipe alone: nobody reading it must not stop training.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        fd = os.open(self.path, flags, 0o666)
        status = os.fstat(fd)
        if _identity(status) != self._identity:
            self._put(fd)
            torn = stat.S_ISREG(status.st_mode) and _ends_within_a_line(self.path)
            self._owed = b"\n" if torn else b""
            self._identity = _identity(status)
        else:
            os.close(self._fd)
            self._fd = fd
        self._reopen = False

    def _put(self, fd: int) -> None:
        """Put ``fd`` in the place of the open file, which is closed with what it is owed."""
        former, self._fd = self._fd, fd
        owed, self._owed = self._owed, b""
        if former < 0:
            return
        with contextlib.suppress(OSError):
            if owed != b"\n":
                os.write(former, owed)
        with contextlib.suppress(OSError):
            os.close(former)

    def _failed(self, error: OSError) -> None:
        if self.failures.add():
            _log.warning(
                "%s cannot be written: %s (%d lines lost or late so far; training goes on)",
                self.path,
                error.strerror,
                self.failures.count,
            )


class StreamSink:
    """Writes lines to a text stream and flushes each.

    Args:
        stream: The stream; ``None`` is standard output, as it is at each line.

    Attributes:
        failures: Lines that were not written.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.failures = Tally()
        self._stream = stream

    def write(self, text: str) -> None:
        """Write text that ends with a newline."""
        stream = self._stream if self._stream is not None else sys.stdout
        if stream is None:  # a process without standard output
            return
        _, error = attempt(_write_flushed, stream, text)
        if error is None:
            return
        if self.failures.add():
            _log.warning(
                "the log's stream cannot be written: %s (%d lines lost so far; training goes on)",
                error,
                self.failures.count,
            )
        if isinstance(error, BrokenPipeError) and stream is sys.stdout:
            _detach_stdout()

    def close(self) -> None:
        """Flush; the stream belongs to someone else and stays open."""
        stream = self._stream if self._stream is not None else sys.stdout
        if stream is not None:
            attempt(stream.flush)


def _write_flushed(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def _detach_stdout() -> None:
    """Point standard output at nothing, because its reader is gone.

    Otherwise the interpreter's flush at exit fails as well and turns the exit status into 120.
    """
    null = os.open(os.devnull, os.O_WRONLY)
    attempt(lambda: os.dup2(null, sys.stdout.fileno()))
    os.close(null)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _ends_within_a_line(path: Path) -> bool:
    """Return whether the file was left without a newline at its end; ``False`` when it cannot be read."""
    size_bytes = _unended_size_bytes(path)
    if size_bytes is None:
        return False
    # Seen twice, because a long line that another process is about to write shows page by page.
    time.sleep(_SETTLE_S)
    return _unended_size_bytes(path) == size_bytes


def _unended_size_bytes(path: Path) -> int | None:
    """Return the file's size when its last byte is not a newline, else ``None``."""
    with contextlib.suppress(PermissionError), path.open("rb") as file:
        size_bytes = file.seek(0, os.SEEK_END)
        if size_bytes > 0:
            file.seek(size_bytes - 1)
            if file.read(1) != b"\n":
                return size_bytes
    return None
