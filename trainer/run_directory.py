"""The folder of a run: finding it, claiming it, and what lies in it."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from trainer.attempts import RunRecord, read_record
from trainer.problems import ConfigError

_NUMBER = "{n}"


class RunDirectory:
    """One run's folder, which exists and can be written.

    Args:
        path: The folder.
        created: Whether it was made just now, for this run.
    """

    def __init__(self, path: Path, *, created: bool = False) -> None:
        self.path = path
        self.record_path = path / "run.json"
        self._created = created

    def record(self) -> RunRecord | None:
        """Return what earlier attempts left, or None.

        Raises:
            ConfigError: ``run.json`` is damaged.
        """
        try:
            return read_record(self.record_path)
        except (ValueError, OSError) as error:
            raise ConfigError([f"run.directory: {' '.join(str(error).split())}"]) from error

    def file(self, name: Path | None) -> Path | None:
        """Return where a configured file lies: relative names are relative to the folder."""
        return None if name is None else self.path / name

    def abandon(self) -> None:
        """Remove a folder that was made for a run which then could not be built."""
        if self._created and not self.record_path.exists():
            shutil.rmtree(self.path, ignore_errors=True)


def open_run_directory(template: Path, *, resume: bool, overwrite: bool) -> RunDirectory:
    """Return the folder for a new run, or that of the run to continue.

    Args:
        template: The folder; ``{n}`` in its last part stands for a number: the next free one for a new run,
            the highest one that holds a run on resume.
        resume: Continue the run in the folder.
        overwrite: A run in the folder may be replaced; the caller removes its files.

    Raises:
        ConfigError: There is a run where a new one should begin, or none to continue, or the folder cannot be
        written.
    """
    if "\0" in str(template):
        raise ConfigError([f"run.directory: {str(template)!r} holds a null byte, which no path can"])
    try:
        if resume:
            found = RunDirectory(_latest_run(template))
        elif _NUMBER in template.name:
            found = RunDirectory(_claim_next(template), created=True)
        else:
            existed = template.is_dir()
            template.mkdir(parents=True, exist_ok=True)
            found = RunDirectory(template, created=not existed)
            _refuse_clash(found, allowed=overwrite)
        _probe(found.path)
    except OSError as error:
        raise ConfigError(
            [f"run.directory: cannot write to {template}: {error.strerror or error}"]
        ) from error
    return found


def check_run_directory(template: Path, *, resume: bool, overwrite: bool) -> Path:
    """Return the folder a run would have (``{n}`` left as it is for a new one), and change nothing.

    Args:
        template: As for :func:`open_run_directory`; likewise ``resume`` and ``overwrite``.
        resume: Continue the run in the folder.
        overwrite: A run in the folder may be replaced.

    Raises:
        ConfigError: Opening it would fail.
    """
    folder = _latest_run(template) if resume else template
    _refuse_clash(RunDirectory(folder), allowed=resume or overwrite)
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        raise ConfigError([f"run.directory: cannot write to {folder}"])
    return folder


def holds_run(template: Path) -> bool:
    """Return whether there is a run to continue; ``template`` is as for :func:`open_run_directory`."""
    try:
        _latest_run(template)
    except ConfigError:
        return False
    return True


def _latest_run(template: Path) -> Path:
    if _NUMBER not in template.name:
        if not RunDirectory(template).record_path.is_file():
            raise ConfigError([f"run.directory: nothing to resume, {template} holds no run"])
        return template
    runs = [path for path in _numbered(template).values() if RunDirectory(path).record_path.is_file()]
    if not runs:
        raise ConfigError([f"run.directory: nothing to resume, no folder like {template} holds a run"])
    return runs[-1]


def _claim_next(template: Path) -> Path:
    template.parent.mkdir(parents=True, exist_ok=True)
    number = max(_numbered(template), default=0)
    while True:
        number += 1
        path = template.with_name(template.name.replace(_NUMBER, str(number)))
        try:
            path.mkdir()
        except FileExistsError:
            continue  # claimed by a run that started at the same moment
        return path


def _numbered(template: Path) -> dict[int, Path]:
    """Existing folders that fit the template, by their numbers, in rising order."""
    before, _, after = template.name.partition(_NUMBER)
    pattern = re.compile(f"{re.escape(before)}([0-9]+){re.escape(after)}")
    if not template.parent.is_dir():
        return {}
    found = {
        int(match[1]): path for path in template.parent.iterdir() if (match := pattern.fullmatch(path.name))
    }
    return dict(sorted(found.items()))


def _refuse_clash(run: RunDirectory, *, allowed: bool) -> None:
    if allowed or not run.record_path.exists():
        return
    record = run.record()
    reached = "" if record is None else f" (run {record.run_id}, step {record.last_step_reached})"
    raise ConfigError(
        [
            f"run.directory: {run.path} already holds a run{reached}; continue it with --resume, "
            "replace it with --overwrite, or choose another folder"
        ]
    )


def _probe(path: Path) -> None:
    """Write and remove a file, so that a folder that cannot be written is found before training.

    Raises:
        OSError: It cannot be written.
    """
    probe = path / f".probe-{os.getpid()}"
    probe.write_bytes(b"")
    probe.unlink()
