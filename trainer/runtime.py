"""From a configuration to something that runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import nn

from trainer.attempts import Attempt, AttemptLog, begin_attempt
from trainer.checkpoint import CheckpointManager
from trainer.config import Config, load_config
from trainer.data import VOCAB_SIZE, find_text_files, make_loader, read_tokens, split_tokens
from trainer.device import pick_device
from trainer.diloco.participant import DiLoCo
from trainer.metrics import MetricLogger
from trainer.model import GPT
from trainer.plugins import CALLBACKS_GROUP, HOOKS_GROUP, build_plugin
from trainer.problems import ConfigError
from trainer.result import TrainResult
from trainer.run_directory import RunDirectory, open_run_directory
from trainer.schedule import make_scheduler
from trainer.signals import DEFAULT_STOP_SIGNALS
from trainer.trainer import Trainer

_OWN_STORE = "diloco"
"""Folder of a run that has its workers and its master in one process."""


@dataclass(frozen=True)
class OpenRun:
    """A run that has its folder and its identity, and is about to be built."""

    directory: RunDirectory
    attempt: Attempt


def open_run(config: Config) -> OpenRun:
    """Find or claim the run's folder and begin the next attempt.

    Raises:
        ConfigError: The folder cannot be used; see :func:`trainer.run_directory.open_run_directory`.
    """
    directory = open_run_directory(
        config.run.directory, resume=config.run.resume, overwrite=config.run.overwrite
    )
    if config.run.overwrite:
        _remove_former_run(directory, config)
    return OpenRun(directory, begin_attempt(directory.record(), config.run.id))


def build_logger(config: Config, *, run: OpenRun | None = None, stream: TextIO | None = None) -> MetricLogger:
    """Return the logger of a run, with the configured hooks.

    Args:
        config: The configuration.
        run: The open run; None = open it now.
        stream: Where the text log goes when no file is configured; None = stdout.

    Raises:
        ConfigError: A hook is unknown or refuses its arguments, or a file cannot be opened.
    """
    run = run or open_run(config)
    try:
        logger = MetricLogger(
            level=config.logging.level,
            file=run.directory.file(config.logging.file),
            json_file=run.directory.file(config.logging.json_file),
            every_steps=config.logging.every_steps,
            stream=stream,
        )
    except (OSError, ValueError) as error:
        raise ConfigError([f"logging: {error}"]) from error
    try:
        for spec in config.logging.hooks:
            context = _plugin_context(config, run)
            logger.hooks.append(build_plugin(spec, key="logging.hooks", group=HOOKS_GROUP, context=context))
    except BaseException:
        logger.close()  # the hooks made so far hold ports and files
        raise
    return logger


def build_runtime(
    config: Config, *, run: OpenRun | None = None, logger: MetricLogger | None = None
) -> tuple[Trainer, CheckpointManager]:
    """Return a trainer that is ready to ``fit``, and the manager of its checkpoints.

    Args:
        config: The configuration.
        run: The open run; None = open it now.
        logger: Its logger; None = build it. The caller closes it (or the trainer, which closes it).

    Raises:
        ConfigError: A value cannot be used here: no such file, device, callback, ...
    """
    run = run or open_run(config)
    owned = logger is None
    logger = logger or build_logger(config, run=run)
    try:
        return _build(config, run, logger)
    except BaseException:
        if owned:
            logger.close()
        raise


def train_from_config(
    config: Config | str | os.PathLike[str],
    overrides: Iterable[str] | Mapping[str, Any] = (),
    *,
    stream: TextIO | None = None,
    on_ready: Callable[[Trainer, OpenRun], None] | None = None,
) -> TrainResult:
    """Train as configured; the logger is closed on every way out.

    Args:
        config: A configuration, or the YAML file it is in.
        overrides: Values to replace, as for :func:`trainer.config.load_config`; only with a file.
        stream: Where the text log goes when no file is configured; None = stdout.
        on_ready: Called with the trainer, before its first step.

    Raises:
        ConfigError: The configuration cannot be used.
        TypeError: Overrides were given with a configuration.
        Exception: Whatever training raises, unchanged.
    """
    if not isinstance(config, Config):
        config = load_config(config, overrides)
    elif overrides:
        raise TypeError("overrides go with a file; give them to load_config for a Config")
    if config.diloco.role == "master":
        raise ConfigError(["diloco.role: 'master' does not train; start it by `trainer train`"])
    run = open_run(config)
    try:
        with build_logger(config, run=run, stream=stream) as logger:
            trainer, _ = build_runtime(config, run=run, logger=logger)
            if on_ready is not None:
                on_ready(trainer, run)
            return trainer.fit()
    except ConfigError:
        run.directory.abandon()
        raise


def _build(config: Config, run: OpenRun, logger: MetricLogger) -> tuple[Trainer, CheckpointManager]:
    device = _device(config)
    loaders = _build_loaders(config, device)
    model = build_model(config).to(device)
    optimizer = _build_optimizer(config, model)
    checkpoints = CheckpointManager(
        run.directory.path / config.checkpoint.directory, keep_last=config.checkpoint.keep_last
    )
    trainer = Trainer(
        model,
        optimizer,
        loaders["train"],
        device=device,
        logger=logger,
        callbacks=[
            build_plugin(spec, key="callbacks", group=CALLBACKS_GROUP, context=_plugin_context(config, run))
            for spec in config.callbacks
        ],
        scheduler=make_scheduler(
            optimizer,
            warmup_steps=config.optimizer.warmup_steps,
            decay_steps=config.optimizer.decay_steps,
            min_fraction=config.optimizer.min_lr_fraction,
        ),
        validation_dataloader=loaders.get("validation"),
        test_dataloader=loaders.get("test"),
        max_steps=config.train.max_steps,
        max_time_s=config.train.max_time_s,
        accumulation_steps=config.train.accumulation_steps,
        precision=config.train.precision,
        clip_norm=config.optimizer.clip_norm,
        nonfinite_check=config.optimizer.nonfinite_check,
        compile=config.train.compile,
        compile_backend=config.train.compile_backend,
        checkpoints=checkpoints,
        checkpoint_every_steps=config.checkpoint.every_steps,
        resume=config.run.resume,
        validate_every_steps=config.train.validate_every_steps,
        validation_batches=config.train.validation_batches,
        stop_signals=(*DEFAULT_STOP_SIGNALS, *config.train.signals()),
        diloco=_build_diloco(config, run),
        attempts=AttemptLog(run.directory.record_path, run.attempt),
    )
    return trainer, checkpoints


def build_model(config: Config) -> GPT:
    """Return the model on the CPU, with the weights that the run's seed gives it."""
    torch.manual_seed(config.run.seed)
    return GPT(
        vocab_size=VOCAB_SIZE,
        context=config.model.context,
        layers=config.model.layers,
        heads=config.model.heads,
        width=config.model.width,
        dropout=config.model.dropout,
    )


