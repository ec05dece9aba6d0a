"""Writes spans of the catalog: explicit times and parents, clean attributes, the run's identity on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, Status, StatusCode, Tracer

from otel_training.catalog.kinds import Attribute
from otel_training.catalog.kinds import Span as SpanData
from otel_training.clock import Moment
from otel_training.values import finite, number, text

ROOT = Context()
"""Parent of a span that has none, whatever span the calling thread is in."""

_MESSAGE_LENGTH = 256

Values = Mapping[Attribute, Any]


class SpanWriter:
    """Makes spans of one run.

    Args:
        tracer: Makes the spans.
        identity: Attributes that each span carries.
        anchor: A moment on both clocks: span times follow the monotonic one, so that no correction of the
            wall clock makes a span end before it starts.
    """

    def __init__(self, tracer: Tracer, identity: Mapping[str, str | int], anchor: Moment) -> None:
        self._tracer = tracer
        self._identity = identity
        self._anchor = anchor

    def start(
        self, data: SpanData, at_s: float, parent: Context, values: Values, links: Sequence[SpanContext] = ()
    ) -> Span:
        """Start a span.

        Args:
            data: Which span.
            at_s: Its start on the monotonic clock.
            parent: Context of its parent; ``ROOT`` for none.
            values: Its attributes; those that are None, non-finite or unreadable are left out.
            links: Spans to link to.
        """
        return self._tracer.start_span(
            data.name,
            context=parent,
            attributes={**self._identity, **clean(values)},
            links=[Link(context) for context in links if context.is_valid],
            start_time=self._unix_ns(at_s),
        )

    def end(self, span: Span, at_s: float, values: Values, error: Any = None) -> None:
        """End a span; ``error``, a text or an exception, gives it status ERROR and an exception event."""
        span.set_attributes(clean(values))
        if error is not None:
            message = text(error, _MESSAGE_LENGTH)
            kind, _, said = message.partition(":")
            if isinstance(error, BaseException):
                kind, said = type(error).__name__, message
            span.add_event(
                "exception",
                {"exception.type": kind.strip(), "exception.message": said.strip()},
                self._unix_ns(at_s),
            )
            span.set_status(Status(StatusCode.ERROR, message))
        span.end(self._unix_ns(at_s))

    def whole(
        self, data: SpanData, start_s: float, end_s: float, parent: Context, values: Values, error: Any = None
    ) -> None:
        """Write a span that is over already."""
        self.end(self.start(data, min(start_s, end_s), parent, values), end_s, {}, error)

    def _unix_ns(self, monotonic_s: float) -> int:
        return self._anchor.unix_ns + int((monotonic_s - self._anchor.monotonic_s) * 1e9)


def clean(values: Values) -> dict[str, str | bool | int | float]:
    """Return attributes as OTLP can carry them: bools, finite numbers, text; anything else is left out."""
    cleaned: dict[str, str | bool | int | float] = {}
    for attribute, value in values.items():
        if value is None:
            continue
        if isinstance(value, bool):
            cleaned[attribute.name] = value
            continue
        plain = finite(value)
        if plain is not None:
            cleaned[attribute.name] = plain
        elif number(value) is None:
            cleaned[attribute.name] = text(value, attribute.max_length)
    return cleaned
