"""``OTelHook``: the two-argument call that a trainer's log makes for each event."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from otel_training import bounded, catalog, process
from otel_training.clock import Clock
from otel_training.guard import Guard, Notices
from otel_training.identity import Identity, detect
from otel_training.kinds import Given
from otel_training.pairs import Attributes
from otel_training.run import Run
from otel_training.state import State
from otel_training.tracing import Tracing, TracingOptions
from otel_training.version import VERSION

CLOSE_TIMEOUT_S = 5.0
"""Longest that ``close()`` waits for providers that are not ours."""


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """What a hook feeds, and what its ways out are.

    Args:
        run: Takes the events.
        number: This hook among all of the process.
        guard: Keeps failures away from training.
        flush: Hands over what was recorded within so many seconds, and returns whether all of it went.
        close: Ends the hook's part in the run, which failed with the exception if there is one.
        location: Where a person looks for what the hook makes.
    """

    run: Run
    number: int
    guard: Guard
    flush: Callable[[float], bool]
    close: Callable[[BaseException | None], None]
    location: str | None = None


class OTelHook:
    """Turns a trainer's events into OpenTelemetry metrics and spans on providers that are already there.

    Like any instrumentation it uses the providers it is given, else the global ones, and never shuts them
    down. ``start()`` makes a hook with a pipeline of its own instead.

    Args:
        meter_provider: Where metrics go; the global one when None, also when that is set later.
        tracer_provider: Where spans go; likewise.
        run_name: Readable name of the run; its id when None.
        run_id: Identity of the run; ``OTEL_TRAINING_RUN_ID``, the launcher's or a random one when None.
        attributes: Attributes to add to every point and span.
        tracing: Which spans are made of steps.
        clock: When events arrive; for tests.

    Raises:
        ValueError: OpenTelemetry cannot carry an attribute, or a rank variable is not a whole number.
    """

    every_steps = 1
    """The log hands over every step, whatever its own cadence."""

    def __init__(
        self,
        *,
        meter_provider: MeterProvider | None = None,
        tracer_provider: TracerProvider | None = None,
        run_name: str | None = None,
        run_id: str | None = None,
        attributes: Mapping[str, str | int] | None = None,
        tracing: TracingOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        identity = detect(os.environ, run_id=run_id, run_name=run_name)
        Attributes().read(Given(name="attributes", value=attributes or {}, is_text=False))
        self._begin(
            _attach_to_providers(
                meter_provider,
                tracer_provider,
                identity,
                {**identity.point_attributes, **(attributes or {})},
                tracing or TracingOptions(),
                clock or Clock(),
            )
        )

    @classmethod
    def attached(cls, attachment: Attachment) -> OTelHook:
        """Return a hook on a run that is already set up."""
        hook = cls.__new__(cls)
        hook._begin(attachment)
        return hook

    def _begin(self, attachment: Attachment) -> None:
        self._to = attachment
        self._pid = os.getpid()
        self._closed = False
        process.close_at_end(self)

    @property
    def location(self) -> str | None:
        """Where a person looks for what this hook makes, in words; None when there is no such place."""
        return self._to.location

    def on_event(self, event: str, payload: Mapping[str, Any]) -> None:
        """Take an event in; microseconds, no I/O, no exception.

        Args:
            event: Name of the event.
            payload: Its fields; not changed and not kept.
        """
        if self._inert():
            return
        to, sigterm = self._to, process.sigterm
        on_main = threading.get_ident() == sigterm.main_ident
        try:
            # No call comes between these two: an interrupt in it would hold SIGTERM off for good.
            sigterm.depth += on_main
            to.guard.run("hook", to.run.handle, to.number, event, payload)
        finally:
            sigterm.depth -= on_main
            if sigterm.pending and on_main:
                sigterm.catch_up()

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Hand over everything recorded so far; return whether that was done in ``timeout_s`` seconds."""
        return not self._inert() and self._to.flush(timeout_s)

    def close(self, error: BaseException | None = None) -> None:
        """End the run if no event has, flush, and take no further events. Idempotent; bounded in time.

        Args:
            error: The exception that ended the run, if one did.
        """
        with process.sigterm.held_off():  # it would cut off the last delivery
            if not self._inert():
                self._closed = True
                self._to.guard.run("close", self._to.close, error)
                process.closed(self)

    def _inert(self) -> bool:
        # A forked child has a copy of everything but the threads; what it would tell is the parent's to tell.
        return self._closed or os.getpid() != self._pid


def _attach_to_providers(
    meter_provider: MeterProvider | None,
    tracer_provider: TracerProvider | None,
    identity: Identity,
    attributes: Mapping[str, str | int],
    options: TracingOptions,
    clock: Clock,
) -> Attachment:
    guard = Guard(Notices())
    instruments = process.instruments(meter_provider, guard)
    tracer = trace.get_tracer(catalog.SCOPE, VERSION, tracer_provider)
    key = (weakref.ref(instruments), identity.run_id, identity.rank)
    number = process.next_number()

    def create(state: State) -> Run:
        tracing = Tracing(tracer, attributes, identity.rank, options, os.environ, clock.now())
        return Run(identity, state, guard, clock, attributes, tracing)

    run = process.join(key, number, create)
    instruments.attach(run)

    def flush(timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        done = True
        for provider in (
            tracer_provider or trace.get_tracer_provider(),
            meter_provider or metrics.get_meter_provider(),
        ):
            force_flush = getattr(provider, "force_flush", None)  # the API alone has none
            if force_flush is not None:
                done &= bounded.call(guard, "flush", force_flush, deadline_s - time.monotonic())
        return done

    def close(error: BaseException | None) -> None:
        if process.leave(key, number, keep_totals=True):
            run.end(error)
            flush(CLOSE_TIMEOUT_S)
            instruments.detach(run)

    return Attachment(run=run, number=number, guard=guard, flush=flush, close=close)
