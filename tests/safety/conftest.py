"""What the tests of safety share: a training in one line, and what the page says of it."""

from __future__ import annotations

import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families


class Page:
    """The scrape page of a running telemetry."""

    @staticmethod
    def values(telemetry, name):
        """Return the values of a family's series by their own labels, identity left out."""
        with urllib.request.urlopen(telemetry.url, timeout=20.0) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            found = {}
            for family in families:
                for sample in family.samples:
                    if sample.name == name:
                        own = {k: v for k, v in sample.labels.items() if v and k not in IDENTITY}
                        found[tuple(own.values())] = sample.value
        return found


IDENTITY = ("training_run_id", "training_run_name", "training_rank")


@pytest.fixture
def page_values():
    return Page.values