def _build_diloco(config: Config, run: OpenRun) -> DiLoCo | None:
    if not config.diloco.is_worker:
        return None
    store = config.diloco.store or str(run.directory.path / _OWN_STORE)
    try:
        return DiLoCo(config.diloco, store)
    except ValueError as error:
        raise ConfigError([f"diloco.store: {error}"]) from error


def _build_loaders(config: Config, device: torch.device) -> dict[str, Any]:
    """Return the loaders by name: train, and validation and test where text is held out."""
    data = config.data
    try:
        tokens = read_tokens(find_text_files(data.paths))
    except OSError as error:
        raise ConfigError([f"data.paths: {error}"]) from error
    loaders: dict[str, Any] = {}
    parts = zip(("train", "validation", "test"), split_tokens(tokens, data.holdout_fraction), strict=True)
    for name, part in parts:
        try:
            loaders[name] = make_loader(
                part,
                context=config.model.context,
                batch_size=data.batch_size,
                sampling=data.sampling if name == "train" else "sequential",
                seed=config.run.seed,
                workers=data.workers if name == "train" else 0,
                pin_memory=device.type == "cuda",
                stop_signals=(*DEFAULT_STOP_SIGNALS, *config.train.signals()),
            )
        except ValueError as error:
            if name == "train":
                raise ConfigError([f"data.paths: {error} (data.batch_size, model.context)"]) from error
            if name == "validation" and config.train.validate_every_steps is not None:
                kept = f"data.holdout_fraction: {data.holdout_fraction} leaves too little to validate on"
                raise ConfigError([f"{kept}: {error}"]) from error
    return loaders


def _build_optimizer(config: Config, model: nn.Module) -> torch.optim.AdamW:
    decayed = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [
        {"params": decayed, "weight_decay": config.optimizer.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.optimizer.lr, betas=config.optimizer.betas)


def _device(config: Config) -> torch.device:
    try:
        return pick_device(config.run.device)
    except ValueError as error:
        raise ConfigError([f"run.device: {error}"]) from error


def _plugin_context(config: Config, run: OpenRun) -> dict[str, Any]:
    return {
        "run_id": run.attempt.run_id,
        "run_name": config.run.name,
        "attempt": run.attempt.number,
        "device": str(_device(config)),
    }


def _remove_former_run(directory: RunDirectory, config: Config) -> None:
    """Remove what a run of this configuration leaves in its folder, and nothing else."""
    CheckpointManager(directory.path / config.checkpoint.directory).clear()
    shutil.rmtree(directory.path / _OWN_STORE, ignore_errors=True)
    names = (config.logging.file, config.logging.json_file)
    files = [directory.record_path, *filter(None, map(directory.file, names))]
    for path in files:
        Path(path).unlink(missing_ok=True)
