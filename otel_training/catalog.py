"""Every metric, attribute, event and cap of this project, as data: the one place where a name is text.

Instruments, the scrape page, dashboards, alert rules and the tables in ``docs/`` are all derived from here.
To add a metric: declare it here and feed it in ``recorder.py``; nothing else needs to know
(``docs/adding-a-metric.md``).

Units are UCUM (``s``, ``By``, ``{step}``); ``1`` is used for true fractions 0..1 only, and quantities without
a unit (loss, learning rate, norms) have an empty one, so that every road to Prometheus spells them alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

SCOPE = "otel_training"
"""Name of the OpenTelemetry instrumentation scope of all metrics and spans."""

OTHER = "other"
"""What an attribute value becomes when its attribute's cap is reached."""

MAX_ATTRIBUTE_LENGTH = 128
"""Longest attribute value in characters, unless the attribute says otherwise."""

MAX_CUSTOM_FIELDS = 200
"""Distinct (event, field) pairs that ``training.custom`` carries before ``other``."""

Kind = Literal["gauge", "counter", "updown", "histogram"]


@dataclass(frozen=True, eq=False)
class Attribute:
    """An attribute of metrics: its name, its meaning and what bounds its values.

    Args:
        name: OpenTelemetry attribute name.
        brief: Meaning, one line.
        values: The closed set of values, or empty when values come from outside.
        cap: Most distinct values from outside that are kept; later ones become ``other``.
        max_length: Longest value in characters; the rest is cut.
    """

    name: str
    brief: str
    values: tuple[str, ...] = ()
    cap: int | None = None
    max_length: int = MAX_ATTRIBUTE_LENGTH

    @property
    def label(self) -> str:
        """The attribute's name as a Prometheus label."""
        return self.name.replace(".", "_")


@dataclass(frozen=True, eq=False)
class Metric:
    """A metric as data.

    Args:
        name: OpenTelemetry metric name.
        kind: ``gauge``, ``counter``, ``updown`` or ``histogram``; the first three are observable instruments.
        unit: UCUM unit; empty for quantities without one.
        brief: Meaning, one sentence; the description of the instrument and the HELP line of the page.
        attributes: The attributes of its series, in the order in which ``state`` takes their values.
        events: Names of the events that feed it.
        bounds: Upper bounds of the buckets of a histogram, in the metric's unit.
    """

    name: str
    kind: Kind
    unit: str
    brief: str
    attributes: tuple[Attribute, ...] = ()
    events: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


_UNIT_WORDS = {
    "s": "seconds",
    "By": "bytes",
    "W": "watts",
    "J": "joules",
    "Cel": "celsius",
    "Hz": "hertz",
    "%": "percent",
}


def prometheus_unit(metric: Metric) -> str:
    """Return the unit word in the metric's Prometheus name (``seconds``, ``per_second``), or an empty string.

    Source: the OpenTelemetry specification's Prometheus compatibility page; unit ``1`` adds nothing (2026).
    """
    if metric.unit in ("", "1"):
        return ""
    words = []
    for position, part in enumerate(metric.unit.split("/")):
        bare = re.sub(r"\{[^}]*\}", "", part)
        if position and bare:
            words.append("per_" + {"s": "second"}.get(bare, bare))
        elif bare:
            words.append(_UNIT_WORDS.get(bare, bare))
    return "_".join(words)


def prometheus_name(metric: Metric, *, ratio_suffix: bool = False) -> str:
    """Return the name of the metric in Prometheus, without ``_bucket``, ``_sum`` and ``_count``.

    Args:
        metric: A metric of this catalog.
        ratio_suffix: True for the spelling that the OpenTelemetry Collector gives to gauges of unit ``1``.
    """
    name = re.sub(r"_+", "_", re.sub(r"[^a-zA-Z0-9_]", "_", metric.name))
    unit = prometheus_unit(metric)
    if unit and not name.endswith("_" + unit):
        name += "_" + unit
    if metric.unit == "1" and metric.kind == "gauge" and ratio_suffix:
        name += "_ratio"
    if metric.kind == "counter":
        name += "_total"
    return name


def _decades(steps: tuple[str, ...], first: int, limit: float) -> tuple[float, ...]:
    """Return bucket bounds: ``steps`` in each decade from ``10**first`` up, ended by ``limit`` itself."""
    bounds = [float(f"{step}e{decade}") for decade in range(first, 4) for step in steps]
    return (*(bound for bound in bounds if bound < limit), limit)


STEP_BOUNDS_S = _decades(("1", "1.5", "2", "3", "5", "7"), first=-3, limit=600.0)
WAIT_BOUNDS_S = _decades(("1", "2.5", "5"), first=-3, limit=3600.0)
LONG_BOUNDS_S = _decades(("1", "2.5", "5"), first=-2, limit=3600.0)

