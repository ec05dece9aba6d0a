"""The catalog of events as data: what a run tells, field by field.

`MetricLogger.emit` takes any event; these are the ones that this trainer, or what belongs to it, emits. Tests
hold producers and readers to this table, and the tables in ``docs/events.md`` are made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

FieldType: TypeAlias = Literal["int", "float", "str", "bool", "dict", "list"]


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a payload.

    Args:
        name: Key in the payload.
        type: Its JSON type. Each value may also be None.
        brief: Meaning, one line.
        unit: UCUM unit (``s``, ``By``, ``{step}``, ``1`` for fractions); empty for text and for quantities
            without one.
        required: Whether our own producer always sends it; other trainers may leave out any field.
        values: The closed set of its values, or empty.
        alias: Another key that readers accept for it, or empty.
    """

    name: str
    type: FieldType
    brief: str
    unit: str = ""
    required: bool = True
    values: tuple[str, ...] = ()
    alias: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the catalog.

    Args:
        name: The event's name.
        producer: What emits it.
        brief: When it is emitted, one line.
        fields: Its payload by key, without what the logger adds to every event.
        in_catalog: Whether it is one of the 14 shared with other trainers; the rest is our own.
        open_keys: Pattern of further keys that it may have, or empty.
    """

    name: str
    producer: str
    brief: str
    fields: Mapping[str, Field]
    in_catalog: bool = True
    open_keys: str = ""

    @property
    def required(self) -> frozenset[str]:
        """Keys that our own producer always sends."""
        return frozenset(name for name, field in self.fields.items() if field.required)

    @property
    def optional(self) -> frozenset[str]:
        """Keys that may be missing."""
        return frozenset(self.fields) - self.required


def _table(*fields: Field) -> Mapping[str, Field]:
    return MappingProxyType({field.name: field for field in fields})


def _maybe(
    name: str,
    json_type: FieldType,
    brief: str,
    unit: str = "",
    values: tuple[str, ...] = (),
) -> Field:
    return Field(name, json_type, brief, unit, required=False, values=values)


_STEP = Field("step", "int", "Optimizer step, the same on all ranks", "{step}")
_DURATION = _maybe("duration_s", "float", "How long it took", "s")
_SIZE = _maybe("size_bytes", "int", "Size of what was written", "By")
_ERROR = Field("error", "str", "Type and message of the exception")

LOGGER_FIELDS = _table(
    _maybe("elapsed_s", "float", "Seconds since the logger was made, unless the event has its own", "s"),
    _maybe("memory_bytes", "int", "Bytes held by the device's allocator; absent where there is none", "By"),
)
"""What `MetricLogger.emit` adds to every event."""

_TRAIN_START = Event(
    "train_start",
    "Trainer",
    "Training is about to begin",
    _table(
        Field("start_step", "int", "Step training starts from: 0, or that of the checkpoint", "{step}"),
        Field("target_step", "int", "Step training is to end at", "{step}"),
        Field("device", "str", "Device of the model, such as cpu or cuda:0"),
        Field("precision", "str", "Number format of the forward pass", values=("bf16", "fp16", "fp32")),
        Field("accumulation_steps", "int", "Micro-batches per optimizer step", "{batch}"),
        Field("parameters", "int", "Parameters that are trained", "{parameter}"),
        _maybe("samples", "int", "This rank's running total as restored", "{sample}"),
        _maybe("tokens", "int", "This rank's running total as restored", "{token}"),
        _maybe("micro_batches", "int", "This rank's running total as restored", "{batch}"),
        _maybe(
            "shape_alignment", "int", "Multiple that sizes should have; None where none is known", "{element}"
        ),
        _maybe("shape_warning_count", "int", "Sizes that are not such a multiple", "{warning}"),
        _maybe("ooo_backprop", "dict", "The payload of ooo_backprop, or None"),
        _maybe("run_id", "str", "Identity of the run over all its attempts"),
        _maybe("attempt", "int", "How often the run was started before", "{attempt}"),
        _maybe("world_size", "int", "Ranks that train together", "{rank}"),
        _maybe("time_unix_s", "float", "Wall clock at this event", "s"),
        _maybe("prior_elapsed_s", "float", "Time that earlier attempts took", "s"),
        _maybe("prior_kept_s", "float", "Of that, step time whose result was kept by a checkpoint", "s"),
        _maybe("last_step_reached", "int", "Highest step an earlier attempt reached", "{step}"),
        _maybe(
            "flops_per_token", "float", "FLOPs of a token's forward and backward pass, as the model counts"
        ),
        _maybe("peak_flops_per_s", "float", "Configured peak of one device", "{operation}/s"),
    ),
)

_TRAIN_STEP = Event(
    "train_step",
    "Trainer",
    "An optimizer step was applied",
    _table(
        _STEP,
        Field("lr", "float", "Learning rate of the first parameter group"),
        Field("steps_per_sec", "float", "Rate since the previous logged step", "{step}/s"),
        Field("samples_per_sec", "float", "Rate since the previous logged step", "{sample}/s"),
        Field("tokens_per_sec", "float", "Rate since the previous logged step", "{token}/s"),
        Field("samples", "int", "This rank's running total", "{sample}"),
        Field("tokens", "int", "This rank's running total", "{token}"),
        Field("micro_batches", "int", "This rank's running total", "{batch}", alias="microbatches"),
        _maybe("loss", "float", "Mean loss of the step's micro-batches; read at the log's cadence only"),
        _maybe("grad_norm", "float", "Norm of the gradient before clipping; read at the log's cadence only"),
        _maybe("data_wait_s", "float", "What this step alone waited for data", "s"),
        _maybe("step_s", "float", "What this step alone took", "s"),
    ),
)

_TRAIN_END = Event(
    "train_end",
    "Trainer",
    "Training has ended, in whatever way",
    _table(
        Field("steps", "int", "Step that was reached, counted from the run's beginning", "{step}"),
        Field("elapsed_s", "float", "How long this fit took", "s"),
        Field("loss", "float", "Last loss that was read"),
        _maybe("outcome", "str", "How it ended", values=("completed", "failed", "interrupted")),
        _maybe("error", "str", "Type and message of the exception that ended it"),
        _maybe("time_unix_s", "float", "Wall clock at this event", "s"),
    ),
)

_RUN_EVENTS = (
    _TRAIN_START,
    _TRAIN_STEP,
    Event(
        "checkpoint",
        "Trainer",
        "A checkpoint has been written",
        _table(
            _STEP,
            Field("path", "str", "Where it is, or would be"),
            _DURATION,
            _SIZE,
            _maybe("error", "str", "Type of the exception; absent when it was written"),
        ),
    ),
    _TRAIN_END,
    Event(
        "compile",
        "Trainer",
        "Compiling the model was tried or given up",
        _table(
            Field("enabled", "bool", "Whether the compiled model is used"),
            _maybe("reason", "str", "Why it is not"),
            _DURATION,
        ),
    ),
)

_DILOCO_EVENTS = (
    Event(
        "outer_step",
        "master outer loop",
        "The outer optimizer applied the workers' deltas",
        _table(
            Field("outer_step", "int", "Number of the outer step", "{step}"),
            Field(
                "deltas_found",
                "int",
                "Deltas that are new since the outer step before; others may count older ones",
                "{delta}",
            ),
            Field("deltas_included", "int", "Deltas that were applied", "{delta}"),
            _maybe("deltas_rejected", "int", "Deltas that were refused", "{delta}"),
            _DURATION,
        ),
    ),
    Event(
        "delta_upload_queued",
        "coordinator",
        "A delta waits for its upload",
        _table(_STEP, Field("base_outer_step", "int", "Outer step that the delta is relative to", "{step}")),
    ),
    Event("delta_uploaded", "async uploader", "A delta has been uploaded", _table(_STEP, _DURATION, _SIZE)),
    Event(
        "delta_upload_skipped",
        "coordinator",
        "A delta was not queued",
        _table(_STEP, Field("reason", "str", "Why not", values=("upload_in_flight", "queue_full"))),
    ),
    Event("delta_upload_failed", "async uploader", "An upload raised", _table(_STEP, _ERROR)),
    Event(
        "delta_upload_stale",
        "async uploader",
        "A delta's baseline was replaced before its upload",
        _table(
            _STEP,
            Field(
                "generation", "int", "Generation of the baseline that the delta was made from", "{generation}"
            ),
        ),
    ),
)

_HARDWARE_EVENTS = (
    Event(
        "shape_profile",
        "runtime",
        "The model's sizes were compared with what the device likes",
        _table(
            Field("device_type", "str", "Kind of the device, such as cpu or cuda"),
            Field("precision", "str", "Number format of the forward pass", values=("bf16", "fp16", "fp32")),
            Field("alignment", "int", "Multiple that sizes should have", "{element}"),
            Field("warning_count", "int", "Sizes that are not such a multiple", "{warning}"),
        ),
    ),
    Event(
        "shape_warning",
        "runtime",
        "A size of the model is not a multiple of the alignment",
        _table(
            Field("field", "str", "Name of the size in the configuration"),
            Field("value", "int", "What it is", "{element}"),
            Field("suggested", "int", "The next multiple", "{element}"),
            Field("alignment", "int", "Multiple that it should have", "{element}"),
            _maybe("code", "str", "Short name of the kind of warning"),
            _maybe("reason", "str", "Why it matters on this device"),
        ),
    ),
    Event(
        "ooo_backprop",
        "Trainer",
        "Whether backward passes of stages overlap on streams of their own",
        _table(
            Field("enabled", "bool", "Whether they do"),
            Field("reason", "str", "Why, or why not"),
            Field("streams", "int", "CUDA streams in use", "{stream}"),
            Field("stages", "list", "Names of the stages"),
        ),
    ),
)

_STAGE = Field("stage", "str", "What the pass is for", values=("validation", "test"))

_OWN_EVENTS = (
    Event(
        "optimizer_step_skipped",
        "Trainer",
        "The optimizer did not step, because the gradient overflowed",
        _table(_STEP, Field("reason", "str", "Why not")),
        in_catalog=False,
    ),
    Event(
        "validation_start",
        "Trainer",
        "A pass over validation or test data begins",
        _table(_STEP, _STAGE),
        in_catalog=False,
    ),
    Event(
        "validation_end",
        "Trainer",
        "A pass over validation or test data has ended",
        _table(
            _STEP,
            _STAGE,
            _maybe("loss", "float", "Mean loss of the pass"),
            _maybe("batches", "int", "Batches of the pass", "{batch}"),
            _DURATION,
        ),
        in_catalog=False,
    ),
    Event(
        "checkpoint_restore",
        "Trainer",
        "Training goes on from a checkpoint",
        _table(
            _STEP, Field("path", "str", "Where it is"), Field("duration_s", "float", "How long it took", "s")
        ),
        in_catalog=False,
    ),
    Event(
        "outer_sync",
        "coordinator",
        "Training paused to hand over a delta, to adopt global weights or to wait for them",
        _table(
            _STEP,
            Field("generation", "int", "Generation of the global weights adopted last", "{generation}"),
            Field("adopted", "bool", "Whether it was adopted just now"),
            Field("duration_s", "float", "How long training paused", "s"),
        ),
        in_catalog=False,
    ),
    Event(
        "device_stats",
        "DeviceStatsMonitor",
        "The state of the machine at the start or end of a batch",
        _table(
            _STEP,
            Field("stage", "str", "What the batch is for", values=("fit", "validation", "test")),
        ),
        in_catalog=False,
        open_keys="DeviceStatsMonitor.{hook}/{base}",
    ),
    Event(
        "hook_failed",
        "MetricLogger",
        "A hook raised: told the 1st, 10th, 100th, ... time and, with the final count, at close",
        _table(
            Field("hook", "str", "Name of the hook's class or function"),
            Field("failed_event", "str", "Event that it raised at, or close"),
            _ERROR,
            Field("count", "int", "How often it has failed so far", "{failure}"),
        ),
        in_catalog=False,
    ),
)

EVENTS: Mapping[str, Event] = MappingProxyType(
    {event.name: event for event in (*_RUN_EVENTS, *_DILOCO_EVENTS, *_HARDWARE_EVENTS, *_OWN_EVENTS)}
)
"""Every event by its name: the 14 that trainers share, then our own."""
