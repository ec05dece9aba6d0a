"""File-based service discovery: a file that tells Prometheus where this run's page is, while it is there.

Source: Prometheus' configuration, ``file_sd_config``. Ranks of a host may share one file, or have a file each
in one folder, which Prometheus watches by a pattern such as ``targets/*.json``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from otel_training.identity import Identity
from otel_training.kinds import File
from otel_training.whole_file import check_writable, write_whole

LOCK_TIMEOUT_S = 2.0
"""Longest wait for another rank that writes: its own write takes a moment."""

_POLL_S = 0.01

# Prometheus drops labels of this kind once it has the targets: no series has them.
_INSTANCE = "__meta_otel_training_instance"
_MACHINE = "__meta_otel_training_machine"
_PROCESS = "__meta_otel_training_process"
_SCHEME = "__scheme__"


class TargetFile:
    """This process's target in a file, kept apart from those of other ranks and other programs.

    What a process that was killed left behind is taken away by the next one of its machine that adds or
    removes a target: until then Prometheus finds the target down, which it is.

    Args:
        file: A path that ends in ``.json`` is one file for all; any other is a folder with one for each rank.
        identity: Whose page it is.

    Raises:
        ValueError: The file cannot be written, or holds something else than targets.
    """

    def __init__(self, file: File, identity: Identity) -> None:
        given = Path(file.path).absolute()
        self._shared = given.suffix == ".json"
        self._path = given if self._shared else given / f"otel-training-{identity.instance_id}.json"
        self._instance = identity.instance_id
        self._process = _process(psutil.Process())
        self._machine = f"{identity.host} {_pid_namespace()}"
        check_writable(self._path, file.setting)
        try:
            _targets(self._path)
        except ValueError:
            raise ValueError(
                f"{file.setting}={file.path!r} is a file with something else in it:"
                " accepted is one with targets of Prometheus, or one that does not exist"
            ) from None

    def add(self, address: str) -> None:
        """Tell of a page; what this rank told before is replaced.

        Args:
            address: Where it is, such as ``http://127.0.0.1:9464``.

        Raises:
            OSError: The file cannot be written, or is locked for long.
        """
        scheme, _, target = address.partition("://")
        labels = {
            _SCHEME: scheme,
            _INSTANCE: self._instance,
            _MACHINE: self._machine,
            _PROCESS: self._process,
        }
        self._change({"targets": [target], "labels": labels})

    def remove(self) -> None:
        """Take this rank's target away, and the file when nothing is left in it; ``add`` has the errors."""
        self._change(None)

    def _change(self, own: dict[str, Any] | None) -> None:
        with _locked(self._path.parent) as locked:
            if self._shared and not locked:
                raise OSError("the folder cannot be locked: on such file systems name a folder, not a file")
            kept = [group for group in _targets(self._path) if not self._is_over(group, replaced=own)]
            _write(self._path, [*kept, own] if own else kept)
            if not self._shared and locked:
                self._sweep()

    def _sweep(self) -> None:
        """Remove the files of ranks of this machine that were killed."""
        for path in self._path.parent.glob("otel-training-*.json"):
            with contextlib.suppress(OSError, ValueError):
                groups = _targets(path)
                if path != self._path and groups and all(map(self._is_over, groups)):
                    path.unlink()

    def _is_over(self, group: dict[str, Any], replaced: object = None) -> bool:
        """Whether a target is ours, replaced, or of a process of this machine that is no more."""
        labels = group.get("labels", {})
        if labels.get(_INSTANCE) == self._instance:
            # The next attempt of this rank may have told of its page before this one has let go.
            return bool(replaced) or labels.get(_PROCESS) == self._process
        return labels.get(_MACHINE) == self._machine and not _is_alive(str(labels.get(_PROCESS)))


def _targets(path: Path) -> list[dict[str, Any]]:
    try:
        groups = json.loads(path.read_bytes())
    except FileNotFoundError:
        return []
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        raise ValueError("no list of targets")
    return groups


def _write(path: Path, groups: list[dict[str, Any]]) -> None:
    if groups:
        write_whole(path, json.dumps(groups, indent=2).encode() + b"\n")
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Hold the lock of a folder, and give whether its file system has such locks.

    The folder and no file beside the targets: that one could not be removed without a race.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield _lock(descriptor)
    finally:
        os.close(descriptor)  # which lets the lock go


def _lock(descriptor: int) -> bool:
    deadline_s = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                raise TimeoutError("another process holds the lock of the folder") from None
            time.sleep(_POLL_S)
        except OSError:  # NFS and the like
            return False
        else:
            return True


def _pid_namespace() -> str:
    """Return what tells apart containers of one host name, in each of which process numbers begin anew."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _process(process: psutil.Process) -> str:
    return f"{process.pid} {process.create_time()}"  # numbers of processes are used again


def _is_alive(process: str) -> bool:
    try:
        found = psutil.Process(int(process.split()[0]))
        return _process(found) == process and found.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except (psutil.Error, ValueError, IndexError):
        return True  # not for us to say
