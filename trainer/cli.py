"""The command line: ``trainer train`` and ``trainer validate``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from trainer.checkpoint import CheckpointError
from trainer.config import Config, load_config
from trainer.diloco.coordinator import JoinError
from trainer.diloco.master import run_master_from_config
from trainer.metrics import MetricLogger
from trainer.open_run import OpenRun, open_run
from trainer.plugins import HOOKS_GROUP, check_plugin
from trainer.problems import ConfigError
from trainer.progress import ProgressBar
from trainer.ranks import Ranks
from trainer.result import TrainResult
from trainer.run_directory import check_run_directory
from trainer.runtime import build_logger, build_runtime, plugin_context, train_from_config
from trainer.summary import summary_table
from trainer.trainer import Trainer

_TEXT_LOG = Path("train.log")

_RUNS = """\
Runs and folders:
  run.directory in the config is the folder of the run: run.json, checkpoints, logs. With {n} in its name each
  new run gets a folder of its own (runs/demo-1, runs/demo-2, ...) and --resume continues the latest. Without
  {n} a folder holds one run: a second start is refused unless --resume or --overwrite says what to do.

Exit status:
  0 done; 1 training failed or its last checkpoint could not be written; 2 the configuration cannot be used;
  stopped by a signal: 128 + its number (SIGTERM 143, Ctrl-C 130), with a checkpoint to --resume from.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Args:
        argv: Arguments without the program's name; None = those of the process.
    """
    # As with ``python -m``, so that package.module:factory finds the user's own modules.
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.append(folder)
    arguments = _parser().parse_args(argv)
    try:
        config = load_config(arguments.config, _overrides(arguments))
        if arguments.command == "validate":
            _validate(config)
            return 0
        return _train(config)
    except (ConfigError, CheckpointError, JoinError) as error:
        print("\n".join(f"trainer: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trainer",
        description="Train a small GPT as a config file says.",
        epilog=_RUNS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("train", "train, and end with a summary"),
        (
            "validate",
            "build model, data and callbacks, check that hooks could be made, say what would run; nothing is "
            "trained or sent",
        ),
    ):
        command = commands.add_parser(
            name, help=text, epilog=_RUNS, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        command.add_argument("--config", required=True, type=Path, metavar="FILE", help="YAML file")
        command.add_argument("--resume", action="store_true", help="continue the run (with {n}: the latest)")
        command.add_argument("--overwrite", action="store_true", help="replace the run in the folder")
        command.add_argument("--max-steps", metavar="N", help="train.max_steps: step to train up to")
        command.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="replace a value: optimizer.lr=3e-4, logging.hooks=[otel], "
            "logging.hooks.otel.prometheus_port=0",
        )
    return parser


def _overrides(arguments: argparse.Namespace) -> list[str]:
    overrides: list[str] = list(arguments.set)
    if arguments.max_steps is not None:
        overrides.append(f"train.max_steps={arguments.max_steps}")
    overrides += [f"run.{flag}=true" for flag in ("resume", "overwrite") if getattr(arguments, flag)]
    return overrides


def _train(config: Config) -> int:
    console = Console(stderr=True)
    if config.diloco.role == "master":
        return _be_master(config)
    opened: list[OpenRun] = []
    if console.is_terminal and config.logging.file is None:
        # The bar takes the place of the lines, which go to a file.
        logging = config.logging.model_copy(update={"file": _TEXT_LOG})
        config = config.model_copy(update={"logging": logging})

    def on_ready(trainer: Trainer, run: OpenRun) -> None:
        opened.append(run)
        _say_where_to_look(config, trainer.logger, run.ranks)
        if console.is_terminal and trainer.logger is not None and run.ranks.is_first:
            trainer.logger.hooks.append(ProgressBar(console))

    result = train_from_config(config, on_ready=on_ready)
    if opened[0].ranks.is_first:
        _print_summary(config, result, opened[0])
    if result.signal is not None:
        _end_by(result.signal)
    return 1 if result.checkpoint_error else 0


def _be_master(config: Config) -> int:
    result = run_master_from_config(config, on_ready=lambda logger: _say_where_to_look(config, logger))
    print(f"master: {result.outer_steps:,} outer steps", flush=True)
    if result.signal is not None:
        _end_by(result.signal)
    return 0


def _say_where_to_look(config: Config, logger: MetricLogger | None, ranks: Ranks | None = None) -> None:
    speaker = "" if ranks is None or ranks.is_alone else f"rank {ranks.rank}: "
    hooks = logger.hooks if logger is not None else []
    for spec, hook in zip(config.logging.hooks, hooks, strict=False):
        if location := getattr(hook, "location", None):
            print(f"{speaker}{spec.name}: {location}", flush=True)


def _print_summary(config: Config, result: TrainResult, run: OpenRun) -> None:
    names = (config.logging.file, config.logging.json_file)
    files = [path for name in names if (path := run.directory.file(name)) is not None]
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(summary_table(result, [*files, run.directory.record_path]))


def _end_by(number: signal.Signals) -> None:
    """End the process by the signal that stopped the run, so that its parent sees the usual exit status."""
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _validate(config: Config) -> None:
    """Build what stays inside this process, in a folder that is thrown away, and say what would run.

    Hooks are only checked: making one may begin a run on somebody's server, or open a port.
    """
    target = check_run_directory(
        config.run.directory, resume=config.run.resume, overwrite=config.run.overwrite
    )
    with tempfile.TemporaryDirectory() as scratch:
        run_section = config.run.model_copy(
            update={"directory": Path(scratch) / "run", "resume": False, "overwrite": False}
        )
        logging_section = config.logging.model_copy(update={"hooks": []})
        trial = config.model_copy(update={"run": run_section, "logging": logging_section})
        run = open_run(trial)
        for spec in config.logging.hooks:
            check_plugin(spec, key="logging.hooks", group=HOOKS_GROUP, context=plugin_context(config, run))
        with build_logger(trial, run=run, stream=sys.stderr) as logger:
            trainer, _ = build_runtime(trial, run=run, logger=logger)
            parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
            tokens = config.data.batch_size * config.model.context * config.train.accumulation_steps
            print(f"model: {parameters:,} parameters on {trainer.device}, {trainer.precision.name}")
            print(f"steps: up to {trainer.target_step:,}, {tokens:,} tokens each")
            print(f"run directory: {target}{' (resumed)' if config.run.resume else ''}")
            hooks = ", ".join(spec.name for spec in config.logging.hooks)
            print(f"hooks: {f'{hooks} (checked, not made)' if hooks else 'none'}")
            print(f"callbacks: {', '.join(spec.name for spec in config.callbacks) or 'none'}")


if __name__ == "__main__":
    sys.exit(main())