# fmt: off
# One entry reads as one row of a table; the formatter would make a page of each.

# ---------------------------------------------------------------------------------------------- attributes

RUN_ID = Attribute("training.run.id", "Identity of the run; the same on all ranks and over restarts.")
RUN_NAME = Attribute("training.run.name", "Readable name of the run.")
RANK = Attribute("training.rank", "Rank of the process in the run, from 0.")
IDENTITY = (RUN_ID, RUN_NAME, RANK)
"""The three attributes that every series carries on the scrape page and behind the collector."""

PRECISION = Attribute("training.precision", "Arithmetic of the run: fp32, bf16, fp16.", cap=20)
DEVICE_TYPE = Attribute("training.device.type", "Kind of device: cpu, cuda, mps, xla.", cap=20)
ACCUMULATION_STEPS = Attribute("training.accumulation_steps", "Micro-batches in an optimizer step.", cap=20)
FRAMEWORK = Attribute("training.framework", "Which trainer emits the events.", cap=20)
OUTCOME = Attribute("training.run.outcome", "How a run ended.", ("completed", "failed", "interrupted"))
ERROR_TYPE = Attribute("error.type", "Type of the exception; absent without one.", cap=50)
SKIP_REASON = Attribute("training.skip.reason", "Why a step or an upload was skipped.", cap=20)
FIELD = Attribute(
    "training.field", "Name of the payload field, as the trainer gave it.", cap=MAX_CUSTOM_FIELDS,
    max_length=512,
)
NONFINITE_KIND = Attribute(
    "training.nonfinite.kind", "Which non-finite value.", ("nan", "positive_infinity", "negative_infinity"),
)
TIME_STATE = Attribute(
    "training.state", "What the training thread did with the time.",
    ("step", "data_wait", "checkpoint_save", "checkpoint_restore", "compile", "validation",
     "outer_sync", "startup", "idle"),
)
STAGE = Attribute("training.stage", "validation or test.", cap=10)
COMPILE_ENABLED = Attribute(
    "training.compile.enabled", "Whether the compiled model is in use.", ("true", "false"),
)
SHAPE_FIELD = Attribute("training.shape.field", "Dimension that is not a multiple of the alignment.", cap=100)
DISPOSITION = Attribute(
    "training.delta.disposition", "What the outer step did with a delta.", ("included", "rejected"),
)
DELTA_OUTCOME = Attribute("training.delta.outcome", "How an upload ended.", ("uploaded", "failed", "skipped"))
HOOK_NAME = Attribute("training.hook.name", "Name of the hook that raised.", cap=20)
EVENT_NAME = Attribute("training.event.name", "Name of the event.", cap=50)
EVENT_OUTCOME = Attribute(
    "training.event.outcome", "What the bridge did with the event.", ("handled", "ignored", "failed"),
)
DROP_REASON = Attribute(
    "training.drop.reason", "Why a value was not kept.", ("type", "cardinality", "queue", "export"),
)

# -------------------------------------------------------------------------------------------------- metrics

_START, _STEP, _END = ("train_start",), ("train_step",), ("train_end",)
_TIMED = (
    "train_start", "train_step", "optimizer_step_skipped", "checkpoint", "checkpoint_restore", "compile",
    "validation_start", "validation_end", "train_end",
)

RUN_INFO = Metric(
    "training.run.info", "gauge", "", "Facts of the run as attributes; the value is always 1.",
    (PRECISION, DEVICE_TYPE, ACCUMULATION_STEPS, FRAMEWORK), _START,
)
RUN_ACTIVE = Metric(
    "training.run.active", "updown", "{run}", "1 while a run is between its start and its end.", (),
    (*_START, *_END),
)
RUN_RANKS = Metric("training.run.ranks", "gauge", "{rank}", "World size of the run.", (), _START)
RUNS = Metric("training.runs", "counter", "{run}", "Runs that ended.", (OUTCOME, ERROR_TYPE), _END)
RESTARTS = Metric(
    "training.restarts", "counter", "{restart}", "Restarts of the run before this attempt.", (), _START,
)
MODEL_PARAMETERS = Metric(
    "training.model.parameters", "gauge", "{parameter}", "Parameters of the model.", (), _START,
)

