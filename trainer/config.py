"""The configuration of a run: one YAML file, validated as a whole before anything starts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from trainer.diloco.settings import DiLoCoSection
from trainer.overrides import apply_override, parse_override
from trainer.problems import ConfigError, describe_problems, yaml_problem
from trainer.section import Section
from trainer.signals import parse_signal


class PluginSpec(Section):
    """A hook or callback: a short name or ``package.module:factory``, and its keyword arguments."""

    name: str
    arguments: dict[str, Any] = Field(default={})


def _plugin_from_yaml(value: object) -> object:
    """Turn ``name`` or ``{name: {argument: value}}`` into the fields of a :class:`PluginSpec`."""
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, dict) and len(value) == 1:
        name, arguments = next(iter(value.items()))
        if isinstance(name, str) and isinstance(arguments, dict | None):
            return {"name": name, "arguments": arguments or {}}
    if isinstance(value, PluginSpec):
        return value
    raise ValueError("must be a name or {name: {argument: value}}")


Plugin = Annotated[PluginSpec, BeforeValidator(_plugin_from_yaml)]


class RunSection(Section):
    """Which run this is, where it keeps its files and where it runs."""

    directory: Path = Field(
        default=Path("runs/run-{n}"),
        description="Folder of the run; {n} is the next free number, on resume the highest one",
    )
    name: str | None = Field(default=None, description="Name for people")
    id: str | None = Field(
        default=None, min_length=1, description="Identity over all attempts; null = made up and kept"
    )
    seed: int = Field(default=1337, ge=0, lt=2**63, description="Seed of weights, dropout and data order")
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:N or mps")
    peak_flops_per_s: float | None = Field(
        default=None,
        gt=0,
        description="Peak of one device in this precision, for the FLOPs utilization: 989e12 for bf16 on an "
        "H100; null = unknown",
    )
    resume: bool = Field(default=False, description="Continue the run in the folder")
    overwrite: bool = Field(default=False, description="Remove the run in the folder and start anew")

    @model_validator(mode="after")
    def _not_both(self) -> RunSection:
        if self.resume and self.overwrite:
            raise ValueError("resume and overwrite exclude each other")
        return self


class ModelSection(Section):
    """Size of the GPT."""

    layers: int = Field(default=4, ge=1, description="Transformer blocks")
    heads: int = Field(default=4, ge=1, description="Attention heads; divides width")
    width: int = Field(default=128, ge=1, description="Size of the residual stream")
    context: int = Field(default=128, ge=1, description="Tokens seen at once")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="Probability of dropping an activation")

    @model_validator(mode="after")
    def _heads_divide_width(self) -> ModelSection:
        if self.width % self.heads:
            raise ValueError(
                f"width must be a multiple of heads, got width {self.width} and heads {self.heads}"
            )
        return self


class DataSection(Section):
    """Text to train on, read as bytes."""

    paths: list[str] = Field(
        default=["stdlib"],
        min_length=1,
        description="Files, folders, globs; stdlib = Python's own source text",
    )
    sampling: Literal["random", "sequential"] = Field(default="random", description="Where blocks start")
    batch_size: int = Field(default=16, ge=1, description="Blocks of a micro-batch")
    workers: int = Field(default=0, ge=0, description="Worker processes that read")
    holdout_fraction: float = Field(
        default=0.01, ge=0, lt=1, description="Tail held out, half for validation and half for test"
    )


class TrainSection(Section):
    """How long and how to train."""

    max_steps: int = Field(default=1000, ge=1, description="Step to train up to, counted over all attempts")
    max_time_s: float | None = Field(
        default=None, gt=0, description="Stop after so many seconds; null = no limit"
    )
    accumulation_steps: int = Field(default=1, ge=1, description="Micro-batches of an optimizer step")
    precision: Literal["auto", "bf16", "fp16", "fp32"] = Field(
        default="auto", description="Number format of the model"
    )
    compile: bool = Field(default=False, description="Try torch.compile, with eager as the way back")
    compile_backend: str = Field(default="inductor", description="Backend of torch.compile")
    ooo_backprop: bool = Field(
        default=False, description="Stages of the model on CUDA streams of their own, where that can be had"
    )
    ooo_streams: int = Field(default=4, ge=1, le=8, description="Streams of out-of-order backprop")
    validate_every_steps: int | None = Field(
        default=None, ge=1, description="Cadence of validation; null = never"
    )
    validation_batches: int = Field(default=20, ge=1, description="Batches of one validation of each rank")
    stop_signals: list[str] = Field(
        default=[], description="Stop on these too, beside SIGTERM and SIGINT: [SIGUSR1]"
    )

    @field_validator("stop_signals")
    @classmethod
    def _known_signals(cls, names: list[str]) -> list[str]:
        for name in names:
            parse_signal(name)
        return names

    def signals(self) -> tuple[signal.Signals, ...]:
        """Return the configured stop signals."""
        return tuple(parse_signal(name) for name in self.stop_signals)


class ShapesSection(Section):
    """Sizes that are compared with what the device likes, once at the start; they are only warned about."""

    alignment: Literal["auto"] | Annotated[int, Field(ge=1)] | None = Field(
        default="auto",
        description="Multiple that sizes should have; auto = 8 in half precision on CUDA, null = no check",
    )
    vocabulary: bool = Field(default=False, description="Check the vocabulary as well")


class OptimizerSection(Section):
    """AdamW, its schedule and its safeguards."""

    lr: float = Field(default=1e-3, gt=0, description="Peak learning rate")
    betas: tuple[float, float] = Field(default=(0.9, 0.95), description="Decay of the two moments")
    weight_decay: float = Field(default=0.1, ge=0, description="On matrices; vectors are not decayed")
    warmup_steps: int = Field(default=0, ge=0, description="Linear rise of the learning rate")
    decay_steps: int | None = Field(
        default=None, ge=1, description="Step at which the cosine decay ends; null = no decay"
    )
    min_lr_fraction: float = Field(
        default=0.1, ge=0, le=1, description="Floor of the decay, as a fraction of lr"
    )
    clip_norm: float | None = Field(
        default=1.0, gt=0, description="Longest gradient norm; null = no clipping"
    )
    nonfinite_check: Literal["auto", "always"] = Field(
        default="auto", description="always = look at each step, at the price of a device sync"
    )

    @field_validator("betas")
    @classmethod
    def _fractions(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError("must be two numbers from 0 up to, not including, 1")
        return betas

    @model_validator(mode="after")
    def _decay_after_warmup(self) -> OptimizerSection:
        if self.decay_steps is not None and self.decay_steps <= self.warmup_steps:
            raise ValueError(f"decay_steps must be more than warmup_steps, got {self.decay_steps}")
        return self


class CheckpointSection(Section):
    """Checkpoints; one is always written at the end."""

    directory: Path = Field(default=Path("checkpoints"), description="Folder, relative to that of the run")
    every_steps: int | None = Field(default=None, ge=1, description="Cadence; null = at the end only")
    keep_last: int | None = Field(default=3, ge=1, description="How many to keep; null = all")


class LoggingSection(Section):
    """Text log, JSON lines and hooks."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = Field(
        default="INFO", description="Of the text log"
    )
    file: Path | None = Field(
        default=None, description="Text log in place of stdout, relative to the run's folder"
    )
    json_file: Path | None = Field(
        default=Path("metrics.jsonl"), description="JSON lines, relative to the run's folder; null = none"
    )
    every_steps: int = Field(
        default=1, ge=1, description="Cadence of train_step in the logs, and of reading the loss"
    )
    hooks: list[Plugin] = Field(default=[], description="Hooks: short name or package.module:factory")


