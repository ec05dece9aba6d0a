"""Events become numbers: dispatch on the event's name, one method per event, and nothing else.

Called with the state's lock held. Every field is read on its own, so that a bad value costs itself alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from otel_training import catalog
from otel_training.clock import Moment
from otel_training.counting import StepCount, Total
from otel_training.fields import Fields, Payload, error_type
from otel_training.guard import attempt
from otel_training.identity import Identity
from otel_training.outer_loop import OuterLoop
from otel_training.state import State
from otel_training.timebook import RateWindow, TimeBook
from otel_training.values import Number

_Handler = Callable[[Payload, Moment], None]


class Recorder:
    """Writes what events say into the state.

    Args:
        state: The numbers of the run.
        identity: Who emits; rank and world size end up in metrics.
        now: When the bridge was set up; time until the first event is start-up time.
    """

    def __init__(self, state: State, identity: Identity, now: Moment) -> None:
        self._state = state
        self._identity = identity
        self._book = TimeBook(state, now.monotonic_s)
        self._window = RateWindow()
        self._steps = StepCount()
        self._totals = {
            "samples": (catalog.SAMPLES, Total()),
            "tokens": (catalog.TOKENS, Total()),
            "micro_batches": (catalog.MICRO_BATCHES, Total()),
        }
        self._fields = Fields(state)
        self._hook_failures: dict[str, Number] = {}
        self._shape_warnings_seen: Number = 0
        self._flops_per_token: Number | None = None
        self._peak_flops_per_s: Number | None = None
        self._rest = "startup"
        self._last_step_s: float | None = None
        self.step_duration_s: float | None = None
        """Seconds that each of the steps took which the last event reported; None for other events."""
        self.applied_steps: Number = 0
        """How many steps those were."""
        outer = OuterLoop(state, self._fields)
        self._handlers: dict[str, _Handler] = {
            "train_start": self._train_start,
            "train_step": self._train_step,
            "train_end": self._train_end,
            "optimizer_step_skipped": self._optimizer_step_skipped,
            "checkpoint": self._checkpoint,
            "checkpoint_restore": self._checkpoint_restore,
            "compile": self._compile,
            "validation_start": self._validation_start,
            "validation_end": self._validation_end,
            "shape_profile": self._shape_profile,
            "shape_warning": self._shape_warning,
            "ooo_backprop": self._ooo_backprop,
            "hook_failed": self._hook_failed,
            "outer_step": outer.outer_step,
            "delta_upload_queued": outer.queued,
            "delta_uploaded": outer.uploaded,
            "delta_upload_failed": outer.failed,
            "delta_upload_skipped": outer.skipped,
            "delta_upload_stale": outer.stale,
        }

    def record(self, event: str, payload: Payload, now: Moment) -> None:
        """Take one event into the state."""
        self.step_duration_s, self.applied_steps = None, 0
        handler = self._handlers.get(event)
        if handler is None:
            self._fields.custom(event, payload, payload)
            self._state.add(catalog.BRIDGE_EVENTS, 1, event, "ignored")
            return
        known = catalog.EVENTS[event]
        unknown = [field for field in payload if field not in known]
        if unknown:
            self._fields.custom(event, payload, unknown)
        self._fields.gauge(catalog.DEVICE_MEMORY_USAGE, payload, "memory_bytes")
        handler(payload, now)
        self._state.add(catalog.BRIDGE_EVENTS, 1, event, "handled")

    @property
    def active(self) -> bool:
        """Whether a run has started and not ended."""
        return self._state.get(catalog.RUN_ACTIVE) == 1

    def failed(self, event: str) -> None:
        """Count an event that could not be recorded."""
        self._state.add(catalog.BRIDGE_EVENTS, 1, event, "failed")

    # ------------------------------------------------------------------------------------------- the run

    def _train_start(self, payload: Payload, now: Moment) -> None:
        state = self._state
        self._book.assign(now.monotonic_s, self._rest)
        self._book.begin(
            self._fields.number(payload, "prior_elapsed_s"), self._fields.number(payload, "prior_kept_s")
        )
        self._rest = "idle"
        self._book.take_outside_steps()
        state.withdraw_all(catalog.RUN_INFO)
        state.set(
            catalog.RUN_INFO, 1, payload.get("precision"), _device_type(payload.get("device")),
            payload.get("accumulation_steps"), payload.get("framework", "pytorch"),
        )  # fmt: skip
        state.set(catalog.RUN_ACTIVE, 1)
        world_size = self._fields.number(payload, "world_size")
        state.set(catalog.RUN_RANKS, self._identity.world_size if world_size is None else world_size)
        attempt = self._fields.number(payload, "attempt")
        state.set(catalog.RESTARTS, max(0, self._identity.attempt if attempt is None else attempt))
        self._fields.gauge(catalog.MODEL_PARAMETERS, payload, "parameters")
        self._fields.gauge(catalog.STEP_TARGET, payload, "target_step")
        self._flops_per_token = self._fields.number(payload, "flops_per_token")
        self._peak_flops_per_s = self._fields.number(payload, "peak_flops_per_s")
        self._restored_totals(payload)
        self._last_step_s = now.monotonic_s
        self._window.restart(now.monotonic_s, self._window_totals())
        self._before_start(payload)
        self._other_run_id(payload)

    def _restored_totals(self, payload: Payload) -> None:
        start_step = self._fields.number(payload, "start_step")
        if start_step is None:
            return
        self._steps.begin(start_step, self._fields.number(payload, "last_step_reached"))
        self._state.set(catalog.STEP_CURRENT, start_step)
        for field, (_, total) in self._totals.items():
            restored = self._fields.number(payload, field)
            total.begin(0 if restored is None and start_step == 0 else restored)

    def _before_start(self, payload: Payload) -> None:
        """Take what a trainer sent before a hook could be attached from its train_start."""
        self._fields.gauge(catalog.SHAPE_ALIGNMENT, payload, "shape_alignment")
        warnings = self._fields.number(payload, "shape_warning_count") or 0
        if warnings > self._shape_warnings_seen:
            self._state.add(catalog.SHAPE_WARNINGS, warnings - self._shape_warnings_seen, catalog.OTHER)
        self._shape_warnings_seen = 0
        streams = payload.get("ooo_backprop")
        if isinstance(streams, dict):
            self._fields.gauge(catalog.OOO_ENABLED, streams, "enabled")
            self._fields.gauge(catalog.OOO_STREAMS, streams, "streams")

    def _other_run_id(self, payload: Payload) -> None:
        run_id = payload.get("run_id")
        if run_id is not None and run_id != self._identity.run_id:
            self._fields.tell_once(
                "run_id", f"the trainer calls this run {run_id!r}; telemetry keeps {self._identity.run_id!r}"
            )

    def _train_end(self, payload: Payload, now: Moment) -> None:
        self._book.assign(now.monotonic_s, self._rest)
        self._rest = "idle"
        outcome = payload.get("outcome") or "completed"
        error = payload.get("error")
        if self._state.get(catalog.RUN_ACTIVE) != 0:  # an end told twice is one end
            self._state.add(catalog.RUNS, 1, outcome, None if error is None else error_type(error))
        self._state.set(catalog.RUN_ACTIVE, 0)
        self._fields.gauge(catalog.LOSS, payload, "loss")
        if outcome == "failed":
            self._book.lose()
        elif outcome == "completed":
            self._book.keep()

    # ---------------------------------------------------------------------------------------- steps

    def _train_step(self, payload: Payload, now: Moment) -> None:
        state = self._state
        step = self._fields.number(payload, "step")
        first = self._steps.last is None
        applied, replayed = (0, 0) if step is None else self._steps.advance(step)
        data_wait_s, step_s = (
            self._fields.amount(payload, "data_wait_s"),
            self._fields.amount(payload, "step_s"),
        )
        alone = applied == 1 and step_s is not None
        self._book.assign(
            now.monotonic_s,
            "idle" if alone or applied <= 0 else "step",
            ("data_wait", data_wait_s),
            ("step", step_s if alone else None),
        )
        if step is not None:
            state.set(catalog.STEP_CURRENT, step)
            state.set(catalog.STEP_LAST_TIME, now.unix_s)
        if applied > 0:
            self.applied_steps = applied
            state.add(catalog.STEPS, applied)
            self._observe_step(now, applied)
        if replayed > 0:
            state.add(catalog.STEP_REPLAYS, replayed)
        if data_wait_s is not None:
            state.observe(catalog.DATA_WAIT_DURATION, data_wait_s)
        for field, (metric, total) in self._totals.items():
            value = self._fields.number(payload, field)
            if value is not None:
                if first and step == 1:
                    total.begin(0)
                state.add(metric, total.advance(value, applied))
        self._fields.gauge(catalog.LOSS, payload, "loss")
        self._fields.gauge(catalog.LEARNING_RATE, payload, "lr")
        self._fields.gauge(catalog.GRADIENT_NORM, payload, "grad_norm")
        self._publish_rates(now)

    def _observe_step(self, now: Moment, applied: Number) -> None:
        outside_s = self._book.take_outside_steps()
        if self._last_step_s is not None:
            took_s = max(0.0, now.monotonic_s - self._last_step_s - outside_s)
            times = max(1, int(applied))
            self.step_duration_s = took_s / times
            self._state.observe(catalog.STEP_DURATION, self.step_duration_s, times)
        self._last_step_s = now.monotonic_s

    def _window_totals(self) -> tuple[Number, ...]:
        get = self._state.get
        return tuple(get(metric) or 0 for metric in (catalog.STEPS, catalog.SAMPLES, catalog.TOKENS))

    def _publish_rates(self, now: Moment) -> None:
        state = self._state
        rates = self._window.rates(now.monotonic_s, self._window_totals())
        if rates is None:
            return
        steps, samples, tokens = rates
        state.set(catalog.THROUGHPUT_STEPS, steps)
        if state.get(catalog.SAMPLES) is not None:
            state.set(catalog.THROUGHPUT_SAMPLES, samples)
        if state.get(catalog.TOKENS) is not None:
            state.set(catalog.THROUGHPUT_TOKENS, tokens)
            if self._flops_per_token and self._peak_flops_per_s:
                state.set(catalog.FLOPS_UTILIZATION, tokens * self._flops_per_token / self._peak_flops_per_s)

    def _optimizer_step_skipped(self, payload: Payload, now: Moment) -> None:
        self._book.assign(now.monotonic_s, "step")
        self._state.add(catalog.STEP_SKIPS, 1, payload.get("reason"))

    # ------------------------------------------------------------------- checkpoints, validation, compile

    def _timed(self, payload: Payload, now: Moment, name: str) -> Number | None:
        """Give a state the event's duration and return it; absent, it is all since the last event."""
        duration_s = self._fields.amount(payload, "duration_s")
        self._book.assign(now.monotonic_s, name if duration_s is None else self._rest, (name, duration_s))
        return duration_s

    def _checkpoint(self, payload: Payload, now: Moment) -> None:
        state = self._state
        duration_s = self._timed(payload, now, "checkpoint_save")
        if payload.get("error") is not None:
            state.add(catalog.CHECKPOINTS, 1, error_type(payload["error"]))
            return
        state.add(catalog.CHECKPOINTS, 1, None)
        if duration_s is not None:
            state.observe(catalog.CHECKPOINT_DURATION, duration_s)
        self._fields.gauge(catalog.CHECKPOINT_SIZE, payload, "size_bytes")
        self._fields.gauge(catalog.CHECKPOINT_LAST_STEP, payload, "step")
        state.set(catalog.CHECKPOINT_LAST_TIME, now.unix_s)
        self._book.keep()

    def _checkpoint_restore(self, payload: Payload, now: Moment) -> None:
        self._timed(payload, now, "checkpoint_restore")
        self._fields.gauge(catalog.CHECKPOINT_LAST_STEP, payload, "step")

    def _compile(self, payload: Payload, now: Moment) -> None:
        # A compile event without a duration says nothing about when compiling began.
        self._book.assign(
            now.monotonic_s, self._rest, ("compile", self._fields.amount(payload, "duration_s"))
        )
        self._state.add(catalog.COMPILE_ATTEMPTS, 1, "true" if payload.get("enabled") else "false")

    def _validation_start(self, _payload: Payload, now: Moment) -> None:
        self._book.assign(now.monotonic_s, self._rest)

    def _validation_end(self, payload: Payload, now: Moment) -> None:
        self._timed(payload, now, "validation")
        self._fields.gauge(catalog.VALIDATION_LOSS, payload, "loss", payload.get("stage", "validation"))

    # --------------------------------------------------------------------------------------- set-up facts

    def _shape_profile(self, payload: Payload, _now: Moment) -> None:
        self._fields.gauge(catalog.SHAPE_ALIGNMENT, payload, "alignment")

    def _shape_warning(self, payload: Payload, _now: Moment) -> None:
        self._shape_warnings_seen += 1
        self._state.add(catalog.SHAPE_WARNINGS, 1, payload.get("field", catalog.OTHER))
        self._fields.gauge(catalog.SHAPE_ALIGNMENT, payload, "alignment")

    def _ooo_backprop(self, payload: Payload, _now: Moment) -> None:
        self._fields.gauge(catalog.OOO_ENABLED, payload, "enabled")
        self._fields.gauge(catalog.OOO_STREAMS, payload, "streams")

    def _hook_failed(self, payload: Payload, _now: Moment) -> None:
        hook = str(payload.get("hook"))
        count, before = self._fields.number(payload, "count"), self._hook_failures.get(hook, 0)
        failures = 1 if count is None else max(0, count - before)
        if len(self._hook_failures) < catalog.MAX_CUSTOM_FIELDS or hook in self._hook_failures:
            self._hook_failures[hook] = before + failures
        self._state.add(catalog.HOOK_FAILURES, failures, hook)


def _device_type(device: Any) -> str | None:
    """Return the kind of a device such as ``cuda:1`` or a ``torch.device``."""
    return None if device is None else (attempt(str, device) or type(device).__name__).split(":")[0]