STEPS = Metric("training.steps", "counter", "{step}", "Optimizer steps applied by this process.", (), _STEP)
STEP_CURRENT = Metric(
    "training.step.current", "gauge", "{step}", "Number of the last step.", (), (*_START, *_STEP),
)
STEP_TARGET = Metric(
    "training.step.target", "gauge", "{step}", "Number of the step at which the run ends.", (), _START,
)
STEP_LAST_TIME = Metric("training.step.last_time", "gauge", "s", "Unix time of the last step.", (), _STEP)
STEP_DURATION = Metric(
    "training.step.duration", "histogram", "s",
    "Wall time between steps divided by the steps done, without validation and checkpoints.", (), _STEP,
    STEP_BOUNDS_S,
)
STEP_SKIPS = Metric(
    "training.step.skips", "counter", "{step}", "Optimizer steps not applied.", (SKIP_REASON,),
    ("optimizer_step_skipped",),
)
STEP_REPLAYS = Metric(
    "training.step.replays", "counter", "{step}", "Steps done again after a resume.", (), _STEP,
)
SAMPLES = Metric("training.samples", "counter", "{sample}", "Samples trained on by this rank.", (), _STEP)
TOKENS = Metric("training.tokens", "counter", "{token}", "Tokens trained on by this rank.", (), _STEP)
MICRO_BATCHES = Metric(
    "training.micro_batches", "counter", "{batch}", "Micro-batches trained on by this rank.", (), _STEP,
)
THROUGHPUT_STEPS = Metric(
    "training.throughput.steps", "gauge", "{step}/s", "Steps per second over the last minute.", (), _STEP,
)
THROUGHPUT_SAMPLES = Metric(
    "training.throughput.samples", "gauge", "{sample}/s",
    "Samples per second of this rank over the last minute.", (), _STEP,
)
THROUGHPUT_TOKENS = Metric(
    "training.throughput.tokens", "gauge", "{token}/s",
    "Tokens per second of this rank over the last minute.", (), _STEP,
)
LOSS = Metric("training.loss", "gauge", "", "Training loss last reported.", (), (*_STEP, *_END))
LEARNING_RATE = Metric("training.learning_rate", "gauge", "", "Learning rate of the last step.", (), _STEP)
GRADIENT_NORM = Metric(
    "training.gradient.norm", "gauge", "", "Norm of the gradients before clipping, last reported.", (), _STEP,
)
VALIDATION_LOSS = Metric(
    "training.validation.loss", "gauge", "", "Loss of the last validation.", (STAGE,), ("validation_end",),
)
NONFINITE_VALUES = Metric(
    "training.nonfinite.values", "counter", "{value}",
    "NaN and infinite values seen in payloads; never exported themselves.", (FIELD, NONFINITE_KIND),
    (*_STEP, "validation_end", *_END),
)
FLOPS_UTILIZATION = Metric(
    "training.flops.utilization", "gauge", "1",
    "Model FLOPs utilization: tokens per second times FLOPs per token by the peak of the device.", (), _STEP,
)
DATA_WAIT_DURATION = Metric(
    "training.data.wait.duration", "histogram", "s", "Time that a step waited for its data.", (), _STEP,
    WAIT_BOUNDS_S,
)
TIME = Metric(
    "training.time", "counter", "s", "Wall time of the training thread up to its last event, by state.",
    (TIME_STATE,), _TIMED,
)
GOODPUT_UTILIZATION = Metric(
    "training.goodput.utilization", "gauge", "1",
    "Part of the wall time since the first attempt that went into steps which were kept.", (), _TIMED,
)

CHECKPOINTS = Metric(
    "training.checkpoints", "counter", "{checkpoint}",
    "Checkpoint saves; error.type is set on those that failed.", (ERROR_TYPE,), ("checkpoint",),
)
CHECKPOINT_DURATION = Metric(
    "training.checkpoint.duration", "histogram", "s", "Time to save a checkpoint.", (), ("checkpoint",),
    LONG_BOUNDS_S,
)
CHECKPOINT_SIZE = Metric(
    "training.checkpoint.size", "gauge", "By", "Size of the last checkpoint.", (), ("checkpoint",),
)
CHECKPOINT_LAST_STEP = Metric(
    "training.checkpoint.last_step", "gauge", "{step}", "Step of the last checkpoint.", (),
    ("checkpoint", "checkpoint_restore"),
)
CHECKPOINT_LAST_TIME = Metric(
    "training.checkpoint.last_time", "gauge", "s", "Unix time of the last checkpoint of this process.", (),
    ("checkpoint",),
)
COMPILE_ATTEMPTS = Metric(
    "training.compile.attempts", "counter", "{attempt}", "Attempts to compile the model.", (COMPILE_ENABLED,),
    ("compile",),
)
OOO_ENABLED = Metric(
    "training.ooo_backprop.enabled", "gauge", "", "1 while out-of-order backprop is on, else 0.", (),
    ("ooo_backprop", *_START),
)
OOO_STREAMS = Metric(
    "training.ooo_backprop.streams", "updown", "{stream}", "Streams used by out-of-order backprop.", (),
    ("ooo_backprop", *_START),
)
SHAPE_WARNINGS = Metric(
    "training.shape.warnings", "counter", "{warning}", "Dimensions that are not a multiple of the alignment.",
    (SHAPE_FIELD,), ("shape_warning", *_START),
)
SHAPE_ALIGNMENT = Metric(
    "training.shape.alignment", "gauge", "{element}", "Alignment that shapes are checked against.", (),
    ("shape_profile", *_START),
)

