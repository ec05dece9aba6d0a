"""The metrics, in the order of the scrape page and of the docs."""

from __future__ import annotations

from otel_training.catalog.attributes import (
    ACCUMULATION_STEPS,
    COMPILE_ENABLED,
    DELTA_OUTCOME,
    DEVICE_TYPE,
    DISPOSITION,
    DROP_REASON,
    ERROR_TYPE,
    EVENT_NAME,
    EVENT_OUTCOME,
    FIELD,
    FRAMEWORK,
    HOOK_NAME,
    NONFINITE_KIND,
    OUTCOME,
    PRECISION,
    SHAPE_FIELD,
    SKIP_REASON,
    STAGE,
    TIME_STATE,
)
from otel_training.catalog.devices import DEVICE_METRICS
from otel_training.catalog.kinds import Metric


def _decades(steps: tuple[str, ...], first: int, limit: float) -> tuple[float, ...]:
    """Return bucket bounds: ``steps`` in each decade from ``10**first`` up, ended by ``limit`` itself."""
    bounds = [float(f"{step}e{decade}") for decade in range(first, 4) for step in steps]
    return (*(bound for bound in bounds if bound < limit), limit)


STEP_BOUNDS_S = _decades(("1", "1.5", "2", "3", "5", "7"), first=-3, limit=600.0)
WAIT_BOUNDS_S = _decades(("1", "2.5", "5"), first=-3, limit=3600.0)
LONG_BOUNDS_S = _decades(("1", "2.5", "5"), first=-2, limit=3600.0)

# fmt: off
# One entry reads as one row of a table; the formatter would make a page of each.


_START, _STEP, _END = ("train_start",), ("train_step",), ("train_end",)
_TIMED = (
    "train_start", "train_step", "optimizer_step_skipped", "checkpoint", "checkpoint_restore", "compile",
    "validation_start", "validation_end", "outer_sync", "train_end",
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

METRICS: tuple[Metric, ...] = (
    *(value for value in list(globals().values()) if isinstance(value, Metric)),
    *DEVICE_METRICS,
)
"""All metrics, in the order of this file, then of ``devices.py``: that of the scrape page and of the docs."""
