import itertools

import pytest

from otel_training.artifacts.dashboards import BOARDS, dashboard

COLUMNS = 24


@pytest.fixture(params=BOARDS, ids=lambda board: board.uid)
def content(request):
    return dashboard(request.param)


def panels_of(content):
    return [panel for panel in content["panels"] if panel["type"] != "row"]


def nulls(value, path="$"):
    if value is None:
        yield path
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from nulls(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from nulls(item, f"{path}[{index}]")


def test_every_panel_says_what_it_shows(content):
    for panel in panels_of(content):
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["noValue"], panel["title"]
        assert all(target["legendFormat"] != "__auto" for target in panel["targets"]), panel["title"]


def test_titles_and_ids_tell_panels_apart(content):
    titles = [panel["title"] for panel in panels_of(content)]
    assert sorted(titles) == sorted(set(titles))
    ids = [panel["id"] for panel in content["panels"]]
    assert len(ids) == len(set(ids))


def test_there_is_nothing_that_grafana_would_strip(content):
    assert list(nulls(content)) == []
    assert "id" not in content
    assert "__inputs" not in content


def test_panels_fit_and_do_not_overlap(content):
    taken = set()
    for panel in content["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= COLUMNS, panel["title"]
        cells = set(
            itertools.product(
                range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
            )
        )
        assert not cells & taken, panel["title"]
        taken |= cells


def test_rows_are_filled_to_the_edge(content):
    ends = [
        panel["gridPos"]["x"] + panel["gridPos"]["w"]
        for panel, following in itertools.pairwise(content["panels"])
        if following["gridPos"]["y"] > panel["gridPos"]["y"]
    ]
    assert set(ends) == {COLUMNS}


def test_quantiles_are_named_estimates_and_stand_beside_the_mean(content):
    for panel in panels_of(content):
        quantiles = [target for target in panel["targets"] if "histogram_quantile" in target["expr"]]
        assert all("estimate" in target["legendFormat"] for target in quantiles), panel["title"]
        if quantiles:
            assert any("mean (exact)" in target["legendFormat"] for target in panel["targets"])


def test_rates_leave_the_window_to_grafana(content):
    for panel in panels_of(content):
        for target in panel["targets"]:
            for piece in target["expr"].split("rate(")[1:]:
                assert "[$__rate_interval]" in piece, panel["title"]


def test_the_variables(content):
    names = [variable["name"] for variable in content["templating"]["list"]]
    assert names[:5] == ["datasource", "job", "name", "run", "rank"]
    assert names[5:] == (["device"] if content["uid"] == "training-devices" else [])
    for variable in content["templating"]["list"][1:]:
        assert variable["multi"]
        assert variable["includeAll"]
        assert variable["current"]["value"] == ["$__all"]


def test_step_time_by_rank_says_whom_it_is_for():
    [ranks] = [board for board in BOARDS if board.uid == "training-ranks"]
    [panel] = [panel for panel in panels_of(dashboard(ranks)) if panel["title"].startswith("Step time")]
    assert "asynchronous" in panel["title"]
    assert "DDP" in panel["description"]


def test_the_events_of_a_run_are_marked(content):
    marks = content["annotations"]["list"]
    assert [mark["name"] for mark in marks] == [
        "Starts", "Ends", "Checkpoints", "Steps done again", "Non-finite values", "Out of memory",
    ]  # fmt: skip
    [timed] = [mark for mark in marks if mark.get("useValueForTime") == "on"]
    assert timed["expr"].endswith("* 1000")