OUTER_STEPS = Metric("training.outer.steps", "counter", "{step}", "Outer steps applied.", (), ("outer_step",))
OUTER_STEP_CURRENT = Metric(
    "training.outer.step.current", "gauge", "{step}", "Number of the last outer step.", (), ("outer_step",),
)
OUTER_CANDIDATES = Metric(
    "training.outer.candidates", "gauge", "{delta}", "Deltas found by the last outer step.", (),
    ("outer_step",),
)
OUTER_DELTAS = Metric(
    "training.outer.deltas", "counter", "{delta}", "Deltas by what outer steps did with them.",
    (DISPOSITION,), ("outer_step",),
)
OUTER_STEP_DURATION = Metric(
    "training.outer.step.duration", "histogram", "s", "Time of an outer step.", (), ("outer_step",),
    LONG_BOUNDS_S,
)
DELTA_UPLOADS = Metric(
    "training.delta.uploads", "counter", "{upload}", "Delta uploads by outcome.",
    (DELTA_OUTCOME, SKIP_REASON), ("delta_uploaded", "delta_upload_failed", "delta_upload_skipped"),
)
DELTA_STALE = Metric(
    "training.delta.stale", "counter", "{delta}", "Deltas whose baseline was no longer the newest.", (),
    ("delta_upload_stale",),
)
DELTA_ACTIVE_UPLOADS = Metric(
    "training.delta.active_uploads", "updown", "{upload}", "Uploads queued and not yet answered.", (),
    ("delta_upload_queued", "delta_uploaded", "delta_upload_failed", "delta_upload_stale"),
)
DELTA_UPLOAD_DURATION = Metric(
    "training.delta.upload.duration", "histogram", "s", "Time from queueing a delta to its answer.", (),
    ("delta_uploaded", "delta_upload_failed", "delta_upload_stale"), LONG_BOUNDS_S,
)

DEVICE_MEMORY_USAGE = Metric(
    "training.device.memory.usage", "updown", "By", "Device memory in use, as the trainer's log reads it.",
    (), ("train_step",),
)
HOOK_FAILURES = Metric(
    "training.hook.failures", "counter", "{failure}", "Exceptions raised by hooks of the log.", (HOOK_NAME,),
    ("hook_failed",),
)
CUSTOM = Metric(
    "training.custom", "gauge", "", "Numbers of events and fields outside the catalog.", (EVENT_NAME, FIELD),
    ("train_step",),
)
BRIDGE_EVENTS = Metric(
    "training.bridge.events", "counter", "{event}", "Events that reached the bridge.",
    (EVENT_NAME, EVENT_OUTCOME), ("train_step",),
)
BRIDGE_DROPS = Metric(
    "training.bridge.drops", "counter", "{value}", "Values the bridge did not keep or deliver.",
    (DROP_REASON,),
)

# fmt: on

METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""All metrics, in the order of this file, which is the order of the scrape page and of the docs."""

# --------------------------------------------------------------------------------------------------- events

EVERYWHERE = frozenset({"elapsed_s", "memory_bytes"})
"""Fields that the trainer's log adds to any event."""

EVENTS: Mapping[str, frozenset[str]] = {
    event: frozenset(fields.split()) | EVERYWHERE
    for event, fields in {
        "train_start": "start_step target_step device precision accumulation_steps parameters samples tokens"
        " micro_batches shape_alignment shape_warning_count ooo_backprop run_id attempt world_size time_unix_s"
        " prior_elapsed_s prior_kept_s last_step_reached framework flops_per_token peak_flops_per_s",
        "train_step": "step lr steps_per_sec samples_per_sec tokens_per_sec samples tokens micro_batches loss"
        " grad_norm data_wait_s step_s",
        "checkpoint": "step path duration_s size_bytes error",
        "train_end": "steps elapsed_s loss outcome error time_unix_s",
        "compile": "enabled reason duration_s",
        "outer_step": "outer_step deltas_found deltas_included deltas_rejected duration_s",
        "delta_upload_queued": "step base_outer_step",
        "delta_uploaded": "step duration_s size_bytes",
        "delta_upload_skipped": "step reason",
        "delta_upload_failed": "step error",
        "delta_upload_stale": "step generation",
        "shape_profile": "device_type precision alignment warning_count",
        "shape_warning": "field value suggested alignment code reason",
        "ooo_backprop": "enabled reason streams stages",
        "optimizer_step_skipped": "step reason",
        "validation_start": "step stage loss batches duration_s",
        "validation_end": "step stage loss batches duration_s",
        "checkpoint_restore": "step path duration_s",
        "hook_failed": "hook failed_event error count",
    }.items()
}
"""The fields of each event that mean something; numbers in others reach ``training.custom``."""
