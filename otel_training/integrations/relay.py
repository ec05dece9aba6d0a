"""What the callbacks of all frameworks share: where their events go, and that nothing of ours comes back."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from otel_training.guard import Guard, Notices, attempt, describe
from otel_training.pipeline import Telemetry, start

Send = Callable[[str, dict[str, Any]], object]

Method = TypeVar("Method", bound=Callable[..., None])


class Relay:
    """Hands a callback's events to their target, or to telemetry that it starts and closes.

    Args:
        target: Takes the events: an object with ``emit(event, payload)`` or ``on_event(event, payload)``, or
            a ``Telemetry``; None starts one.
        start_arguments: Arguments of ``otel_training.start`` for it.

    Attributes:
        guard: Runs the callback's methods.

    Raises:
        TypeError: The target cannot take events, or there are arguments for a start that will not be.
        ValueError: ``start`` does not accept an argument's value.
    """

    def __init__(self, target: object, start_arguments: Mapping[str, Any]) -> None:
        if target is not None and start_arguments:
            names = ", ".join(start_arguments)
            raise TypeError(f"target={target!r} with {names}: accepted is a target, or arguments of start()")
        self.guard = Guard(Notices())
        self._start_arguments = start_arguments
        self._own: Telemetry | None = None
        self._started_s = time.monotonic()
        # At once and not with the first event: a wrong argument is told where it stands.
        self._send: Send | None = self._start_own() if target is None else _way_to(target)

    def train_start(self, payload: Mapping[str, Any]) -> None:
        """Tell that training begins; telemetry that an earlier end has closed is started anew."""
        self._started_s = time.monotonic()
        if self._send is None:
            self._send = self._start_own()
        self.emit("train_start", payload)

    def emit(self, event: str, payload: Mapping[str, Any]) -> None:
        """Hand over an event; fields that are None are left out."""
        if self._send is not None:
            self._send(event, {field: value for field, value in payload.items() if value is not None})

    def train_end(self, steps: int, error: BaseException | None = None) -> None:
        """Tell that training has ended and close what was started for it.

        Args:
            steps: Step that was reached.
            error: What ended it; anything but an ``Exception`` is somebody's decision, no failure.
        """
        end: dict[str, Any] = {"steps": steps, "elapsed_s": time.monotonic() - self._started_s}
        if error is None:
            end["outcome"] = "completed"
        else:
            end["outcome"] = "failed" if isinstance(error, Exception) else "interrupted"
            end["error"] = describe(error)
        self.emit("train_end", end)
        if self._own is not None:
            self._own.close()
            self._own = self._send = None

    def _start_own(self) -> Send:
        self._own = start(**self._start_arguments)
        return self._own.hook.on_event


def _way_to(target: object) -> Send:
    if isinstance(target, Telemetry):
        return target.hook.on_event
    for name in ("emit", "on_event"):
        way = getattr(target, name, None)
        if callable(way):
            return way  # type: ignore[no-any-return] # a method by its name alone
    raise TypeError(
        f"target={target!r} is not accepted: a Telemetry, or an object with emit(event, payload) or"
        " on_event(event, payload)"
    )


def guarded(method: Method) -> Method:
    """Make a method of a callback with a ``relay`` one that never raises into the framework's loop."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        self.relay.guard.run(method.__name__, method, self, *args, **kwargs)

    return cast(Method, call)


def trained_parameters(model: Any) -> int | None:
    """Return how many parameters of a torch module are trained, or None when they cannot be counted yet."""
    return attempt(
        lambda: sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    )
