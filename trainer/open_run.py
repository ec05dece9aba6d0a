"""A run before it is built: its folder, its identity, its ranks and their devices."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import torch

from trainer.attempts import Attempt, begin_attempt, launcher_restarts
from trainer.checkpoint import CheckpointManager
from trainer.config import Config
from trainer.device import pick_device
from trainer.problems import ConfigError
from trainer.ranks import Ranks, present_ranks
from trainer.run_directory import RunDirectory, holds_run, open_run_directory

OWN_STORE = "diloco"
"""Folder of a run that has its workers and its master in one process."""


@dataclass(frozen=True)
class OpenRun:
    """A run that has its folder and its identity, and is about to be built.

    Args:
        directory: Its folder.
        attempt: The attempt that begins.
        resumes: Whether it goes on from the checkpoints in the folder.
        ranks: Ranks that train together; folder and attempt are the same on all of them.
    """

    directory: RunDirectory
    attempt: Attempt
    resumes: bool = False
    ranks: Ranks = field(default_factory=Ranks)

    def json_file(self, name: Path | None) -> Path | None:
        """Return this rank's file of JSON lines: ``metrics.jsonl``, ``metrics.rank1.jsonl``, ..."""
        path = self.directory.file(name)
        if path is None or self.ranks.is_first:
            return path
        return path.with_name(f"{path.stem}.rank{self.ranks.rank}{path.suffix}")


def open_run(config: Config) -> OpenRun:
    """Find or claim the run's folder and begin the next attempt; rank 0 does that for all ranks.

    An attempt that the launcher has restarted (``torchrun --max-restarts``, a requeued Slurm job) goes on
    with the run that it began, whatever the configuration says about new ones.

    Raises:
        ConfigError: The folder cannot be used; see :func:`trainer.run_directory.open_run_directory`.
        RuntimeError: There are several ranks without a process group.
    """
    ranks = present_ranks()
    directory, attempt, resumes = ranks.from_first(lambda: _begin_attempt(config))
    return OpenRun(directory, attempt, resumes, ranks)


def _begin_attempt(config: Config) -> tuple[RunDirectory, Attempt, bool]:
    template, resume, overwrite = config.run.directory, config.run.resume, config.run.overwrite
    if launcher_restarts(os.environ) and holds_run(template):
        resume, overwrite = True, False
    directory = open_run_directory(template, resume=resume, overwrite=overwrite)
    if overwrite:
        _remove_former_run(directory, config)
    return directory, begin_attempt(directory.record(), config.run.id), resume


def pick_run_device(config: Config, ranks: Ranks) -> torch.device:
    """Return the device of this rank: of several on a host with CUDA, each has its own.

    Raises:
        ConfigError: There is no such device, or it is one for several ranks.
    """
    name = config.run.device
    if not ranks.is_alone and name.startswith("cuda:"):
        raise ConfigError([f"run.device: {name!r} is one device for {ranks.size} ranks; accepted: cuda, cpu"])
    try:
        device = pick_device(name)
        return (
            pick_device(f"cuda:{ranks.local_rank}")
            if device.type == "cuda" and not ranks.is_alone
            else device
        )
    except ValueError as error:
        raise ConfigError([f"run.device: {error}"]) from error


def _remove_former_run(directory: RunDirectory, config: Config) -> None:
    """Remove what a run of this configuration leaves in its folder, and nothing else."""
    CheckpointManager(directory.path / config.checkpoint.directory).clear()
    shutil.rmtree(directory.path / OWN_STORE, ignore_errors=True)
    names = (config.logging.file, config.logging.json_file)
    files = [directory.record_path, *filter(None, map(directory.file, names))]
    if (json_file := directory.file(config.logging.json_file)) is not None:
        files += json_file.parent.glob(f"{json_file.stem}.rank*{json_file.suffix}")
    for path in files:
        path.unlink(missing_ok=True)
