"""Events become numbers: dispatch on the event's name, one method per event, and nothing else.

Called with the state's lock held. Every field is read on its own, so that a bad value costs itself alone.
"""

from __future__ import annotations

from collections.abc import Callable

from otel_training import catalog
from otel_training.clock import Moment
from otel_training.device_cells import DeviceCells
from otel_training.device_events import DEVICE_STATS, DeviceEvents
from otel_training.fields import Fields, Payload, error_type
from otel_training.identity import Identity
from otel_training.outer_loop import OuterLoop
from otel_training.state import State
from otel_training.steps import Steps
from otel_training.timebook import TimeBook
from otel_training.values import Number

_Handler = Callable[[Payload, Moment], None]

_FROM_THE_TRAINING_THREAD = frozenset({"train_start", "train_step", DEVICE_STATS})


class Recorder:
    """Writes what events say into the state.

    Args:
        state: The numbers of the run.
        identity: Who emits; rank and world size end up in metrics.
        now: When the bridge was set up; time until the first event is start-up time.

    Attributes:
        devices: The cells of device metrics, which the sampler writes too.
    """

    def __init__(self, state: State, identity: Identity, now: Moment) -> None:
        self._state = state
        self._identity = identity
        self._book = TimeBook(state, now.monotonic_s)
        self._fields = Fields(state)
        self._steps = Steps(state, self._fields, self._book)
        self.devices = DeviceCells(state)
        self._hook_failures: dict[str, Number] = {}
        self._shape_warnings_seen: Number = 0
        self._rest = "startup"
        outer = OuterLoop(state, self._fields)
        device_events = DeviceEvents(self.devices, self._fields, host=identity.local_rank == 0)
        self._handlers: dict[str, _Handler] = {
            "train_start": self._train_start,
            "train_step": self._steps.applied_step,
            "train_end": self._train_end,
            "optimizer_step_skipped": self._steps.skipped_step,
            "checkpoint": self._checkpoint,
            "checkpoint_restore": self._checkpoint_restore,
            "compile": self._compile,
            "validation_start": self._validation_start,
            "validation_end": self._validation_end,
            "shape_profile": self._shape_profile,
            "shape_warning": self._shape_warning,
            "ooo_backprop": self._ooo_backprop,
            "hook_failed": self._hook_failed,
            DEVICE_STATS: device_events.stats,
            "outer_sync": self._outer_sync,
            "outer_step": outer.outer_step,
            "delta_upload_queued": outer.queued,
            "delta_uploaded": outer.uploaded,
            "delta_upload_failed": outer.failed,
            "delta_upload_skipped": outer.skipped,
            "delta_upload_stale": outer.stale,
        }

    def record(self, event: str, payload: Payload, now: Moment) -> None:
        """Take one event into the state."""
        self._steps.duration_s, self._steps.applied = None, 0
        self._fields.gauge(catalog.DEVICE_MEMORY_USAGE, payload, "memory_bytes")
        if event in _FROM_THE_TRAINING_THREAD:
            self.devices.learn(payload.get("device"))
        if event != DEVICE_STATS:  # whose fields are open
            self._fields.custom(event, payload, catalog.EVENTS.get(event, catalog.EVERYWHERE))
        handler = self._handlers.get(event)
        if handler is not None:
            handler(payload, now)
        self._state.add(catalog.BRIDGE_EVENTS, 1, event, "ignored" if handler is None else "handled")

    @property
    def step_duration_s(self) -> float | None:
        """Seconds that each of the steps took which the last event reported; None for other events."""
        return self._steps.duration_s

    @property
    def applied_steps(self) -> Number:
        """How many steps those were."""
        return self._steps.applied

    @property
    def active(self) -> bool:
        """Whether a run has started and not ended."""
        return self._state.get(catalog.RUN_ACTIVE) == 1

    def failed(self, event: str) -> None:
        """Count an event that could not be recorded."""
        self._state.add(catalog.BRIDGE_EVENTS, 1, event, "failed")

    # ------------------------------------------------------------------------------------------- the run

    def _train_start(self, payload: Payload, now: Moment) -> None:
        state, fields = self._state, self._fields
        self._book.assign(now.monotonic_s, self._rest)
        self._rest = "idle"
        if self.active:  # a start without an end: what came before was broken off
            state.add(catalog.RUNS, 1, "interrupted", None)
        self._book.begin(fields.number(payload, "prior_elapsed_s"), fields.number(payload, "prior_kept_s"))
        state.withdraw_all(catalog.RUN_INFO)
        device = fields.text(payload, "device")
        state.set(
            catalog.RUN_INFO, 1, fields.text(payload, "precision"), device and device.partition(":")[0],
            fields.text(payload, "accumulation_steps"), fields.text(payload, "framework") or "pytorch",
        )  # fmt: skip
        state.set(catalog.RUN_ACTIVE, 1)
        world_size, attempt = fields.number(payload, "world_size"), fields.number(payload, "attempt")
        state.set(catalog.RUN_RANKS, self._identity.world_size if world_size is None else world_size)
        restarts = self._identity.attempt if attempt is None else attempt
        state.set(catalog.RESTARTS, max(0, restarts, state.get(catalog.RESTARTS) or 0))
        fields.gauge(catalog.MODEL_PARAMETERS, payload, "parameters")
        fields.gauge(catalog.STEP_TARGET, payload, "target_step")
        self._steps.begin(payload, now)
        self._before_start(payload)
        self._other_run_id(payload)

    def _before_start(self, payload: Payload) -> None:
        """Take what a trainer sent before a hook could be attached from its train_start."""
        self._fields.gauge(catalog.SHAPE_ALIGNMENT, payload, "shape_alignment")
        unseen = (self._fields.number(payload, "shape_warning_count") or 0) - self._shape_warnings_seen
        if unseen > 0:
            self._shape_warnings_seen += unseen
            self._state.add(catalog.SHAPE_WARNINGS, unseen, catalog.OTHER)
        backprop = payload.get("ooo_backprop")
        if isinstance(backprop, dict):
            self._ooo_backprop(backprop, None)

    def _other_run_id(self, payload: Payload) -> None:
        run_id = self._fields.text(payload, "run_id")
        if run_id not in (None, self._identity.run_id):
            self._fields.tell_once(
                "run_id", f"the trainer calls this run {run_id!r}; telemetry keeps {self._identity.run_id!r}"
            )

    def _train_end(self, payload: Payload, now: Moment) -> None:
        self._book.assign(now.monotonic_s, self._rest)
        self._rest = "idle"
        outcome, error = self._fields.text(payload, "outcome") or "completed", payload.get("error")
        if self._state.get(catalog.RUN_ACTIVE) != 0:  # an end told twice is one end
            self._state.add(catalog.RUNS, 1, outcome, None if error is None else error_type(error))
        self._state.set(catalog.RUN_ACTIVE, 0)
        self._fields.gauge(catalog.LOSS, payload, "loss")
        if outcome == "failed":
            self._book.lose()
        elif outcome == "completed":
            self._book.keep()

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
        enabled = self._fields.number(payload, "enabled")
        self._state.add(catalog.COMPILE_ATTEMPTS, 1, "true" if enabled else "false")

    def _validation_start(self, _payload: Payload, now: Moment) -> None:
        self._book.assign(now.monotonic_s, self._rest)

    def _validation_end(self, payload: Payload, now: Moment) -> None:
        self._timed(payload, now, "validation")
        self._fields.gauge(
            catalog.VALIDATION_LOSS, payload, "loss", self._fields.text(payload, "stage") or "validation"
        )

    def _outer_sync(self, payload: Payload, now: Moment) -> None:
        self._timed(payload, now, "outer_sync")

    # --------------------------------------------------------------------------------------- set-up facts

    def _shape_profile(self, payload: Payload, _now: Moment) -> None:
        self._fields.gauge(catalog.SHAPE_ALIGNMENT, payload, "alignment")

    def _shape_warning(self, payload: Payload, _now: Moment) -> None:
        self._shape_warnings_seen += 1
        self._state.add(catalog.SHAPE_WARNINGS, 1, self._fields.text(payload, "field") or catalog.OTHER)
        self._fields.gauge(catalog.SHAPE_ALIGNMENT, payload, "alignment")

    def _ooo_backprop(self, payload: Payload, _now: Moment | None) -> None:
        self._fields.gauge(catalog.OOO_ENABLED, payload, "enabled")
        self._fields.gauge(catalog.OOO_STREAMS, payload, "streams")

    def _hook_failed(self, payload: Payload, _now: Moment) -> None:
        hook = self._fields.text(payload, "hook") or catalog.OTHER
        count, before = self._fields.amount(payload, "count"), self._hook_failures.get(hook, 0)
        if count is None:
            count = before + 1
        # The count is told at growing intervals; one that is lower is that of a new log.
        self._state.add(catalog.HOOK_FAILURES, count - before if count >= before else count, hook)
        if len(self._hook_failures) < catalog.MAX_CUSTOM_FIELDS or hook in self._hook_failures:
            self._hook_failures[hook] = count
