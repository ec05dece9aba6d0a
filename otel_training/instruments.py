"""Catalog and states become OpenTelemetry instruments of one meter provider.

All but histograms are observable: they return what is true when somebody collects, in every SDK version, and
a run that is over is simply no longer walked. Histograms are fed from the same callbacks with what came in
since the last collection, so that their counts agree with the scrape page bucket by bucket.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from functools import partial
from math import inf, nextafter
from typing import Protocol
from weakref import WeakKeyDictionary

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
from opentelemetry.metrics import Histogram as Recording

from otel_training import catalog
from otel_training.catalog import Metric
from otel_training.guard import Guard
from otel_training.state import Histogram, Labels, Series, State
from otel_training.version import VERSION


class Source(Protocol):
    """A run whose numbers are to be seen."""

    state: State
    point_attributes: Mapping[str, str | int]


class Instruments:
    """The catalog's instruments on one provider; every collection walks the runs attached at that moment.

    Args:
        provider: Where the instruments are made; its readers decide when they are read.
        guard: Takes what goes wrong in a callback, so that it costs one metric and not the collection.
    """

    def __init__(self, provider: MeterProvider, guard: Guard) -> None:
        self._guard = guard
        self._pid = os.getpid()
        # Re-entrant: a signal handler may close the hook while its thread is in the middle of a collection.
        self._lock = threading.RLock()
        self._sources: tuple[Source, ...] = ()
        # Kept past a run's end: a later run of the same identity goes on with the same state.
        self._fed: WeakKeyDictionary[State, _Fed] = WeakKeyDictionary()
        meter = provider.get_meter(catalog.SCOPE, VERSION)
        make = {
            "gauge": meter.create_observable_gauge,
            "counter": meter.create_observable_counter,
            "updown": meter.create_observable_up_down_counter,
        }
        self._recordings: dict[Metric, Recording] = {}
        for metric in catalog.METRICS:
            if metric.kind == "histogram":
                self._recordings[metric] = meter.create_histogram(
                    metric.name, metric.unit, metric.brief, explicit_bucket_boundaries_advisory=metric.bounds
                )
            else:
                make[metric.kind](metric.name, [partial(self._observe, metric)], metric.unit, metric.brief)

    def attach(self, source: Source) -> None:
        """Show a run from now on."""
        with self._lock:
            if source not in self._sources:
                self._sources += (source,)

    def detach(self, source: Source) -> None:
        """Show a run no longer; what its histograms hold is fed first."""
        self._feed()
        with self._lock:
            self._sources = tuple(other for other in self._sources if other is not source)

    def _observe(self, metric: Metric, _options: CallbackOptions) -> Iterable[Observation]:
        observations: list[Observation] = []
        if os.getpid() == self._pid:  # a forked child has nothing of its own to tell
            self._feed()
            for source in self._sources:
                self._guard.run(metric.name, self._collect, metric, source, observations)
        return observations

    def _collect(self, metric: Metric, source: Source, into: list[Observation]) -> None:
        for labels, value in source.state.values_of(metric).items():
            into.append(Observation(value, _attributes(metric, labels, source)))

    def _feed(self) -> None:
        """Record what the histograms took in since the last call."""
        with self._lock:
            for source in self._sources:
                fed = self._fed.setdefault(source.state, _Fed())
                observations = source.state.observations
                if observations == fed.observations:
                    continue  # most often: an earlier callback of this collection did it
                fed.observations = observations
                for metric in self._recordings:
                    for labels, histogram in source.state.histograms_of(metric).items():
                        before = fed.histograms.get((metric, labels)) or Histogram(metric.bounds)
                        fed.histograms[metric, labels] = histogram
                        attributes = _attributes(metric, labels, source)
                        self._guard.run(metric.name, self._record, metric, histogram, before, attributes)

    def _record(
        self, metric: Metric, histogram: Histogram, before: Histogram, attributes: Mapping[str, str | int]
    ) -> None:
        """Record each bucket's mean, as often as the bucket was hit since ``before``."""
        record = self._recordings[metric].record
        for bucket, (count, count_before) in enumerate(zip(histogram.counts, before.counts, strict=True)):
            if count > count_before:
                mean = (histogram.sums[bucket] - before.sums[bucket]) / (count - count_before)
                value = _within(bucket, mean, histogram.bounds)
                for _ in range(count - count_before):
                    record(value, attributes)


class _Fed:
    """What the SDK's histograms have had of a state."""

    def __init__(self) -> None:
        self.observations = 0
        self.histograms: dict[Series, Histogram] = {}


def _within(bucket: int, value: float, bounds: tuple[float, ...]) -> float:
    """Return ``value``, moved into its bucket when rounding of the mean took it out."""
    if bisect_left(bounds, value) == bucket:
        return value
    if bucket == len(bounds):
        return nextafter(bounds[-1], inf)
    return bounds[bucket]


def _attributes(metric: Metric, labels: Labels, source: Source) -> dict[str, str | int]:
    attributes: dict[str, str | int] = dict(source.point_attributes)
    for attribute, label in zip(metric.attributes, labels, strict=True):
        if label is not None:
            attributes[attribute.name] = label
    return attributes
