"""One run as the bridge sees it: what all hooks of one identity share."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from otel_training import catalog
from otel_training.clock import Clock
from otel_training.guard import Guard, attempt
from otel_training.identity import Identity
from otel_training.recorder import Recorder
from otel_training.state import State
from otel_training.values import text

_REMEMBERED_EVENTS = 256


class Run:
    """Takes events into state and spans, one at a time and each once.

    Args:
        identity: Whose events these are.
        state: The numbers, which may hold the totals of an earlier run of the same identity.
        guard: Keeps failures away from training.
        clock: When events arrive.
        point_attributes: What is put on each point because the provider's resource does not say it.
    """

    def __init__(
        self,
        identity: Identity,
        state: State,
        guard: Guard,
        clock: Clock,
        point_attributes: Mapping[str, str | int],
    ) -> None:
        self.identity = identity
        self.state = state
        self.point_attributes = point_attributes
        self._guard = guard
        self._recorder = Recorder(state, identity, clock)
        self._hooks: set[int] = set()
        self._recent: deque[tuple[object, set[int]]] = deque(maxlen=_REMEMBERED_EVENTS)

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
            name = text(event, catalog.EVENT_NAME.max_length)
            own = attempt(dict, payload)
            if own is None or not self._guard.run("recorder", self._recorder.record, name, own):
                self._recorder.failed(name)

    def end(self, error: BaseException | None = None) -> None:
        """End a run that no event has ended: it failed with ``error``, or was interrupted."""
        with self.state.lock:
            if self._recorder.active:
                outcome = "interrupted" if error is None else "failed"
                end = {"outcome": outcome, "error": error}
                self._guard.run("recorder", self._recorder.record, "train_end", end)

    def _delivered_before(self, hook: int, event: str, payload: Mapping[Any, Any]) -> bool:
        """Whether another hook of this run brought this same event already."""
        content = (event, attempt(_plain_items, payload))
        for known, hooks in reversed(self._recent):
            if known == content and hook not in hooks:
                hooks.add(hook)
                return True
        self._recent.append((content, {hook}))
        return False


def _plain_items(payload: Mapping[Any, Any]) -> tuple[tuple[Any, str], ...]:
    """Return what tells events apart, without reading foreign objects: they may be tensors on a device."""
    plain = (bool, int, float, str, type(None))
    return tuple(
        (key, repr(value) if type(value) in plain else type(value).__name__) for key, value in payload.items()
    )
