"""DiLoCo's events become numbers: outer steps, and uploads matched from queue to answer by their step."""

from __future__ import annotations

from collections import OrderedDict

from otel_training import catalog
from otel_training.clock import Moment
from otel_training.fields import Fields, Payload
from otel_training.state import State
from otel_training.values import Number

_MAX_OPEN_UPLOADS = 1000


class OuterLoop:
    """What the outer loop and the uploader report, whatever thread speaks.

    Args:
        state: The numbers of the run.
        fields: Reads the payloads.
    """

    def __init__(self, state: State, fields: Fields) -> None:
        self._state = state
        self._fields = fields
        self._outer_step: Number | None = None
        self._queued_s: OrderedDict[Number, float] = OrderedDict()

    def outer_step(self, payload: Payload, _now: Moment) -> None:
        """Count outer steps by their number, and the deltas by what became of them."""
        state, fields = self._state, self._fields
        number = fields.number(payload, "outer_step")
        if number is not None:
            last, self._outer_step = self._outer_step, number
            state.add(catalog.OUTER_STEPS, 1 if last is None else max(0, number - last))
            state.set(catalog.OUTER_STEP_CURRENT, number)
        fields.gauge(catalog.OUTER_CANDIDATES, payload, "deltas_found")
        for field, disposition in (("deltas_included", "included"), ("deltas_rejected", "rejected")):
            deltas = fields.amount(payload, field)
            if deltas is not None:
                state.add(catalog.OUTER_DELTAS, deltas, disposition)
        duration_s = fields.amount(payload, "duration_s")
        if duration_s is not None:
            state.observe(catalog.OUTER_STEP_DURATION, duration_s)

    def queued(self, payload: Payload, now: Moment) -> None:
        """Open an upload."""
        step = self._fields.number(payload, "step")
        if step is not None:
            if len(self._queued_s) >= _MAX_OPEN_UPLOADS:
                self._queued_s.popitem(last=False)
            self._queued_s[step] = now.monotonic_s
        self._publish_active()

    def uploaded(self, payload: Payload, now: Moment) -> None:
        """Close an upload that arrived; a stale one may have been closed before by its own event."""
        self._state.add(catalog.DELTA_UPLOADS, 1, "uploaded", None)
        self._answer(payload, now)

    def failed(self, payload: Payload, now: Moment) -> None:
        """Close an upload that was given up."""
        self._state.add(catalog.DELTA_UPLOADS, 1, "failed", None)
        self._answer(payload, now)

    def skipped(self, payload: Payload, _now: Moment) -> None:
        """Count a delta that was never queued."""
        self._state.add(catalog.DELTA_UPLOADS, 1, "skipped", self._fields.text(payload, "reason"))

    def stale(self, payload: Payload, now: Moment) -> None:
        """Count a delta whose baseline was overtaken; its upload may still be answered."""
        self._state.add(catalog.DELTA_STALE, 1)
        self._answer(payload, now)

    def _answer(self, payload: Payload, now: Moment) -> None:
        step = self._fields.number(payload, "step")
        queued_s = None if step is None else self._queued_s.pop(step, None)
        if queued_s is not None:
            self._state.observe(catalog.DELTA_UPLOAD_DURATION, max(0.0, now.monotonic_s - queued_s))
        self._publish_active()

    def _publish_active(self) -> None:
        self._state.set(catalog.DELTA_ACTIVE_UPLOADS, len(self._queued_s))
