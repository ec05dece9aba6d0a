"""The numbers of a run that are true now, as plain Python: what instruments and scrape page read.

The training thread writes here and nothing else; a reader takes a snapshot. No OpenTelemetry, no Prometheus.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

from otel_training import catalog
from otel_training.catalog import Attribute, Metric
from otel_training.values import Number, text

Labels = tuple[str | None, ...]
"""Values of a metric's attributes in the catalog's order; None is an attribute that is absent."""

Series = tuple[Metric, Labels]


class Histogram:
    """Counts and sums of a histogram, bucket by bucket.

    Args:
        bounds: Upper bounds of the buckets, ascending; one more bucket holds what is above the last.
    """

    __slots__ = ("bounds", "counts", "sums")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sums = [0.0] * (len(bounds) + 1)

    def observe(self, value: float, times: int) -> None:
        """Add ``value`` to its bucket ``times`` times."""
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += times
        self.sums[bucket] += value * times

    def copy(self) -> Histogram:
        """Return a copy that later observations do not change."""
        copy = Histogram(self.bounds)
        copy.counts = self.counts[:]
        copy.sums = self.sums[:]
        return copy


@dataclass(frozen=True)
class Snapshot:
    """The numbers of a run at one moment.

    Args:
        values: Each gauge's, counter's and up-down counter's series.
        histograms: Each histogram's series.
    """

    values: dict[Series, Number]
    histograms: dict[Series, Histogram]


class State:
    """The series of one run.

    Writers hold ``lock`` for the whole of an event, so that a snapshot never shows half of one. The lock is
    re-entrant because a signal handler may run in the middle of an event of its own thread.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._values: dict[Series, Number] = {}
        self._histograms: dict[Series, Histogram] = {}
        self._admitted: dict[tuple[Metric, Attribute], set[tuple[Labels, str]]] = {}

    def snapshot(self) -> Snapshot:
        """Return a copy of all series."""
        with self.lock:
            histograms = {series: histogram.copy() for series, histogram in self._histograms.items()}
            return Snapshot(dict(self._values), histograms)

    def set(self, metric: Metric, value: Number, *labels: Any) -> None:
        """Set a gauge, an up-down counter, or a counter whose total comes from outside."""
        self._values[self._series(metric, labels)] = value

    def add(self, metric: Metric, amount: Number, *labels: Any) -> None:
        """Add to a counter; ``amount`` must not be negative."""
        series = self._series(metric, labels)
        self._values[series] = self._values.get(series, 0) + amount

    def observe(self, metric: Metric, value: float, times: int = 1, *labels: Any) -> None:
        """Add ``value`` to a histogram ``times`` times."""
        series = self._series(metric, labels)
        histogram = self._histograms.get(series)
        if histogram is None:
            histogram = self._histograms[series] = Histogram(metric.bounds)
        histogram.observe(value, times)

    def get(self, metric: Metric, *labels: Any) -> Number | None:
        """Return the value of a series, or None when there is none."""
        return self._values.get(self._series(metric, labels))

    def withdraw(self, metric: Metric, *labels: Any) -> None:
        """Take a series away, so that no reader sees its last value as if it were still true."""
        self._values.pop(self._series(metric, labels), None)

    def withdraw_all(self, metric: Metric) -> None:
        """Take all series of a metric away."""
        for series in [series for series in self._values if series[0] is metric]:
            del self._values[series]

    def forget_current(self) -> None:
        """Take away all but counters and histograms: what a later run of the same identity goes on from."""
        self._values = {
            series: value for series, value in self._values.items() if series[0].kind == "counter"
        }

    def _series(self, metric: Metric, labels: tuple[Any, ...]) -> Series:
        if not labels:
            return metric, ()
        admitted: Labels = ()
        for attribute, value in zip(metric.attributes, labels, strict=True):
            admitted += (None if value is None else self._admit(metric, attribute, admitted, value),)
        return metric, admitted

    def _admit(self, metric: Metric, attribute: Attribute, before: Labels, value: Any) -> str:
        """Return the value's text, or ``other`` when the attribute has no room for one more."""
        if attribute.values:
            if value in attribute.values:
                return str(value)
        else:
            known = self._admitted.setdefault((metric, attribute), set())
            label = (
                value
                if type(value) is str and (before, value) in known
                else text(value, attribute.max_length)
            )
            if (before, label) in known:
                return label
            if attribute.cap is None or len(known) < attribute.cap:
                known.add((before, label))
                return label
        self.add(catalog.BRIDGE_DROPS, 1, "cardinality")
        return catalog.OTHER
