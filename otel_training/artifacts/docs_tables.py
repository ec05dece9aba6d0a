"""The tables of ``docs/metrics.md``: metrics, attributes, and the keys of ``DeviceStatsMonitor``.

``python -m otel_training.artifacts.docs_tables docs/metrics.md`` writes them between their marks; a test
holds that the file has those of today.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from otel_training import catalog, device_keys
from otel_training.catalog import Attribute, Metric
from otel_training.device_keys import Form

BEGIN = "<!-- tables: python -m otel_training.artifacts.docs_tables docs/metrics.md -->\n"
END = "<!-- end of tables -->\n"

SECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Training", ("training",)),
    ("Host, container and process", ("system", "container", "process")),
    ("PyTorch's CUDA allocator", ("torch.cuda",)),
    ("NVIDIA GPU", ("hw",)),
    ("Apple GPU", ("torch.mps",)),
    ("XLA", ("torch_xla",)),
)
"""Headings, and the namespaces of their metrics."""

_KINDS = {"gauge": "gauge", "counter": "counter", "updown": "up-down counter", "histogram": "histogram"}


def tables() -> str:
    """Return all tables with their headings."""
    parts = []
    for title, namespaces in SECTIONS:
        prefixes = tuple(f"{namespace}." for namespace in namespaces)
        rows = [_metric_row(metric) for metric in catalog.METRICS if metric.name.startswith(prefixes)]
        parts += [
            f"## {title}",
            _table(("metric", "kind", "unit", "attributes", "Prometheus", "meaning"), rows),
        ]
    parts += ["## Attributes", _table(("attribute", "values", "meaning"), map(_attribute_row, attributes()))]
    parts += [
        "## Keys of DeviceStatsMonitor",
        _table(
            ("`DeviceStatsMonitor.{hook}/...`", "comes in", "metric", "attributes"),
            map(_form_row, device_keys.FORMS),
        ),
    ]
    return "\n\n".join(parts)


def attributes() -> list[Attribute]:
    """Return the attributes of all metrics, those of identity first, each once."""
    found = dict.fromkeys(catalog.IDENTITY)
    for metric in catalog.METRICS:
        found |= dict.fromkeys(metric.attributes)
    return list(found)


def with_tables(text: str) -> str:
    """Return a document with the tables of today between the marks.

    Raises:
        ValueError: A mark is missing.
    """
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{tables()}\n\n{END}{after}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _metric_row(metric: Metric) -> tuple[str, ...]:
    names = [catalog.prometheus_name(metric, ratio_suffix=suffix) for suffix in (False, True)]
    return (
        f"`{metric.name}`",
        _KINDS[metric.kind],
        f"`{metric.unit}`" if metric.unit else "",
        ", ".join(f"`{attribute.name}`" for attribute in metric.attributes),
        ", ".join(f"`{name}`" for name in dict.fromkeys(names)),
        metric.brief,
    )


def _attribute_row(attribute: Attribute) -> tuple[str, ...]:
    values = ", ".join(f"`{value}`" for value in attribute.values)
    if attribute.cap is not None:
        values = f"at most {attribute.cap}, then `{catalog.OTHER}`"
    return f"`{attribute.name}`", values, attribute.brief


def _form_row(form: Form) -> tuple[str, ...]:
    words = {
        "{index}": "the device's",
        "{xla}": "the device's",
        "{device}": "of the key",
        "{counter}": "of the key",
    }
    named = [
        f"`{attribute.name}` {words.get(label, f'`{label}`')}"
        for attribute, label in zip(form.metric.attributes, form.labels, strict=True)
        if label is not None
    ]
    return f"`{form.base}`", form.comes_in, f"`{form.metric.name}`", ", ".join(named)


if __name__ == "__main__":
    document = Path(sys.argv[1])
    document.write_text(with_tables(document.read_text(encoding="utf-8")), encoding="utf-8")
