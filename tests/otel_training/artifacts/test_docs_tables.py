"""docs/metrics.md has the tables of today, and they have everything."""

import re
from pathlib import Path

import pytest

from otel_training import catalog, device_keys
from otel_training.artifacts import docs_tables

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"


def test_the_document_is_what_would_be_written():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert docs_tables.with_tables(text) == text, (
        "run: python -m otel_training.artifacts.docs_tables docs/metrics.md"
    )


def test_every_metric_attribute_and_key_has_one_row():
    rows = re.findall(r"^\| `([^`]+)`", docs_tables.tables(), re.MULTILINE)
    attributes = {attribute.name for attribute in docs_tables.attributes()}
    expected = [metric.name for metric in catalog.METRICS] + [form.base for form in device_keys.FORMS]
    assert sorted(rows[1:] if rows[0] == "metric" else rows) == sorted(
        [*expected, *attributes, "DeviceStatsMonitor.{hook}/..."]
    )


def test_a_document_without_marks_is_refused():
    with pytest.raises(ValueError, match="unpack"):
        docs_tables.with_tables("# Metrics\n")


def test_what_stood_between_the_marks_is_replaced():
    text = f"before\n{docs_tables.BEGIN}old text\n{docs_tables.END}after\n"
    made = docs_tables.with_tables(text)
    assert "old text" not in made
    assert made.startswith("before\n")
    assert made.endswith("after\n")
    assert docs_tables.with_tables(made) == made
