"""How a metric of the catalog is called in Prometheus."""

from __future__ import annotations

import re

from otel_training.catalog.kinds import Metric

_UNIT_WORDS = {
    "s": "seconds",
    "By": "bytes",
    "W": "watts",
    "J": "joules",
    "Cel": "celsius",
    "Hz": "hertz",
    "%": "percent",
}


def prometheus_unit(metric: Metric) -> str:
    """Return the unit word in the metric's Prometheus name (``seconds``, ``per_second``), or an empty string.

    Source: the OpenTelemetry specification's Prometheus compatibility page; unit ``1`` adds nothing (2026).
    """
    if metric.unit in ("", "1"):
        return ""
    words = []
    for position, part in enumerate(metric.unit.split("/")):
        bare = re.sub(r"\{[^}]*\}", "", part)
        if position and bare:
            words.append("per_" + {"s": "second"}.get(bare, bare))
        elif bare:
            words.append(_UNIT_WORDS.get(bare, bare))
    return "_".join(words)


def prometheus_name(metric: Metric, *, ratio_suffix: bool = False) -> str:
    """Return the name of the metric in Prometheus, without ``_bucket``, ``_sum`` and ``_count``.

    Args:
        metric: A metric of this catalog.
        ratio_suffix: True for the spelling that the OpenTelemetry Collector gives to gauges of unit ``1``.
    """
    name = re.sub(r"_+", "_", re.sub(r"[^a-zA-Z0-9_]", "_", metric.name))
    unit = prometheus_unit(metric)
    if unit and not name.endswith("_" + unit):
        name += "_" + unit
    if metric.unit == "1" and metric.kind == "gauge" and ratio_suffix:
        name += "_ratio"
    if metric.kind == "counter":
        name += "_total"
    return name
