"""From a configuration to something that runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TextIO

import torch
from torch import nn

from trainer.attempts import AttemptLog
from trainer.checkpoint import CheckpointManager
from trainer.config import Config, load_config
from trainer.data import VOCAB_SIZE
from trainer.diloco.participant import DiLoCo
from trainer.loaders import build_loaders
from trainer.metrics import MetricLogger
from trainer.model import GPT
from trainer.open_run import OWN_STORE, OpenRun, open_run, pick_run_device
from trainer.plugins import CALLBACKS_GROUP, HOOKS_GROUP, build_plugin
from trainer.problems import ConfigError
from trainer.ranks import joined_ranks, launched_ranks
from trainer.result import TrainResult
from trainer.schedule import make_scheduler
from trainer.shapes import ShapeCheck, sizes_of_run
from trainer.signals import DEFAULT_STOP_SIGNALS
from trainer.trainer import Trainer


def build_logger(config: Config, *, run: OpenRun | None = None, stream: TextIO | None = None) -> MetricLogger:
    """Return the logger of a run, with the configured hooks.

    Rank 0 writes the text log; other ranks write warnings alone, to stderr, and JSON lines of their own.

    Args:
        config: The configuration.
        run: The open run; None = open it now.
        stream: Where the text log goes when no file is configured; None = stdout.

    Raises:
        ConfigError: A hook is unknown or refuses its arguments, or a file cannot be opened.
    """
    run = run or open_run(config)
    try:
        first = run.ranks.is_first
        logger = MetricLogger(
            level=config.logging.level if first else "WARNING",
            file=run.directory.file(config.logging.file) if first else None,
            json_file=run.json_file(config.logging.json_file),
            every_steps=config.logging.every_steps,
            stream=stream if first else sys.stderr,
        )
    except (OSError, ValueError) as error:
        raise ConfigError([f"logging: {error}"]) from error
    try:
        for spec in config.logging.hooks:
            context = plugin_context(config, run)
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
    """Train as configured; logger and process group are closed on every way out.

    Started by ``torchrun`` this is one rank, which joins the others.

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
    with joined_ranks(pick_run_device(config, launched_ranks())) as ranks:
        run = open_run(config)
        try:
            with build_logger(config, run=run, stream=stream) as logger:
                trainer, _ = build_runtime(config, run=run, logger=logger)
                if on_ready is not None:
                    on_ready(trainer, run)
                return trainer.fit()
        except ConfigError:
            if ranks.is_first:
                run.directory.abandon()
            raise


def _build(config: Config, run: OpenRun, logger: MetricLogger) -> tuple[Trainer, CheckpointManager]:
    device = pick_run_device(config, run.ranks)
    loaders = build_loaders(config, device, run.ranks)
    model = build_model(config).to(device)
    if not run.ranks.is_first:
        torch.manual_seed(config.run.seed + run.ranks.rank)  # the same weights, but a dropout of its own
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
            build_plugin(spec, key="callbacks", group=CALLBACKS_GROUP, context=plugin_context(config, run))
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
        ooo_streams=config.train.ooo_streams if config.train.ooo_backprop else None,
        shapes=_build_shape_check(config),
        peak_flops_per_s=config.run.peak_flops_per_s,
        checkpoints=checkpoints,
        checkpoint_every_steps=config.checkpoint.every_steps,
        resume=run.resumes,
        validate_every_steps=config.train.validate_every_steps,
        validation_batches=config.train.validation_batches,
        stop_signals=(*DEFAULT_STOP_SIGNALS, *config.train.signals()),
        diloco=_build_diloco(config, run),
        attempts=AttemptLog(run.directory.record_path if run.ranks.is_first else None, run.attempt),
        ranks=run.ranks,
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
    if not run.ranks.is_alone:
        raise ConfigError(
            [f"diloco.role: {config.diloco.role!r} is one process, this is one of {run.ranks.size} ranks"]
        )
    store = config.diloco.store or str(run.directory.path / OWN_STORE)
    try:
        return DiLoCo(config.diloco, store)
    except ValueError as error:
        raise ConfigError([f"diloco.store: {error}"]) from error


def _build_shape_check(config: Config) -> ShapeCheck:
    sizes = sizes_of_run(
        batch_size=config.data.batch_size,
        context=config.model.context,
        width=config.model.width,
        heads=config.model.heads,
        vocabulary=VOCAB_SIZE,
    )
    return ShapeCheck(sizes, config.shapes.alignment, vocabulary=config.shapes.vocabulary)


def _build_optimizer(config: Config, model: nn.Module) -> torch.optim.AdamW:
    decayed = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [
        {"params": decayed, "weight_decay": config.optimizer.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.optimizer.lr, betas=config.optimizer.betas)


def plugin_context(config: Config, run: OpenRun) -> dict[str, Any]:
    """Return what factories of hooks and callbacks are given when they have a parameter of that name."""
    return {
        "run_id": run.attempt.run_id,
        "run_name": config.run.name,
        "attempt": run.attempt.number,
        "device": str(pick_run_device(config, run.ranks)),
    }
