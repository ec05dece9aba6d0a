"""Windows of steps as spans, and the steps in them that get a span of their own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from opentelemetry.trace import Span, SpanContext, set_span_in_context

from otel_training.catalog import spans
from otel_training.span_writer import ROOT, SpanWriter
from otel_training.step_stats import SlowSteps, WindowFigures
from otel_training.values import Number, finite, number


class Windows:
    """Opens a window at the first step, closes it when its time is over, and writes step spans into it.

    Args:
        writer: Writes the spans.
        window_s: Length of a window in seconds; None for no windows.
        step_span_ratio: Part of all steps that get a span, 0 to 1.
        slow_step_factor: A step that takes more than this many medians gets a span.
    """

    def __init__(
        self, writer: SpanWriter, *, window_s: float | None, step_span_ratio: float, slow_step_factor: float
    ) -> None:
        self._writer = writer
        self._window_s = window_s
        self._ratio = step_span_ratio
        self._due = 0.0
        self._slow = SlowSteps(slow_step_factor)
        self._span: Span | None = None
        self.span_of_step: SpanContext | None = None
        """The last step's own span, else that of its window; None where neither was made."""
        self._start_s = 0.0
        self._figures = WindowFigures()
        self._tokens_before: Number | None = None
        self._tokens: Number | None = None

    def step(
        self,
        payload: Mapping[Any, Any],
        now_s: float,
        duration_s: float | None,
        applied: Number,
        run: SpanContext | None,
    ) -> None:
        """Take a step in.

        Args:
            payload: Of the train_step event.
            now_s: When it arrived, on the monotonic clock.
            duration_s: Seconds that each step took.
            applied: How many steps the event stands for.
            run: The run's span, which the window links to.
        """
        started_s = now_s - (duration_s or 0.0) * applied
        if self._window_s is not None and self._span is None:
            self._open(started_s, run)
        figures = self._figures
        figures.add_step(finite(payload.get("step")), duration_s, applied)
        for field in ("loss", "grad_norm"):
            value = number(payload.get(field))
            if value is not None and not math.isfinite(value):
                figures.nonfinite_count += 1
        loss = finite(payload.get("loss"))
        figures.loss = figures.loss if loss is None else loss
        tokens = finite(payload.get("tokens"))
        self._tokens = self._tokens if tokens is None else tokens
        self.span_of_step = None if self._span is None else self._span.get_span_context()
        self._write_step(payload, now_s, duration_s, run)
        if self._window_s is not None and now_s - self._start_s >= self._window_s:
            self.close(now_s)

    def close(self, now_s: float) -> None:
        """End the open window, if there is one."""
        span, self._span = self._span, None
        if span is None:
            return
        figures = self._figures
        mean_s = figures.total_s / figures.steps_count if figures.steps_count else None
        tokens = None
        if self._tokens is not None and self._tokens_before is not None:
            tokens = max(0, self._tokens - self._tokens_before)
        self._tokens_before = self._tokens
        self._writer.end(
            span,
            now_s,
            {
                spans.FIRST_STEP: figures.first_step,
                spans.LAST_STEP: figures.last_step,
                spans.STEP_COUNT: figures.steps_count,
                spans.STEP_MIN: None if mean_s is None else figures.shortest_s,
                spans.STEP_MEAN: mean_s,
                spans.STEP_MAX: None if mean_s is None else figures.longest_s,
                spans.TOKENS: tokens,
                spans.LOSS: figures.loss,
                spans.NONFINITE_COUNT: figures.nonfinite_count,
            },
            f"NonFinite: {figures.nonfinite_count} NaN or infinite values"
            if figures.nonfinite_count
            else None,
        )

    def begin(self, tokens: Number | None) -> None:
        """Begin a run whose tokens counted so far are ``tokens``."""
        self._tokens_before = self._tokens = tokens

    def _open(self, start_s: float, run: SpanContext | None) -> None:
        self._figures = WindowFigures()
        self._start_s = start_s
        links = () if run is None else (run,)
        self._span = self._writer.start(spans.WINDOW_SPAN, start_s, ROOT, {}, links)

    def _write_step(
        self, payload: Mapping[Any, Any], now_s: float, duration_s: float | None, run: SpanContext | None
    ) -> None:
        if duration_s is None:
            return
        slow = self._slow.is_slow(duration_s)
        # Evenly spaced instead of drawn: the trainer's random numbers stay as they would be without us.
        self._due += self._ratio
        if not slow and self._due < 1.0:
            return
        self._due %= 1.0
        values = {
            spans.STEP: payload.get("step"),
            spans.LOSS: payload.get("loss"),
            spans.LEARNING_RATE: payload.get("lr"),
            spans.DATA_WAIT: payload.get("data_wait_s"),
            spans.STEP_SLOW: slow,
        }
        # Without windows, on other ranks, a step is a root as a window is: the run's trace stays small.
        parent = ROOT if self._span is None else set_span_in_context(self._span, ROOT)
        links = (run,) if self._span is None and run is not None else ()
        step = self._writer.start(spans.STEP_SPAN, now_s - duration_s, parent, values, links)
        self._writer.end(step, now_s, {})
        self.span_of_step = step.get_span_context()
