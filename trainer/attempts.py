"""What a run must remember beside its checkpoints: who it is and how much it has already tried."""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

_log = logging.getLogger(__name__)

_WRITE_INTERVAL_S = 5.0


@dataclass(frozen=True)
class RunRecord:
    """The content of ``run.json``.

    Args:
        run_id: Identity of the run, the same in all its attempts.
        attempt: Number of the attempt that wrote this, from 0.
        elapsed_s: Wall time of all attempts' training so far, seconds.
        last_step_reached: Highest step any attempt has reached.
    """

    run_id: str
    attempt: int = 0
    elapsed_s: float = 0.0
    last_step_reached: int = 0


@dataclass(frozen=True)
class Attempt:
    """One try at a run: number ``number`` (0-based), and what the earlier ones used up."""

    run_id: str
    number: int = 0
    prior_elapsed_s: float = 0.0
    last_step_reached: int = 0


def begin_attempt(
    record: RunRecord | None, run_id: str | None = None, environ: Mapping[str, str] | None = None
) -> Attempt:
    """Return the attempt that follows ``record``.

    Args:
        record: What the earlier attempts left; None = there were none.
        run_id: Run id the user gave; else the record's, else the launcher's, else a new one.
        environ: Environment variables; None = the process's own. The number is a launcher's restart count,
            unless the record knows of more attempts.
    """
    environ = os.environ if environ is None else environ
    number = launcher_restarts(environ)
    if record is None:
        return Attempt(run_id or _launcher_run_id(environ) or uuid.uuid4().hex[:12], number)
    return Attempt(
        run_id=run_id or record.run_id,
        # A launcher counts the restarts of one job, and a run may be continued by another.
        number=max(record.attempt + 1, number),
        prior_elapsed_s=record.elapsed_s,
        last_step_reached=record.last_step_reached,
    )


class AttemptLog:
    """Keeps ``run.json`` up to date: at each checkpoint and end, and in between at most every 5 seconds.

    Replaced atomically but not flushed to the disk: it survives a killed process, and costs a step nothing.

    Args:
        path: The file, or None to keep nothing.
        attempt: The attempt that is running.
        clock: Monotonic clock in seconds.
    """

    def __init__(
        self, path: Path | None, attempt: Attempt, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.attempt = attempt
        self._path = path
        self._clock = clock
        self._written_s = clock()

    def note(self, step: int, elapsed_s: float, *, now: bool = False) -> None:
        """Remember how far this attempt is.

        Args:
            step: Last applied step.
            elapsed_s: Wall time of this attempt so far.
            now: Write at once instead of when the interval is over.
        """
        if self._path is None or not (now or self._clock() - self._written_s >= _WRITE_INTERVAL_S):
            return
        self._written_s = self._clock()
        record = RunRecord(
            run_id=self.attempt.run_id,
            attempt=self.attempt.number,
            elapsed_s=self.attempt.prior_elapsed_s + elapsed_s,
            last_step_reached=max(self.attempt.last_step_reached, step),
        )
        try:
            write_record(self._path, record)
        except OSError as error:
            # A full disk costs this note, not the training.
            _log.warning("cannot write %s: %s", self._path, error)


def write_record(path: Path, record: RunRecord) -> None:
    """Replace ``path`` by ``record`` in one move."""
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    temporary.write_text(json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)


def read_record(path: Path) -> RunRecord | None:
    """Return the record in ``path``, or None when there is no such file.

    Raises:
        ValueError: The file is not a run record.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return RunRecord(**fields)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not a run record: {error}") from error


def _launcher_run_id(environ: Mapping[str, str]) -> str | None:
    """All ranks of a launcher see the same value, so it comes before a random one."""
    if explicit := environ.get("OTEL_TRAINING_RUN_ID"):
        return explicit
    elastic = environ.get("TORCHELASTIC_RUN_ID", "none")
    if elastic != "none":
        return elastic
    job, task = environ.get("SLURM_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return f"{job}_{task}" if job and task else job


def launcher_restarts(environ: Mapping[str, str]) -> int:
    """Return how often the launcher (torchrun, Slurm) has restarted this job; 0 without one."""
    for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"):
        if environ.get(name, "").isdecimal():
            return int(environ[name])
    return 0
