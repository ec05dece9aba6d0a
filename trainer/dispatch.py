"""Calls the hooks, each on its own: one that fails costs neither the run nor the other hooks anything."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trainer.encoding import by_str
from trainer.hooks import Hook, close_hook, handler, hook_name
from trainer.isolation import Tally, attempt
from trainer.payloads import own_copy

_log = logging.getLogger(__name__)


class _Delivery(NamedTuple):
    """An event on its way: the hooks that are still due, and the names of those that are to be told."""

    due: deque[Hook]
    event: str
    payload: dict[str, Any]
    failed: list[str]


@dataclass
class _Failures:
    """How often the hooks of one name failed, and how much of that the log has been told."""

    tally: Tally = field(default_factory=Tally)
    told_count: int = 0
    event: str = ""
    error: str = ""


class Dispatcher:
    """Delivers events to hooks and keeps count of failures. Not thread-safe: its owner holds a lock."""

    def __init__(self) -> None:
        self._deliveries: list[_Delivery] = []
        self._failures: dict[str, _Failures] = {}

    @property
    def failure_counts(self) -> dict[str, int]:
        """How often each hook that failed did so, by the hook's name."""
        return {name: failures.tally.count for name, failures in self._failures.items()}

    def deliver(self, hooks: Iterable[Hook], event: str, payload: dict[str, Any]) -> list[str]:
        """Call each hook with its own copy of the payload.

        Returns:
            The names of the hooks whose failure is to be told; `failure` says how.
        """
        deliveries = self._deliveries
        delivery = _Delivery(deque(hooks), event, payload, [])
        deliveries.append(delivery)
        try:
            self._go_on(delivery)
        finally:
            deliveries.pop()
        return delivery.failed

    def finish(self) -> None:
        """Deliver now what is on its way, when called from a hook or a signal handler in between."""
        for delivery in reversed(self._deliveries):
            self._go_on(delivery)

    def close(self, hooks: Iterable[Hook]) -> None:
        """Call ``close()`` of each hook that has it, once, though an earlier one raised."""
        for hook in {id(hook): hook for hook in hooks}.values():
            _, error = attempt(close_hook, hook)
            if error is not None:
                self._count(hook, "close", error)

    def failure(self, name: str) -> dict[str, Any]:
        """Return the payload that tells how a hook failed, and take it as told."""
        failures = self._failures[name]
        failures.told_count = failures.tally.count
        return {
            "hook": name,
            "failed_event": failures.event,
            "error": failures.error,
            "count": failures.tally.count,
        }

    def untold(self) -> list[str]:
        """Return the names of hooks that have failed since the log was last told of them."""
        return [
            name for name, failures in self._failures.items() if failures.tally.count > failures.told_count
        ]

    def forget_deliveries(self) -> None:
        """Leave what was on its way to another process, after a fork."""
        self._deliveries = []

    def _go_on(self, delivery: _Delivery) -> None:
        # Each hook is taken out before it is called, so that finish() in between goes on behind it.
        while delivery.due:
            hook = delivery.due.popleft()
            _, error = attempt(_call, hook, delivery.event, delivery.payload)
            if error is not None and self._count(hook, delivery.event, error):
                delivery.failed.append(hook_name(hook))

    def _count(self, hook: Hook, event: str, error: Exception) -> bool:
        """Count a failure, warn at growing intervals, and return whether this is one to tell."""
        name = hook_name(hook)
        failures = self._failures.setdefault(name, _Failures())
        failures.event, failures.error = event, f"{type(error).__name__}: {by_str(error)}"
        tell = failures.tally.add()
        if tell:
            count = failures.tally.count
            _log.warning(
                "hook %s failed at %s (%d so far); training goes on", name, event, count, exc_info=error
            )
        return tell


def _call(hook: Hook, event: str, payload: dict[str, Any]) -> None:
    handler(hook)(event, own_copy(payload))
