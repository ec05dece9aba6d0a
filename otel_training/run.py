"""One run as the bridge sees it: what all hooks of one identity share."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

from otel_training import catalog
from otel_training.clock import Clock
from otel_training.guard import Guard, attempt
from otel_training.identity import Identity
from otel_training.recorder import Recorder
from otel_training.state import Exemplar, State
from otel_training.tracing import Tracing
from otel_training.values import text

_REMEMBERED_EVENTS = 256
_TWIN_WITHIN_S = 5.0
"""Two hooks bring one event within this time; its like from another hook later is an event of its own."""


class Run:
    """Takes events into state and spans, one at a time and each once.

    Args:
        identity: Whose events these are.
        state: The numbers, which may hold the totals of an earlier run of the same identity.
        guard: Keeps failures away from training.
        clock: When events arrive.
        point_attributes: What is put on each point because the provider's resource does not say it.
        tracing: Makes the spans; None for none.

    Attributes:
        devices: The cells of device metrics.
    """

    def __init__(
        self,
        identity: Identity,
        state: State,
        guard: Guard,
        clock: Clock,
        point_attributes: Mapping[str, str | int],
        tracing: Tracing | None,
    ) -> None:
        self.identity = identity
        self.state = state
        self.point_attributes = point_attributes
        self._guard = guard
        self._clock = clock
        self._recorder = Recorder(state, identity, clock.now())
        self.devices = self._recorder.devices
        self._tracing = tracing
        self._hooks: set[int] = set()
        self._deliveries: OrderedDict[int, tuple[float, Counter[int]]] = OrderedDict()
        self._stepped = False

    def join(self, hook: int) -> None:
        """Take events of one more hook."""
        with self.state.lock:
            self._hooks.add(hook)

    def leave(self, hook: int) -> bool:
        """Take events of a hook no longer, and return whether it was the last one."""
        with self.state.lock:
            self._hooks.discard(hook)
            return not self._hooks

    def handle(self, hook: int, event: str, payload: Mapping[Any, Any]) -> None:
        """Take an event that ``hook`` delivered."""
        with self.state.lock:
            if len(self._hooks) > 1 and self._delivered_before(hook, event, payload):
                return
            name = event if type(event) is str else text(event, catalog.EVENT_NAME.max_length)
            own = payload.copy() if type(payload) is dict else attempt(dict, payload)
            if own is None:
                self._recorder.failed(name)
            else:
                self._take(name, own)

    def end(self, error: BaseException | None = None) -> None:
        """End what no event has ended: the run, as failed with ``error`` or interrupted, and open spans."""
        with self.state.lock:
            if self._recorder.active:
                # An interrupt or an exit is somebody's decision, no failure.
                outcome = "failed" if isinstance(error, Exception) else "interrupted"
                self._take("train_end", {"outcome": outcome, "error": error})
            if self._tracing is not None:
                self._guard.run("tracing", self._tracing.close, self._clock.now())

    def _take(self, event: str, payload: dict[Any, Any]) -> None:
        now, recorder, tracing = self._clock.now(), self._recorder, self._tracing
        if not self._guard.run("recorder", recorder.record, event, payload, now):
            recorder.failed(event)
        if tracing is None:
            return
        if event == "train_step":
            duration_s = recorder.step_duration_s
            self._guard.run("tracing", tracing.step, payload, now, duration_s, recorder.applied_steps)
            span = tracing.span_of_step
            if duration_s is not None and span is not None:
                exemplar = Exemplar(duration_s, span.trace_id, span.span_id, now.unix_s)
                self.state.exemplify(catalog.STEP_DURATION, exemplar)
        else:
            self._guard.run("tracing", tracing.record, event, payload, now)

    def _delivered_before(self, hook: int, event: str, payload: Mapping[Any, Any]) -> bool:
        """Whether another hook of this run brought this same event already.

        An event that one hook brings twice is two events, so deliveries are counted by hook: this one is new
        when no other hook has brought its like as often. A training that is done again, as in a notebook,
        brings all its events once more through another hook, but later, or after the first has made steps.
        """
        if event == "train_start" and self._stepped:
            self._deliveries.clear()
        if event in ("train_start", "train_step"):
            self._stepped = event == "train_step"
        content = attempt(_fingerprint, event, payload) or 0
        now_s = self._clock.now().monotonic_s
        since_s, deliveries = self._deliveries.pop(content, (now_s, Counter[int]()))
        if now_s - since_s > _TWIN_WITHIN_S:
            since_s, deliveries = now_s, Counter()
        most = max(deliveries.values(), default=0)
        deliveries[hook] += 1
        self._deliveries[content] = since_s, deliveries
        if len(self._deliveries) > _REMEMBERED_EVENTS:
            self._deliveries.popitem(last=False)
        return deliveries[hook] <= most


def _fingerprint(event: object, payload: Mapping[Any, Any]) -> int:
    """Return what tells events apart.

    Foreign objects count by their type, unread: they may be tensors on a device. What a log adds does not
    count: each of two logs has its own clock.
    """
    plain = (bool, int, float, str, type(None))
    fields = [
        (key, repr(value) if type(value) in plain else type(value).__name__)
        for key, value in payload.items()
        if key not in catalog.EVERYWHERE
    ]
    return hash((event, *fields))
