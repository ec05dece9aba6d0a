"""Events become spans: a method per event, and every span closed, whatever ends the run.

A run's trace stays small however long the run is: windows of steps are roots of traces of their own, linked
to the run.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN_CONTEXT, Span, SpanContext, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otel_training.catalog import (
    ACCUMULATION_STEPS,
    COMPILE_ENABLED,
    DELTA_OUTCOME,
    OUTCOME,
    PRECISION,
    RUN_ID,
    STAGE,
    spans,
)
from otel_training.catalog.kinds import Attribute
from otel_training.catalog.kinds import Span as SpanData
from otel_training.clock import Moment
from otel_training.span_writer import ROOT, SpanWriter
from otel_training.values import Number, finite
from otel_training.windows import Windows

logger = logging.getLogger("otel_training")

Payload = Mapping[Any, Any]

_MAX_OPEN_UPLOADS = 1000
_MAX_EARLY_SPANS = 100

_RUN_FIELDS = {
    spans.START_STEP: "start_step",
    spans.TARGET_STEP: "target_step",
    spans.PARAMETERS: "parameters",
    PRECISION: "precision",
    spans.DEVICE: "device",
    ACCUMULATION_STEPS: "accumulation_steps",
    spans.ATTEMPT: "attempt",
    spans.WORLD_SIZE: "world_size",
}


@dataclass(frozen=True, kw_only=True)
class TracingOptions:
    """Which spans are made of steps.

    Args:
        step_span_ratio: Part of all steps that get a span, 0 to 1.
        slow_step_factor: A step that takes more than this many medians gets a span; from 1.
        window_s: Length of a window in seconds, above 0.
        windows_on_all_ranks: Whether ranks other than 0 make windows too.

    Raises:
        ValueError: An option is out of range.
    """

    step_span_ratio: float = 0.0
    slow_step_factor: float = 3.0
    window_s: float = 60.0
    windows_on_all_ranks: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.step_span_ratio <= 1.0:
            raise ValueError(f"step_span_ratio={self.step_span_ratio!r}: accepted is 0 to 1")
        if not self.slow_step_factor >= 1.0:
            raise ValueError(f"slow_step_factor={self.slow_step_factor!r}: accepted is a number from 1")
        if not self.window_s > 0.0:
            raise ValueError(f"window_s={self.window_s!r}: accepted is a number of seconds above 0")


class Tracing:
    """Writes the spans of one run.

    Args:
        tracer: Makes the spans.
        identity: Attributes that each span carries.
        rank: Of this process.
        options: Which spans are made of steps.
        environ: Where ``TRACEPARENT`` is looked up, which becomes the run's parent.
        now: When the bridge was set up.
        on_start: Called when a run has started: its span should leave soon.
    """

    def __init__(
        self,
        tracer: Tracer,
        identity: Mapping[str, str | int],
        rank: int,
        options: TracingOptions,
        environ: Mapping[str, str],
        now: Moment,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        self._writer = SpanWriter(tracer, identity, now)
        self._on_start = on_start
        self._run_id = identity.get(RUN_ID.name)
        carrier = {name.lower(): environ[name] for name in ("TRACEPARENT", "TRACESTATE") if name in environ}
        self._outside = TraceContextTextMapPropagator().extract(carrier, ROOT)
        self._windows = Windows(
            self._writer,
            window_s=options.window_s if rank == 0 or options.windows_on_all_ranks else None,
            step_span_ratio=options.step_span_ratio,
            slow_step_factor=options.slow_step_factor,
        )
        self._run: Span | None = None
        self._run_context: SpanContext = INVALID_SPAN_CONTEXT
        self._parent: Context = self._outside
        self._last_step: Number | None = None
        self._early: list[Callable[[], None]] = []
        self._validation_since_s: float | None = None
        self._uploads: OrderedDict[Number | None, Span] = OrderedDict()
        self._handlers: dict[str, Callable[[Payload, float], None]] = {
            "train_start": self._train_start,
            "train_end": self._train_end,
            "checkpoint": self._checkpoint,
            "checkpoint_restore": self._checkpoint_restore,
            "compile": self._compile,
            "validation_start": self._validation_start,
            "validation_end": self._validation_end,
            "outer_step": self._outer_step,
            "delta_upload_queued": self._queued,
            "delta_uploaded": self._uploaded,
            "delta_upload_failed": self._failed,
            "delta_upload_stale": self._stale,
        }

    def record(self, event: str, payload: Payload, now: Moment) -> None:
        """Take one event in; steps come by ``step``."""
        handler = self._handlers.get(event)
        if handler is not None:
            handler(payload, now.monotonic_s)

    def step(self, payload: Payload, now: Moment, duration_s: float | None, applied: Number) -> None:
        """Take in a train_step that stands for ``applied`` steps of ``duration_s`` seconds each."""
        step = finite(payload.get("step"))
        self._last_step = self._last_step if step is None else step
        self._windows.step(payload, now.monotonic_s, duration_s, applied, self._run_context)

    @property
    def span_of_step(self) -> SpanContext | None:
        """The span that tells most of the last step: its own, its window or the run; None when not kept."""
        span = self._windows.span_of_step or self._run_context
        return span if span.trace_flags.sampled else None

    def close(self, now: Moment) -> None:
        """End what is still open; nothing more will come."""
        self._windows.close(now.monotonic_s)
        self._write_early()
        while self._uploads:
            _, upload = self._uploads.popitem(last=False)
            self._writer.end(upload, now.monotonic_s, {})
        self._end_run(now.monotonic_s, {OUTCOME: "interrupted"}, None)

    # ------------------------------------------------------------------------------------------- the run

    def _train_start(self, payload: Payload, now_s: float) -> None:
        self._windows.close(now_s)
        self._end_run(now_s, {OUTCOME: "interrupted"}, None)  # if no end was told
        self._validation_since_s = None
        values: dict[Attribute, Any] = {name: payload.get(field) for name, field in _RUN_FIELDS.items()}
        if payload.get("run_id") != self._run_id:
            values[spans.TRAINER_RUN_ID] = payload.get("run_id")
        self._start_run(now_s, values)
        self._writer.whole(spans.RUN_START_SPAN, now_s, now_s, self._parent, values)
        self._windows.begin(finite(payload.get("tokens")) or 0)
        self._last_step = finite(payload.get("start_step"))
        self._write_early()
        self._on_start()

    def _start_run(self, at_s: float, values: Mapping[Attribute, Any]) -> Span:
        run = self._run = self._writer.start(spans.RUN_SPAN, at_s, self._outside, values)
        self._run_context = run.get_span_context()
        self._parent = set_span_in_context(run, ROOT)
        if self._run_context.is_valid and not self._run_context.trace_flags.sampled:
            logger.warning("the trace sampler dropped the span of this run; OTEL_TRACES_SAMPLER decides that")
        return run

    def _train_end(self, payload: Payload, now_s: float) -> None:
        self._windows.close(now_s)
        if self._run is None:
            if self._run_context.is_valid:
                return  # the end was told twice
            self._start_run(now_s - max(0.0, finite(payload.get("elapsed_s")) or 0.0), {})
        self._write_early()
        outcome = payload.get("outcome") or "completed"
        error = payload.get("error")
        steps = finite(payload.get("steps"))
        self._end_run(
            now_s,
            {
                spans.FINAL_STEP: self._last_step if steps is None else steps,
                OUTCOME: outcome,
                spans.LOSS: payload.get("loss"),
            },
            (error or "Error: failed") if outcome == "failed" else None,
        )

    def _end_run(self, now_s: float, values: Mapping[Attribute, Any], error: Any) -> None:
        run, self._run = self._run, None
        if run is not None:
            self._writer.end(run, now_s, {spans.FINAL_STEP: self._last_step, **values}, error)

    # ------------------------------------------------------------------------------ what happens in a run

    def _in_run(
        self,
        data: SpanData,
        payload: Payload,
        now_s: float,
        values: Mapping[Attribute, Any],
        error: Any = None,
    ) -> None:
        """Write a span that ends now and took the event's duration; one before the run is kept for it."""
        duration_s = max(0.0, finite(payload.get("duration_s")) or 0.0)

        def write() -> None:
            self._writer.whole(data, now_s - duration_s, now_s, self._parent, values, error)

        # A master of DiLoCo has outer steps and no run: there is nothing to wait for.
        if self._run_context.is_valid or data is spans.OUTER_STEP_SPAN:
            write()
        elif len(self._early) < _MAX_EARLY_SPANS:
            self._early.append(write)

    def _write_early(self) -> None:
        early, self._early = self._early, []
        for write in early:
            write()

    def _checkpoint(self, payload: Payload, now_s: float) -> None:
        values = {
            spans.STEP: payload.get("step"),
            spans.PATH: payload.get("path"),
            spans.SIZE: payload.get("size_bytes"),
        }
        self._in_run(spans.CHECKPOINT_SAVE_SPAN, payload, now_s, values, payload.get("error"))

    def _checkpoint_restore(self, payload: Payload, now_s: float) -> None:
        values = {spans.STEP: payload.get("step"), spans.PATH: payload.get("path")}
        self._in_run(spans.CHECKPOINT_RESTORE_SPAN, payload, now_s, values)

    def _compile(self, payload: Payload, now_s: float) -> None:
        enabled, reason = bool(payload.get("enabled")), payload.get("reason")
        values = {COMPILE_ENABLED: enabled, spans.REASON: reason}
        # A duration says that compiling was tried: ending up disabled then is a fall-back.
        fell_back = not enabled and payload.get("duration_s") is not None
        self._in_run(
            spans.COMPILE_SPAN, payload, now_s, values, (reason or "fell back") if fell_back else None
        )

    def _validation_start(self, _payload: Payload, now_s: float) -> None:
        self._validation_since_s = now_s

    def _validation_end(self, payload: Payload, now_s: float) -> None:
        since_s, self._validation_since_s = self._validation_since_s, None
        if payload.get("duration_s") is None and since_s is not None:
            payload = {**payload, "duration_s": now_s - since_s}
        values = {
            spans.STEP: payload.get("step"),
            STAGE: payload.get("stage"),
            spans.BATCHES: payload.get("batches"),
            spans.LOSS: payload.get("loss"),
        }
        self._in_run(spans.VALIDATION_SPAN, payload, now_s, values)

    def _outer_step(self, payload: Payload, now_s: float) -> None:
        values = {
            spans.OUTER_STEP: payload.get("outer_step"),
            spans.DELTAS_FOUND: payload.get("deltas_found"),
            spans.DELTAS_INCLUDED: payload.get("deltas_included"),
        }
        self._in_run(spans.OUTER_STEP_SPAN, payload, now_s, values)

    # ----------------------------------------------------------------------------------------- uploads

    def _queued(self, payload: Payload, now_s: float) -> None:
        step = finite(payload.get("step"))
        self._answer(step, now_s, {})  # queued again: the former upload had no answer
        if len(self._uploads) >= _MAX_OPEN_UPLOADS:
            self._answer(next(iter(self._uploads)), now_s, {})
        values = {spans.STEP: step, spans.BASE_OUTER_STEP: payload.get("base_outer_step")}
        self._uploads[step] = self._writer.start(spans.DELTA_UPLOAD_SPAN, now_s, self._parent, values)

    def _uploaded(self, payload: Payload, now_s: float) -> None:
        self._answer(finite(payload.get("step")), now_s, {DELTA_OUTCOME: "uploaded"})

    def _failed(self, payload: Payload, now_s: float) -> None:
        error = payload.get("error") or "Error: upload failed"
        self._answer(finite(payload.get("step")), now_s, {DELTA_OUTCOME: "failed"}, error)

    def _stale(self, payload: Payload, now_s: float) -> None:
        values = {DELTA_OUTCOME: "stale", spans.GENERATION: payload.get("generation")}
        self._answer(finite(payload.get("step")), now_s, values)

    def _answer(
        self, step: Number | None, now_s: float, values: Mapping[Attribute, Any], error: Any = None
    ) -> None:
        upload = self._uploads.pop(step, None)
        if upload is not None:
            self._writer.end(upload, now_s, values, error)
