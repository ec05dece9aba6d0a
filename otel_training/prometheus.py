"""The state as a Prometheus page: a prometheus_client collector, and the text a client asks for.

The numbers are read when somebody scrapes; nothing is kept here between two scrapes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import accumulate
from operator import itemgetter
from typing import Any

from prometheus_client import exposition as text_format
from prometheus_client import samples
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from otel_training import catalog
from otel_training.catalog import Metric
from otel_training.guard import Guard, Notices
from otel_training.state import Exemplar, Histogram, Labels, State
from otel_training.values import Number, text

# Spelled out because prometheus_client's own "latest" changed its version from 0.23 on.
TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

Point = tuple[list[str], Number | Histogram]
"""Label values and number of a series."""


class RunCollector(Collector):
    """The series of one run as metric families, in the catalog's order.

    An attribute that is absent is an empty label, which to Prometheus is no label: so all series of a family
    have the same label names. Values that are not finite are left out.

    Args:
        state: The numbers.
        labels: Values of the labels of ``catalog.IDENTITY``, which every series carries.
        guard: Where a family that cannot be shown is told; the others are shown all the same.
    """

    def __init__(self, state: State, labels: tuple[str, str, str], guard: Guard | None = None) -> None:
        self._state = state
        # An environment variable may hold bytes that are not UTF-8; one such label would cost the whole page.
        self._identity = [
            text(label, attribute.max_length)
            for attribute, label in zip(catalog.IDENTITY, labels, strict=True)
        ]
        self._guard = guard or Guard(Notices())

    def collect(self) -> Iterator[Family]:
        """Yield the families that have series now."""
        snapshot = self._state.snapshot()
        points: dict[Metric, list[Point]] = {metric: [] for metric in catalog.METRICS}
        for numbers in (snapshot.values, snapshot.histograms):
            for (metric, labels), number in numbers.items():
                points.setdefault(metric, []).append((self._label_values(metric, labels), number))
        families: list[Family] = []
        for metric in points:
            self._guard.run(
                f"{metric.name} on the scrape page", _add_family, families, metric, points[metric]
            )
        yield from families

    def _label_values(self, metric: Metric, labels: Labels) -> list[str]:
        own = [label or "" for label in labels] or [""] * len(metric.attributes)
        return self._identity + own


def render(collector: Collector, accept: str | None) -> tuple[bytes, str]:
    """Return the page's body and its content type.

    Two formats are spoken, text 0.0.4 and OpenMetrics 1.0, whatever the release of prometheus_client. Newer
    ones would also let the client choose an escaping, and some of these spell the catalog's names anew.

    Args:
        collector: A ``RunCollector``, or a registry that holds one.
        accept: The request's ``Accept`` header.
    """
    if _prefers_openmetrics(accept):
        body: bytes = openmetrics.generate_latest(collector)  # type: ignore[no-untyped-call]
        return body, OPENMETRICS_CONTENT_TYPE
    return text_format.generate_latest(collector), TEXT_CONTENT_TYPE


def accepts_gzip(accept_encoding: str | None) -> bool:
    """Return whether an ``Accept-Encoding`` header allows a body compressed with gzip."""
    return any(name == "gzip" and quality > 0 for name, _, quality in _preferences(accept_encoding))


def _add_family(families: list[Family], metric: Metric, points: list[Point]) -> None:
    family = _empty_family(metric)
    # Sorted, because a series that was withdrawn and came back is at the end of the state's order.
    for labels, number in sorted(points, key=itemgetter(0)):
        if isinstance(number, Histogram):
            _add_histogram(family, labels, number)
        elif math.isfinite(number):
            family.add_metric(labels, number)
    if family.samples:
        families.append(family)


def _empty_family(metric: Metric) -> Any:
    kinds = {"counter": CounterMetricFamily, "histogram": HistogramMetricFamily}
    return kinds.get(metric.kind, GaugeMetricFamily)(
        catalog.prometheus_name(metric),
        metric.brief,
        labels=[attribute.label for attribute in (*catalog.IDENTITY, *metric.attributes)],
        unit=catalog.prometheus_unit(metric),
    )


def _add_histogram(family: HistogramMetricFamily, labels: list[str], histogram: Histogram) -> None:
    total = sum(histogram.sums)
    if math.isfinite(total):
        bounds = map(floatToGoString, (*histogram.bounds, math.inf))
        counts = accumulate(histogram.counts)
        buckets: list[Any] = [
            (bound, count, _exemplar(histogram.exemplars.get(bucket)))
            for bucket, (bound, count) in enumerate(zip(bounds, counts, strict=True))
        ]
        family.add_metric(labels, buckets, total)


def _exemplar(exemplar: Exemplar | None) -> samples.Exemplar | None:
    """Return an exemplar as OpenMetrics shows it; the older text format has none."""
    if exemplar is None:
        return None
    value, trace_id, span_id, unix_s = exemplar
    ids = {"trace_id": f"{trace_id:032x}", "span_id": f"{span_id:016x}"}
    return samples.Exemplar(ids, value, samples.Timestamp(int(unix_s), int(unix_s % 1 * 1e9)))


def _prefers_openmetrics(accept: str | None) -> bool:
    openmetrics_quality = text_quality = 0.0
    for name, version, quality in _preferences(accept):
        if name == "application/openmetrics-text" and (not version or version.startswith("1.")):
            openmetrics_quality = max(openmetrics_quality, quality)
        elif name == "text/plain":
            text_quality = max(text_quality, quality)
    return openmetrics_quality > 0 and openmetrics_quality >= text_quality


def _preferences(header: str | None) -> Iterator[tuple[str, str, float]]:
    """Yield name, version and quality (0..1) of each item of an ``Accept`` or ``Accept-Encoding`` header."""
    for item in (header or "").lower().split(","):
        name, *parameters = (part.strip() for part in item.split(";"))
        settings = dict(parameter.partition("=")[::2] for parameter in parameters)
        quality = settings.get("q", "1")
        yield (
            name,
            settings.get("version", ""),
            float(quality) if re.fullmatch(r"[01](\.\d*)?", quality) else 0.0,
        )