class Config(Section):
    """Everything about a run."""

    run: RunSection = RunSection()
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    train: TrainSection = TrainSection()
    shapes: ShapesSection = ShapesSection()
    optimizer: OptimizerSection = OptimizerSection()
    checkpoint: CheckpointSection = CheckpointSection()
    logging: LoggingSection = LoggingSection()
    diloco: DiLoCoSection = DiLoCoSection()
    callbacks: list[Plugin] = Field(
        default=[], description="Batch callbacks: short name or package.module:factory"
    )

    @model_validator(mode="after")
    def _a_delta_is_made(self) -> Config:
        inner_steps, max_steps = self.diloco.inner_steps, self.train.max_steps
        if self.diloco.is_worker and inner_steps > max_steps:
            raise ValueError(
                f"diloco.inner_steps {inner_steps} is more than train.max_steps {max_steps}: training would "
                "be over before the first outer step"
            )
        return self


def load_config(
    path: str | os.PathLike[str] | None = None, overrides: Iterable[str] | Mapping[str, Any] = ()
) -> Config:
    """Return the configuration in a YAML file, with some of its values replaced.

    Args:
        path: The file; None = all defaults.
        overrides: ``"train.max_steps=5"`` strings, their values parsed as YAML, or a mapping of dotted
            keys to values.

    Raises:
        ConfigError: The file or a value is not accepted; one line per problem names the key, the value and
        what is.
    """
    tree = {} if path is None else _read_yaml(Path(path))
    if isinstance(overrides, Mapping):
        pairs = list(overrides.items())
    else:
        pairs = [parse_override(text) for text in overrides]
    for key, value in pairs:
        apply_override(tree, key, value)
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(describe_problems(error, Config)) from None


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            [f"cannot read config file {path}: {getattr(error, 'strerror', None) or error}"]
        ) from None
    except yaml.YAMLError as error:
        raise ConfigError([f"config file {path} is not YAML: {yaml_problem(error)}"]) from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError([f"config file {path} must hold sections ({', '.join(Config.model_fields)})"])
    return tree
