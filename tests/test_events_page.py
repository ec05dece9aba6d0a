"""docs/events.md says what events there are."""

import importlib.util
from pathlib import Path

import pytest

from trainer.events import EVENTS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "events.md"


@pytest.fixture(scope="module")
def events_page():
    spec = importlib.util.spec_from_file_location("events_page", ROOT / "docs" / "events_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_the_one_of_today(events_page):
    assert events_page.page() == PAGE.read_text(encoding="utf-8"), "run `make docs` and commit docs/events.md"


@pytest.mark.parametrize("event", EVENTS.values(), ids=lambda event: event.name)
def test_each_event_has_a_section_with_all_its_fields(events_page, event):
    section = events_page.section(event)
    assert section.startswith(f"## {event.name}\n")
    assert [field for field in event.fields if f"`{field}`" not in section] == []


def test_the_table_of_time_says_what_the_recorder_does(events_page):
    rows = list(events_page.time_rows())
    told = {row.split("`")[1]: [cell.strip() for cell in row.split("|")[2:5]] for row in rows}
    assert told["checkpoint"] == ["`duration_s` as checkpoint_save", "startup", "idle"]
    assert told["train_step"] == ["`data_wait_s` as data_wait, `step_s` as step", "idle", "idle"]
    assert told["optimizer_step_skipped"] == ["", "step", "step"]
    assert "outer_step" not in told
    assert "delta_uploaded" not in told
