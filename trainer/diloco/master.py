"""The process that is nothing but the master: it makes outer steps until its workers are done."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TextIO

from torch import nn

from trainer.attempts import AttemptLog
from trainer.config import Config
from trainer.diloco.objects import read_parameters
from trainer.diloco.outer import OuterLoop
from trainer.diloco.settings import DiLoCoSection
from trainer.diloco.store import Store
from trainer.metrics import MetricLogger
from trainer.open_run import open_run
from trainer.problems import ConfigError
from trainer.runtime import build_logger, build_model
from trainer.signals import DEFAULT_STOP_SIGNALS, StopSignals

_GLANCE_S = 0.1
"""How soon a stop signal is noticed."""


@dataclass(frozen=True)
class MasterResult:
    """What a master came to.

    Args:
        outer_steps: Outer steps of the run so far, those of earlier masters included.
        signal: The signal that stopped it; None when its workers are done.
    """

    outer_steps: int
    signal: signal.Signals | None = None


def run_master(
    settings: DiLoCoSection,
    model: nn.Module,
    *,
    emit: Callable[[str, dict[str, Any]], None],
    warn: Callable[[str], None],
    stop_signals: Iterable[signal.Signals] = DEFAULT_STOP_SIGNALS,
) -> MasterResult:
    """Make outer steps until all workers are done, a signal comes or no delta does for too long.

    Args:
        settings: Role ``master``, the store and the schedule.
        model: Its parameters are what training begins with, unless the store holds global weights.
        emit: Takes ``outer_step`` events, from another thread.
        warn: Takes warnings for the log.
        stop_signals: Signals that end it; a later start goes on where it was.

    Raises:
        ValueError: The role is another one, the store cannot be opened, or it holds another model's weights.
    """
    if settings.role != "master" or settings.store is None:
        raise ValueError(f"diloco.role={settings.role!r} is no master's; accepted: master, with a store")
    loop = OuterLoop(settings, Store(settings.store), read_parameters(model), emit=emit, warn=warn)
    with StopSignals(stop_signals) as signals:
        loop.start()
        try:
            while signals.received is None and not loop.wait(_GLANCE_S):
                pass
        finally:
            loop.close(settings.shutdown_timeout_s)
    return MasterResult(max(loop.generation, 0), signals.received)


def run_master_from_config(
    config: Config,
    *,
    stream: TextIO | None = None,
    on_ready: Callable[[MetricLogger], None] = lambda _: None,
) -> MasterResult:
    """Be the master as configured; the logger is closed on every way out.

    The run's folder holds its logs; the state is all in the store.

    Args:
        config: A configuration with ``diloco.role: master``; its model is that of the workers.
        stream: Where the text log goes when no file is configured; None = stdout.
        on_ready: Called with the logger, before the first look into the store.

    Raises:
        ConfigError: The configuration cannot be used, or the store holds the weights of another model.
    """
    run = open_run(config)
    began_s = time.monotonic()
    attempts = AttemptLog(run.directory.record_path, run.attempt)
    try:
        with build_logger(config, run=run, stream=stream) as logger:
            attempts.note(0, 0.0, now=True)
            on_ready(logger)
            try:
                result = run_master(
                    config.diloco,
                    build_model(config),
                    emit=logger.emit,
                    warn=logger.warning,
                    stop_signals=(*DEFAULT_STOP_SIGNALS, *config.train.signals()),
                )
            except ValueError as error:
                raise ConfigError([f"diloco.store: {error}"]) from error
            attempts.note(0, time.monotonic() - began_s, now=True)
            return result
    except ConfigError:
        run.directory.abandon()
        raise
