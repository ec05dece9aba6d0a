"""Writes spans of the catalog: explicit times and parents, clean attributes, the run's identity on each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, Status, StatusCode, Tracer

from otel_training.catalog.kinds import Attribute
from otel_training.catalog.kinds import Span as SpanData
from otel_training.clock import Moment
from otel_training.guard import describe
from otel_training.values import finite, number, text

ROOT = Context()
"""Parent of a span that has none, whatever span the calling thread is in."""

_MESSAGE_LENGTH = 256
_TYPE_AND_TEXT = re.compile(r"\s*([A-Za-z_][\w.]*)(?:\s*:\s*(.*?))?\s*", re.DOTALL)

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
            message = text(describe(error) if isinstance(error, BaseException) else error, _MESSAGE_LENGTH)
            span.add_event("exception", _exception(message), self._unix_ns(at_s))
            span.set_status(Status(StatusCode.ERROR, message))
        span.end(self._unix_ns(at_s))

    def whole(
        self, data: SpanData, start_s: float, end_s: float, parent: Context, values: Values, error: Any = None
    ) -> None:
        """Write a span that is over already."""
        self.end(self.start(data, min(start_s, end_s), parent, values), end_s, {}, error)

    def _unix_ns(self, monotonic_s: float) -> int:
        # Not before 1970, whatever duration was told: a time below 0 would cost a whole batch.
        since_s = max(monotonic_s - self._anchor.monotonic_s, -self._anchor.unix_s)
        return self._anchor.unix_ns + int(since_s * 1e9)


def _exception(message: str) -> dict[str, str]:
    """Return the attributes of an exception event; the type is left out where the text names none."""
    found = _TYPE_AND_TEXT.fullmatch(message)
    if found is None:
        return {"exception.message": message}
    return {"exception.type": found[1], "exception.message": found[2] or ""}


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
