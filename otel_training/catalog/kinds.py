"""What an attribute, a metric and a span are, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MAX_ATTRIBUTE_LENGTH = 128
"""Longest attribute value in characters, unless the attribute says otherwise."""

Kind = Literal["gauge", "counter", "updown", "histogram"]


@dataclass(frozen=True, eq=False)
class Attribute:
    """An attribute of metrics: its name, its meaning and what bounds its values.

    Args:
        name: OpenTelemetry attribute name.
        brief: Meaning, one line.
        values: The closed set of values, or empty when values come from outside.
        cap: Most distinct values from outside that are kept; later ones become ``other``.
        max_length: Longest value in characters; the rest is cut.
    """

    name: str
    brief: str
    values: tuple[str, ...] = ()
    cap: int | None = None
    max_length: int = MAX_ATTRIBUTE_LENGTH

    @property
    def label(self) -> str:
        """The attribute's name as a Prometheus label."""
        return self.name.replace(".", "_")


@dataclass(frozen=True, eq=False)
class Metric:
    """A metric as data.

    Args:
        name: OpenTelemetry metric name.
        kind: ``gauge``, ``counter``, ``updown`` or ``histogram``; the first three are observable instruments.
        unit: UCUM unit; empty for quantities without one.
        brief: Meaning, one sentence; the description of the instrument and the HELP line of the page.
        attributes: The attributes of its series, in the order in which ``state`` takes their values.
        events: Names of the events that feed it.
        bounds: Upper bounds of the buckets of a histogram, in the metric's unit.
    """

    name: str
    kind: Kind
    unit: str
    brief: str
    attributes: tuple[Attribute, ...] = ()
    events: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class Span:
    """A span as data.

    Args:
        name: Name of the span.
        brief: What it covers, one sentence.
        attributes: What it carries beside the identity of the run.
        events: Names of the events that make it.
    """

    name: str
    brief: str
    attributes: tuple[Attribute, ...] = ()
    events: tuple[str, ...] = ()
