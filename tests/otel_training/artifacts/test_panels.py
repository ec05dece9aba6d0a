import json

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from otel_training.artifacts import panels
from otel_training.artifacts.panels import Query, Text

TEXT = Text("Title", "Meaning.", panels.SECONDS, "Nothing")
KINDS = (panels.number, panels.lines, panels.areas, panels.events, panels.ranking)


def as_json(panel):
    return json.loads(JSONEncoder().encode(panel.build()))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_carries_its_words_and_its_queries(kind):
    panel = as_json(kind(TEXT, Query("a", "{{x}}"), Query("b", instant=True)))
    assert (panel["title"], panel["description"]) == ("Title", "Meaning.")
    assert panel["fieldConfig"]["defaults"]["unit"] == "s"
    assert panel["fieldConfig"]["defaults"]["noValue"] == "Nothing"
    asked = [
        (target["refId"], target["expr"], target["legendFormat"], target["instant"])
        for target in panel["targets"]
    ]
    assert asked == [("A", "a", "{{x}}", False), ("B", "b", "__auto", True)]


def test_a_number_has_colours_from_values_on():
    steps = as_json(panels.number(TEXT, Query("a"), steps=((1.0, "red"),)))["fieldConfig"]["defaults"]
    assert [step["color"] for step in steps["thresholds"]["steps"]] == ["green", "red"]


def test_a_number_puts_words_to_values():
    panel = as_json(panels.number(TEXT, Query("a"), values={1: ("Running", "green")}))
    [mapping] = panel["fieldConfig"]["defaults"]["mappings"]
    assert mapping["options"]["1"]["text"] == "Running"
    assert panel["options"]["graphMode"] == "none"


def test_areas_and_events_are_stacked():
    for kind in (panels.areas, panels.events):
        custom = as_json(kind(TEXT, Query("a")))["fieldConfig"]["defaults"]["custom"]
        assert custom["stacking"]["mode"] == "normal"


def test_limits_are_dashed():
    panel = as_json(panels.lines(TEXT, Query("a"), dashed=("^limit.*",)))
    [override] = panel["fieldConfig"]["overrides"]
    assert override["matcher"] == {"id": "byRegexp", "options": "/^limit.*/"}
