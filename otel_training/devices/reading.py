"""What a reader gives back: samples, the figures that the next rates need, and what could not be read."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from otel_training.catalog import Metric
from otel_training.guard import describe, outcome
from otel_training.values import Number, number

P = ParamSpec("P")
T = TypeVar("T")

MIN_RATE_INTERVAL_S = 0.1
"""Shortest time between two readings that a rate is made of; over less the tick of the counters shows."""

_BLANKS = frozenset({0xFFFFFFFF, *range(0x7FFFFFF0, 0x7FFFFFF4), *range(0x7FFFFFFFFFFFFFF0, 1 << 63)})
"""What NVIDIA's libraries answer in place of a figure. Source: NVML's and DCGM's headers."""


class Unavailable(Exception):  # noqa: N818 - nothing is wrong, there is nothing to read
    """There is nothing to read here, or not yet; the message says why."""


@dataclass(frozen=True)
class Sample:
    """One number of a series.

    Args:
        metric: A metric of the catalog.
        value: Its value in the metric's unit; of a counter, the running total at its source.
        labels: Values of the metric's attributes in the catalog's order.
    """

    metric: Metric
    value: Number
    labels: tuple[str | None, ...] = ()


def _is_not_implemented(error: Exception) -> bool:
    return isinstance(error, NotImplementedError)


@dataclass
class Reading:
    """The result of one reading of a source; a part of it that raises costs itself alone.

    Args:
        is_unsupported: Tells what the device cannot do from what went wrong.
        samples: What was read.
        raw: What the next reading makes its rates of.
        failures: What raised, by its name, and why.
        unsupported: What the device does not offer, likewise.
    """

    is_unsupported: Callable[[Exception], bool] = _is_not_implemented
    samples: list[Sample] = field(default_factory=list)
    raw: Any = None
    failures: dict[str, str] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)

    def ask(self, what: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Call a foreign function and return its answer, or None when it raised.

        Args:
            what: Name of the reading, for the log.
            function: What is called.
            *args: What it is called with.
            **kwargs: Likewise.
        """
        answer, error = outcome(function, *args, **kwargs)
        if error is not None:
            place = self.unsupported if self.is_unsupported(error) else self.failures
            place[what] = describe(error)
        return answer

    def put(
        self, metric: Metric, value: object, *labels: str | None, most: float = math.inf, scale: float = 1
    ) -> None:
        """Add a sample unless the value is missing or impossible.

        Args:
            metric: A metric of the catalog.
            value: What the source said; None for nothing.
            *labels: Values of the metric's attributes.
            most: Largest value that can be, in the source's unit.
            scale: What the value is multiplied by to be in the metric's unit.
        """
        plain = plausible(value, most)
        if plain is not None:
            self.samples.append(Sample(metric, plain * scale, labels))


def plausible(value: object, most: float = math.inf) -> Number | None:
    """Return a figure of a device, or None when it is not from 0 to ``most`` or stands for "none"."""
    plain = number(value)
    if plain is None or not math.isfinite(plain) or not 0 <= plain <= most or plain in _BLANKS:
        return None
    return plain
