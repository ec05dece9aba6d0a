"""PromQL from metrics of the catalog.

Two roads lead to Prometheus, the scrape page and an OpenTelemetry collector, and they differ in one thing:
the collector ends the names of fractions in ``_ratio``. Whatever is built here selects both spellings.
"""

from __future__ import annotations

from otel_training import catalog
from otel_training.catalog import Metric

JOB = "job"
INSTANCE = "instance"
RUN_LABELS = (JOB, catalog.RUN_ID.label, catalog.RUN_NAME.label)
"""Labels that tell runs apart; series of a run's ranks, restarts and hosts share them."""

RANK_LABELS = (*RUN_LABELS, catalog.RANK.label)
"""Labels that tell ranks apart; a rank that was restarted on another host keeps them."""


class Queries:
    """PromQL under one set of matchers and one window.

    Args:
        matchers: Matchers that every selector gets, such as ``job=~"$job"``.
        window: Range of rates where no other is given: ``$__rate_interval`` in dashboards, ``5m`` in rules.
    """

    def __init__(self, *matchers: str, window: str) -> None:
        self._matchers = matchers
        self.window = window

    def series(self, metric: Metric, *matchers: str, part: str = "") -> str:
        """Return the selector of a metric.

        Args:
            metric: A metric of the catalog.
            matchers: Further matchers, such as ``training_state="step"``.
            part: ``_bucket``, ``_sum`` or ``_count`` of a histogram.
        """
        names = dict.fromkeys(
            catalog.prometheus_name(metric, ratio_suffix=suffix) + part for suffix in (False, True)
        )
        inside = [*self._matchers, *matchers]
        if len(names) > 1:
            return "{" + ", ".join(['__name__=~"' + "|".join(names) + '"', *inside]) + "}"
        return "".join(names) + ("{" + ", ".join(inside) + "}" if inside else "")

    def rate(self, metric: Metric, *matchers: str, part: str = "", window: str = "") -> str:
        """Return what a counter gains in a second."""
        return f"rate({self.series(metric, *matchers, part=part)}[{window or self.window}])"

    def happened(self, metric: Metric, *matchers: str, part: str = "", window: str = "") -> str:
        """Return how often something was counted within the window, the first time included.

        ``increase`` alone is blind to the first event of a counter that appears with it, which is how most
        counters of things that should not happen begin. A series without a sample in the window before this
        one is new: what it begins with counts, too.
        """
        window = window or self.window
        selector = self.series(metric, *matchers, part=part)
        now, before = f"{selector}[{window}]", f"{selector}[{window}] offset {window}"
        return (
            f"(((increase({now}) + min_over_time({now})) or last_over_time({now}))"
            f" unless last_over_time({before})) or increase({now})"
        )

    def last(self, metric: Metric, *matchers: str, window: str) -> str:
        """Return the last value within the window, of series that ended, too."""
        return f"last_over_time({self.series(metric, *matchers)}[{window}])"

    def mean(self, metric: Metric, by: tuple[str, ...], *matchers: str, window: str = "") -> str:
        """Return the mean of what a histogram took in within the window; exact, unlike its quantiles."""
        parts = [
            aggregate("sum", self.rate(metric, *matchers, part=part, window=window), by)
            for part in ("_sum", "_count")
        ]
        return " / ".join(parts)

    def mean_of_rare(self, metric: Metric, by: tuple[str, ...]) -> str:
        """Return the mean of what a histogram took in, where each observation counts, the first included."""
        return " / ".join(
            aggregate("sum", self.happened(metric, part=part), by) for part in ("_sum", "_count")
        )

    def quantile(self, fraction: float, metric: Metric, by: tuple[str, ...], window: str = "") -> str:
        """Return a quantile as the buckets let one estimate it.

        Args:
            fraction: 0.5 for the median, 0.99 for the 99th percentile.
            metric: A histogram.
            by: Labels to keep.
            window: Range of the rates, when not the usual one.
        """
        buckets = aggregate("sum", self.rate(metric, part="_bucket", window=window), (*by, "le"))
        return f"histogram_quantile({fraction:g}, {buckets})"


def aggregate(operator: str, expression: str, by: tuple[str, ...]) -> str:
    """Return ``operator by (labels) (expression)``."""
    return f"{operator} by ({', '.join(by)}) ({expression})"


def equals(attribute: catalog.Attribute, value: str) -> str:
    """Return the matcher of one value of an attribute.

    Raises:
        ValueError: The attribute's closed set of values lacks this one.
    """
    _check(attribute, value)
    return f'{attribute.label}="{value}"'


def any_of(attribute: catalog.Attribute, *values: str) -> str:
    """Return the matcher of some values of an attribute.

    Raises:
        ValueError: The attribute's closed set of values lacks one of these.
    """
    _check(attribute, *values)
    return f'{attribute.label}=~"{"|".join(values)}"'


def _check(attribute: catalog.Attribute, *values: str) -> None:
    unknown = sorted(set(values) - set(attribute.values)) if attribute.values else []
    if unknown:
        raise ValueError(f"{attribute.name} has the values {attribute.values}, not {unknown}")
