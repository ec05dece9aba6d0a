"""C25: each dashboard works when provisioned as a file, and asks only for metrics that there are."""

import itertools
import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from otel_training import catalog
from otel_training.prometheus import RunCollector, render
from otel_training.state import State

FILES = sorted((Path(__file__).resolve().parents[2] / "grafana" / "dashboards").glob("*.json"))


def strings(value):
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        for item in value:
            yield from strings(item)
    elif isinstance(value, str):
        yield value


def exported_names() -> set[str]:
    """The names on a page with a series of every metric, and those that a collector makes of them."""
    state = State()
    for metric in catalog.METRICS:
        values = [attribute.values or ("value",) for attribute in metric.attributes]
        for labels in itertools.islice(itertools.product(*values), 1):
            if metric.kind == "histogram":
                state.observe(metric, 1.0, 1, *labels)
            else:
                state.set(metric, 1.0, *labels)
    page = render(RunCollector(state, ("id", "name", "0")), None)[0].decode()
    samples = {sample.name for family in text_string_to_metric_families(page) for sample in family.samples}
    return samples | {catalog.prometheus_name(metric, ratio_suffix=True) for metric in catalog.METRICS}


def names_in(query: str) -> set[str]:
    either = [name for names in re.findall(r'__name__=~"([^"]+)"', query) for name in names.split("|")]
    return {*re.findall(r"([a-zA-Z_:][\w:]*)\{", query), *either}


def test_there_are_five():
    assert len(FILES) == 5


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_dashboard_is_provisioned_as_a_file(file):
    text = file.read_text(encoding="utf-8")
    content = json.loads(text)
    assert "__inputs" not in content
    assert content.get("id") is None
    assert content["uid"] == file.stem
    assert "null" not in text

    declared = {variable["name"] for variable in content["templating"]["list"]}
    assert [variable["type"] for variable in content["templating"]["list"]].count("datasource") == 1
    pattern = r"\$\{(\w+)[^}]*\}|\$(\w+)|\[\[(\w+)[^\]]*\]\]"
    used = {name for one in strings(content) for found in re.findall(pattern, one) for name in found if name}
    assert {name for name in used if not name.startswith("__")} <= declared

    panels = [panel for panel in content["panels"] if panel["type"] != "row"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    names = set().union(*map(names_in, queries))
    assert names
    assert names <= exported_names()
    references = [item["datasource"] for panel in panels for item in (panel, *panel["targets"])]
    assert all(reference == {"type": "prometheus", "uid": "${datasource}"} for reference in references)
