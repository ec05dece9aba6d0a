"""Hooks: whatever wants to hear a training run's events."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from numbers import Integral
from typing import Any, Protocol, TypeAlias, runtime_checkable

from trainer.isolation import attempt

Handler: TypeAlias = Callable[[str, dict[str, Any]], object]
"""A function that takes an event's name and its payload."""


@runtime_checkable
class TrainingHook(Protocol):
    """An object that hears events.

    Optional attributes, each found by its name:

    - ``every_steps``: the hook's own cadence for ``train_step`` in steps, >= 1, in place of the log's.
    - ``close()``: called once when the logger is closed.
    - ``location``: where its user looks, a URL or a folder; ``None`` when there is no such place.

    ``on_event`` is called while the logger's lock is held: it may emit events of its own, but must not wait
    for another thread that does.
    """

    def on_event(self, event: str, payload: dict[str, Any]) -> None:
        """Take one event. ``payload`` is this hook's own copy."""


Hook: TypeAlias = TrainingHook | Handler
"""What a list of hooks may hold: an object with ``on_event``, or a plain function."""


def handler(hook: Hook) -> Handler:
    """Return what to call for an event: the method ``on_event`` if there is one, else the hook itself.

    Raises:
        TypeError: It can be called neither way, or is a class where an instance belongs.
    """
    if isinstance(hook, type):
        raise TypeError(
            f"hook {hook.__qualname__} is a class; accepted is an instance: {hook.__qualname__}(...)"
        )
    method = getattr(hook, "on_event", None)
    if callable(method):
        return method  # type: ignore[no-any-return]
    if callable(hook):
        return hook
    raise TypeError(f"hook {hook!r} has no method on_event(event, payload) and cannot be called")


def hook_name(hook: object) -> str:
    """Return the name under which a hook's failures are told: its function's or its class's."""
    name, _ = attempt(getattr, hook, "__qualname__", None)
    return (name if type(name) is str else type(hook).__qualname__).rpartition("<locals>.")[2]


def own_every_steps(hook: object) -> int | None:
    """Return the hook's own cadence in steps, or ``None`` when it keeps the log's."""
    every_steps, _ = attempt(getattr, hook, "every_steps", None)
    if isinstance(every_steps, int) and not isinstance(every_steps, bool) and every_steps >= 1:
        return every_steps
    return None


def integer_step(event: str, payload: dict[str, Any]) -> int | None:
    """Return the step that a cadence applies to: that of a ``train_step`` with an integer step."""
    if event != "train_step":
        return None
    step = payload.get("step")
    if type(step) is int:
        return step
    # By the type, for a value may claim another class; NumPy's integers are registered as Integral.
    if step is None or type(step) is bool or not issubclass(type(step), Integral):
        return None
    return attempt(int, step)[0]


def close_hook(hook: object) -> None:
    """Call the hook's ``close()``, if it has one."""
    close = getattr(hook, "close", None)
    if callable(close):
        close()


def on_event(callback: Handler) -> Callable[[str, dict[str, Any]], None]:
    """Return a two-argument hook that calls ``callback(event, payload)`` and drops its result.

    Raises:
        TypeError: ``callback`` cannot be called.
    """
    if not callable(callback):
        raise TypeError(
            f"on_event(callback={callback!r}): accepted is a callable that takes (event, payload)"
        )

    @functools.wraps(callback)
    def wrapped(event: str, payload: dict[str, Any]) -> None:
        callback(event, payload)

    return wrapped


class CallbackList:
    """Several hooks as one.

    Args:
        callbacks: The hooks, in the order in which they hear events. The attribute of that name is a plain
            list.
    """

    def __init__(self, callbacks: Iterable[Hook] | None = None) -> None:
        self.callbacks: list[Hook] = list(callbacks or ())

    @property
    def every_steps(self) -> int | None:
        """The smallest cadence inside in steps; ``None``, the log's, when none has one of its own."""
        return min(filter(None, map(own_every_steps, self.callbacks)), default=None)

    def on_event(self, event: str, payload: dict[str, Any]) -> None:
        """Pass the event to each hook, a step outside a hook's own cadence excepted.

        Each gets it, with a copy of its own, though an earlier one raised.

        Raises:
            Exception: What the one failing hook raised; of several, a ``RuntimeError`` that names them all.
        """
        step = integer_step(event, payload)
        due = [hook for hook in self.callbacks if step is None or step % (own_every_steps(hook) or 1) == 0]
        _raise_as_one([(hook, attempt(_deliver, hook, event, dict(payload))[1]) for hook in due])

    def close(self) -> None:
        """Close each hook that has ``close()``, though an earlier one raised.

        Raises:
            Exception: As for ``on_event``.
        """
        _raise_as_one([(hook, attempt(close_hook, hook)[1]) for hook in list(self.callbacks)])


def _deliver(hook: Hook, event: str, payload: dict[str, Any]) -> None:
    handler(hook)(event, payload)


def _raise_as_one(outcomes: list[tuple[Hook, Exception | None]]) -> None:
    """Raise the error if there is one; several become one that names them and is caused by the first."""
    failures = [(hook, error) for hook, error in outcomes if error is not None]
    if len(failures) == 1:
        raise failures[0][1]
    if failures:
        told = "; ".join(f"{hook_name(hook)}: {error!r}" for hook, error in failures)
        raise RuntimeError(f"{len(failures)} of {len(outcomes)} callbacks failed: {told}") from failures[0][1]
