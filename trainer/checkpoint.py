"""Checkpoints that are whole or absent."""

from __future__ import annotations

import os
import pickle
import re
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

FORMAT = "otel-training-checkpoint-1"
_NAME = re.compile(r"step_(\d{12})\.pt")
_TORN = (
    OSError, EOFError, RuntimeError, ValueError, KeyError,
    pickle.UnpicklingError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


class CheckpointError(OSError):
    """A checkpoint could not be written (disk full, no permission) or read."""


@dataclass(frozen=True)
class SavedCheckpoint:
    """What a save left behind."""

    path: Path
    size_bytes: int


class CheckpointManager:
    """Writes, finds and prunes the checkpoints of one run.

    A file is written beside its final name, flushed to the disk and then renamed, so that a crash at any
    moment leaves the former checkpoints whole.

    Args:
        directory: Folder of the checkpoints; made when the first one is saved.
        keep_last: How many to keep, >= 1; None = all.
        open_file: Opens a path for binary writing.

    Raises:
        ValueError: ``keep_last`` is less than 1.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep_last: int | None = 3,
        open_file: Callable[[Path], BinaryIO] = lambda path: path.open("wb"),
    ) -> None:
        if keep_last is not None and keep_last < 1:
            raise ValueError(f"checkpoint.keep_last must be at least 1 or null (all), got {keep_last}")
        self.directory = Path(directory)
        self.keep_last = keep_last
        self._open_file = open_file

    def save(self, step: int, state: dict[str, Any]) -> SavedCheckpoint:
        """Write ``state`` as the checkpoint of ``step`` and prune older ones.

        Raises:
            CheckpointError: The file could not be written; what was there before is untouched.
        """
        path = self.path_of(step)
        temporary = path.with_suffix(f".pt.tmp-{os.getpid()}")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with self._open_file(temporary) as file:
                torch.save({"format": FORMAT, **state}, file)
                file.flush()
                os.fsync(file.fileno())
            size_bytes = temporary.stat().st_size
            temporary.replace(path)
            _sync_directory(self.directory)
        except (OSError, RuntimeError) as error:  # torch reports a failed write as a RuntimeError
            temporary.unlink(missing_ok=True)
            raise CheckpointError(f"cannot write checkpoint {path}: {error}") from error
        self._prune(step)
        return SavedCheckpoint(path, size_bytes)

    def path_of(self, step: int) -> Path:
        """Return where the checkpoint of ``step`` lies or would lie."""
        return self.directory / f"step_{step:012d}.pt"

    def paths(self) -> list[Path]:
        """Return the files named like checkpoints, oldest step first."""
        if not self.directory.is_dir():
            return []
        return sorted(path for path in self.directory.iterdir() if _NAME.fullmatch(path.name))

    def load(self, path: Path) -> dict[str, Any]:
        """Return the state in ``path``, all tensors on the CPU; nothing in the file is executed.

        Raises:
            CheckpointError: The file is torn, damaged, unreadable or not ours.
        """
        try:
            _check_sums(path)
            state = torch.load(path, map_location="cpu", weights_only=True)
        except _TORN as error:
            raise CheckpointError(f"cannot read checkpoint {path}: {_first_line(error)}") from error
        if not isinstance(state, dict) or state.get("format") != FORMAT:
            raise CheckpointError(f"cannot read checkpoint {path}: it was not written by this trainer")
        return state

    def load_latest(self, warn: Callable[[str], object]) -> tuple[Path, dict[str, Any]] | None:
        """Return path and state of the newest checkpoint that is whole, or None when there is no file at all.

        Args:
            warn: Told about each newer file that was passed over.

        Raises:
            CheckpointError: There are files, and none can be read: starting over would throw a run away.
        """
        paths = self.paths()
        for path in reversed(paths):
            try:
                return path, self.load(path)
            except CheckpointError as error:
                warn(f"{error}; trying the one before")
        if paths:
            raise CheckpointError(f"none of the {len(paths)} checkpoints in {self.directory} can be read")
        return None

    def clear(self) -> None:
        """Remove all checkpoints of this folder, and nothing else."""
        for path in self.paths():
            path.unlink()

    def _prune(self, step: int) -> None:
        # Later steps were left by an attempt before this one resumed further back: they do not outlive it.
        ours = [path for path in self.paths() if _step_of(path) <= step]
        for path in ours[: -self.keep_last] if self.keep_last else []:
            path.unlink(missing_ok=True)
        for leftover in self.directory.glob("step_*.pt.tmp-*"):
            leftover.unlink(missing_ok=True)


def _step_of(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _check_sums(path: Path) -> None:
    """Compare what is in the file with its checksums: torch writes them, and does not look at them.

    Raises:
        zipfile.BadZipFile: A part has changed since it was written.
    """
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise zipfile.BadZipFile(f"{damaged} has changed since it was written")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0] or type(error).__name__


def _sync_directory(directory: Path) -> None:
    """Make a rename in ``directory`` survive a power cut."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
