"""The numbers of a run that are true now, as plain Python: what instruments and scrape page read.

The training thread writes here and nothing else; a reader takes a snapshot. No OpenTelemetry, no Prometheus.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

from otel_training import catalog
from otel_training.catalog import Attribute, Metric
from otel_training.values import Number, storable, text

Labels = tuple[str | None, ...]
"""Values of a metric's attributes in the catalog's order; None is an attribute that is absent."""

Series = tuple[Metric, Labels]

# Inside these no number needs a second look: a 64-bit int or a finite float.
_SAFE_MIN, _SAFE_MAX = -(2.0**62), 2.0**62


class Exemplar(NamedTuple):
    """An observation that a span tells more about.

    Args:
        value: What was observed.
        trace_id: Of the span.
        span_id: Of the span.
        unix_s: When, as Unix time.
    """

    value: float
    trace_id: int
    span_id: int
    unix_s: float


class Histogram:
    """Counts and sums of a histogram, bucket by bucket, and the last exemplar of each bucket.

    Args:
        bounds: Upper bounds of the buckets, ascending; one more bucket holds what is above the last.
    """

    __slots__ = ("bounds", "counts", "exemplars", "sums")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sums = [0.0] * (len(bounds) + 1)
        self.exemplars: dict[int, Exemplar] = {}

    def observe(self, value: float, times: int) -> None:
        """Add ``value`` to its bucket ``times`` times."""
        bucket = bisect_left(self.bounds, value)
        total = self.sums[bucket] + value * times
        if isfinite(total):  # one observation beyond all measure must not cost all others
            self.counts[bucket] += times
            self.sums[bucket] = total

    def exemplify(self, exemplar: Exemplar) -> None:
        """Let an exemplar stand for the bucket that its value is in."""
        self.exemplars[bisect_left(self.bounds, exemplar.value)] = exemplar

    def copy(self) -> Histogram:
        """Return a copy that later observations do not change."""
        copy = Histogram(self.bounds)
        copy.counts = self.counts[:]
        copy.sums = self.sums[:]
        copy.exemplars = self.exemplars.copy()
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
        self.observations = 0
        """How many observations the histograms have taken."""
        self._values: defaultdict[Metric, dict[Labels, Number]] = defaultdict(dict)
        self._histograms: defaultdict[Metric, dict[Labels, Histogram]] = defaultdict(dict)
        self._admitted: dict[tuple[Metric, Attribute], set[tuple[Labels, str]]] = {}

    def snapshot(self) -> Snapshot:
        """Return a copy of all series."""
        with self.lock:
            values = {
                (metric, labels): value for metric, of in self._values.items() for labels, value in of.items()
            }
            histograms = {
                (metric, labels): histogram.copy()
                for metric, of in self._histograms.items()
                for labels, histogram in of.items()
            }
            return Snapshot(values, histograms)

    def values_of(self, metric: Metric) -> dict[Labels, Number]:
        """Return a copy of the series of a gauge, counter or up-down counter."""
        with self.lock:
            return self._values.get(metric, {}).copy()

    def histograms_of(self, metric: Metric) -> dict[Labels, Histogram]:
        """Return a copy of the series of a histogram."""
        with self.lock:
            return {
                labels: histogram.copy() for labels, histogram in self._histograms.get(metric, {}).items()
            }

    def set(self, metric: Metric, value: Number, *labels: str | None) -> None:
        """Set a gauge, an up-down counter, or a counter whose total comes from outside.

        A value that is not finite is no value: it withdraws the series.
        """
        series = self._values[metric]
        if labels not in series:
            labels = self._admit_all(metric, labels)
        if _SAFE_MIN <= value <= _SAFE_MAX:
            series[labels] = value
            return
        fitting = storable(value)
        if fitting is None:
            series.pop(labels, None)
        else:
            series[labels] = fitting

    def add(self, metric: Metric, amount: Number, *labels: str | None) -> None:
        """Add to a counter; ``amount`` must not be negative. What a float could not hold is not added."""
        series = self._values[metric]
        if labels not in series:
            labels = self._admit_all(metric, labels)
        total = series.get(labels, 0) + amount
        if _SAFE_MIN <= total <= _SAFE_MAX:
            series[labels] = total
            return
        fitting = storable(total)
        if fitting is not None:
            series[labels] = fitting

    def observe(self, metric: Metric, value: float, times: int = 1, *labels: str | None) -> None:
        """Add ``value`` to a histogram ``times`` times."""
        if not isfinite(value):
            return
        series = self._histograms[metric]
        if labels not in series:
            labels = self._admit_all(metric, labels)
            series.setdefault(labels, Histogram(metric.bounds))
        series[labels].observe(value, times)
        self.observations += 1

    def exemplify(self, metric: Metric, exemplar: Exemplar) -> None:
        """Add an exemplar to a histogram without attributes that has taken its value."""
        histogram = self._histograms[metric].get(())
        if histogram is not None:
            histogram.exemplify(exemplar)

    def get(self, metric: Metric, *labels: str | None) -> Number | None:
        """Return the value of a series, or None when there is none."""
        return self._values[metric].get(self._admit_all(metric, labels))

    def withdraw(self, metric: Metric, *labels: str | None) -> None:
        """Take a series away, so that no reader sees its last value as if it were still true."""
        self._values[metric].pop(self._admit_all(metric, labels), None)

    def withdraw_all(self, metric: Metric) -> None:
        """Take all series of a metric away."""
        self._values.pop(metric, None)

    def forget_current(self) -> None:
        """Take away all but counters and histograms: what a later run of the same identity goes on from."""
        for metric in list(self._values):
            if metric.kind != "counter":
                del self._values[metric]

    def _admit_all(self, metric: Metric, labels: Labels) -> Labels:
        """Return the labels as their series has them: as text, within the caps."""
        admitted: Labels = ()
        if labels:
            for attribute, value in zip(metric.attributes, labels, strict=True):
                admitted += (None if value is None else self._admit(metric, attribute, admitted, value),)
        return admitted

    def _admit(self, metric: Metric, attribute: Attribute, before: Labels, value: str) -> str:
        """Return the value's text, or ``other`` when the attribute has no room for one more."""
        if attribute.values:
            label = value if type(value) is str else text(value, attribute.max_length)
            if label in attribute.values:
                return label
        else:
            known = self._admitted.setdefault((metric, attribute), set())
            if type(value) is str and (before, value) in known:
                return value
            label = text(value, attribute.max_length)
            if (before, label) in known:
                return label
            if attribute.cap is None or len(known) < attribute.cap:
                known.add((before, label))
                return label
        self.add(catalog.BRIDGE_DROPS, 1, "cardinality")
        return catalog.OTHER
