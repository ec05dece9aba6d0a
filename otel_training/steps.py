"""Optimizer steps become numbers: how many were applied, how long each took, and how fast it goes."""

from __future__ import annotations

from otel_training import catalog
from otel_training.clock import Moment
from otel_training.counting import StepCount, Total
from otel_training.fields import Fields, Payload
from otel_training.state import State
from otel_training.timebook import RateWindow, TimeBook
from otel_training.values import Number

_MOST_OBSERVATIONS = 10_000
"""Most observations that one event is worth: a step number that leaps must not keep the reader busy."""


class Steps:
    """What the steps of the training thread report.

    Args:
        state: The numbers of the run.
        fields: Reads the payloads.
        book: Where the time goes.
    """

    def __init__(self, state: State, fields: Fields, book: TimeBook) -> None:
        self._state = state
        self._fields = fields
        self._book = book
        self._window = RateWindow()
        self._steps = StepCount()
        self._samples, self._tokens, self._micro_batches = Total(), Total(), Total()
        self._totals = (
            ("samples", catalog.SAMPLES, self._samples),
            ("tokens", catalog.TOKENS, self._tokens),
            ("micro_batches", catalog.MICRO_BATCHES, self._micro_batches),
        )
        self._applied_total: Number = 0
        self._last_s: float | None = None
        self._flops_per_token: Number | None = None
        self._peak_flops_per_s: Number | None = None
        self.duration_s: float | None = None
        """Seconds that each of the steps took which the last event reported; None for other events."""
        self.applied: Number = 0
        """How many steps those were."""

    def begin(self, payload: Payload, now: Moment) -> None:
        """Take from a train_start where counting begins."""
        fields = self._fields
        self._flops_per_token = fields.number(payload, "flops_per_token")
        self._peak_flops_per_s = fields.number(payload, "peak_flops_per_s")
        start_step = fields.number(payload, "start_step")
        if start_step is not None:
            self._steps.begin(start_step, fields.number(payload, "last_step_reached"))
            self._state.set(catalog.STEP_CURRENT, start_step)
            for field, _, total in self._totals:
                restored = self._total(payload, field)
                total.begin(0 if restored is None and start_step == 0 else restored)
        self._book.take_outside_steps()
        self._last_s = now.monotonic_s
        self._window.restart(now.monotonic_s, self._window_totals())

    def applied_step(self, payload: Payload, now: Moment) -> None:
        """Take in a train_step, which stands for all steps since the one before."""
        state, fields = self._state, self._fields
        first = self._steps.last is None
        step = fields.number(payload, "step")
        applied, replayed = (0, 0) if step is None else self._steps.advance(step)
        self._assign_time(payload, now, alone=applied == 1)
        if step is not None:
            state.set(catalog.STEP_CURRENT, step)
            state.set(catalog.STEP_LAST_TIME, now.unix_s)
        if applied > 0:
            self.applied = applied
            self._applied_total += applied
            state.add(catalog.STEPS, applied)
            self._observe_duration(now)
        if replayed > 0:
            state.add(catalog.STEP_REPLAYS, replayed)
        for field, metric, total in self._totals:
            value = self._total(payload, field)
            if value is not None:
                if first and step == 1:
                    total.begin(0)
                state.add(metric, total.advance(value, applied))
        fields.gauge(catalog.LOSS, payload, "loss")
        fields.gauge(catalog.LEARNING_RATE, payload, "lr")
        fields.gauge(catalog.GRADIENT_NORM, payload, "grad_norm")
        self._publish_rates(now)

    def skipped_step(self, payload: Payload, now: Moment) -> None:
        """Count a step whose optimizer did not step."""
        self._book.assign(now.monotonic_s, "step")
        self._state.add(catalog.STEP_SKIPS, 1, self._fields.text(payload, "reason"))

    def _total(self, payload: Payload, field: str) -> Number | None:
        value = self._fields.number(payload, field)
        if value is None and field in catalog.ALIASES:
            value = self._fields.number(payload, catalog.ALIASES[field])
        return value

    def _assign_time(self, payload: Payload, now: Moment, *, alone: bool) -> None:
        """Split the time since the last event; durations in a train_step are those of one step alone."""
        wait_s = self._fields.amount(payload, "data_wait_s")
        step_s = self._fields.amount(payload, "step_s")
        if wait_s is not None:
            self._state.observe(catalog.DATA_WAIT_DURATION, wait_s)
        if alone and step_s is not None:
            self._book.assign(now.monotonic_s, "idle", ("data_wait", wait_s), ("step", step_s))
        else:
            self._book.assign(now.monotonic_s, "step", ("data_wait", wait_s))

    def _observe_duration(self, now: Moment) -> None:
        outside_s = self._book.take_outside_steps()
        if self._last_s is not None:
            self.duration_s = max(0.0, now.monotonic_s - self._last_s - outside_s) / max(1, self.applied)
            times = min(max(1, int(self.applied)), _MOST_OBSERVATIONS)
            self._state.observe(catalog.STEP_DURATION, self.duration_s, times)
        self._last_s = now.monotonic_s

    def _window_totals(self) -> tuple[Number, ...]:
        return self._applied_total, self._samples.counted or 0, self._tokens.counted or 0

    def _publish_rates(self, now: Moment) -> None:
        state = self._state
        rates = self._window.rates(now.monotonic_s, self._window_totals())
        if rates is None:
            return
        steps, samples, tokens = rates
        state.set(catalog.THROUGHPUT_STEPS, steps)
        if self._samples.counted is not None:
            state.set(catalog.THROUGHPUT_SAMPLES, samples)
        if self._tokens.counted is not None:
            state.set(catalog.THROUGHPUT_TOKENS, tokens)
            if self._flops_per_token and self._peak_flops_per_s:
                state.set(catalog.FLOPS_UTILIZATION, tokens * self._flops_per_token / self._peak_flops_per_s)
