"""The catalog of events as data."""

import re

import pytest

from trainer.events import EVENTS, LOGGER_FIELDS

SHARED = {
    "train_start", "train_step", "checkpoint", "train_end", "compile", "outer_step", "delta_upload_queued",
    "delta_uploaded", "delta_upload_skipped", "delta_upload_failed", "delta_upload_stale", "shape_profile",
    "shape_warning", "ooo_backprop",
}  # fmt: skip
FIELDS = [(event, field) for event in EVENTS.values() for field in event.fields.values()]
UCUM = re.compile(r"(|1|s|By|\{[a-z]+\}(/s)?)")


def test_the_14_shared_events_and_our_own():
    assert {name for name, event in EVENTS.items() if event.in_catalog} == SHARED
    assert len(SHARED) == 14
    assert set(EVENTS) - SHARED == {
        "optimizer_step_skipped", "validation_start", "validation_end", "checkpoint_restore", "device_stats",
        "outer_sync", "hook_failed",
    }  # fmt: skip


def test_the_table_cannot_be_changed():
    with pytest.raises(TypeError):
        EVENTS["train_step"] = None  # type: ignore[index]
    with pytest.raises(TypeError):
        EVENTS["train_step"].fields["x"] = None  # type: ignore[index]


@pytest.mark.parametrize("event", EVENTS.values(), ids=lambda event: event.name)
def test_names_are_the_keys_and_everything_is_explained(event):
    assert EVENTS[event.name] is event
    assert event.brief
    assert event.producer
    assert all(name == field.name for name, field in event.fields.items())
    assert event.required | event.optional == set(event.fields)
    assert not event.required & event.optional


@pytest.mark.parametrize(("event", "field"), FIELDS, ids=lambda part: part.name)
def test_each_field_has_a_meaning_in_one_line_and_a_unit_that_fits_its_name(event, field):
    assert field.brief
    assert "\n" not in field.brief
    assert UCUM.fullmatch(field.unit), f"{field.unit!r} is no unit of ours"
    for suffix, unit in (("_s", "s"), ("_bytes", "By"), ("_per_sec", "/s")):
        if field.name.endswith(suffix):
            assert field.unit.endswith(unit)
    if field.type in ("str", "bool", "dict", "list"):
        assert field.unit == ""
    assert field.type == "str" or not field.values


@pytest.mark.parametrize(
    ("event", "required"),
    [
        ("train_start", "start_step target_step device precision accumulation_steps parameters"),
        ("train_step", "step lr steps_per_sec samples_per_sec tokens_per_sec samples tokens micro_batches"),
        ("checkpoint", "step path"),
        ("train_end", "steps elapsed_s loss"),
        ("compile", "enabled"),
        ("outer_step", "outer_step deltas_found deltas_included"),
        ("delta_upload_queued", "step base_outer_step"),
        ("delta_uploaded", "step"),
        ("delta_upload_skipped", "step reason"),
        ("delta_upload_failed", "step error"),
        ("delta_upload_stale", "step generation"),
        ("shape_profile", "device_type precision alignment warning_count"),
        ("shape_warning", "field value suggested alignment"),
        ("ooo_backprop", "enabled reason streams stages"),
        ("hook_failed", "hook failed_event error count"),
    ],
)
def test_required_fields(event, required):
    assert EVENTS[event].required == set(required.split())


def test_what_the_logger_adds_is_no_field_of_an_event():
    own = {name for event in EVENTS.values() for name in event.fields if name in LOGGER_FIELDS}
    assert own == {"elapsed_s"}, "in train_end it is how long fit took"
    assert not any(field.required for field in LOGGER_FIELDS.values())


def test_what_the_logger_emits_is_as_the_table_says(tmp_path, strict_json):
    from trainer.metrics import MetricLogger

    def failing(event, payload):
        raise ValueError("broken")

    with MetricLogger("ERROR", json_file=tmp_path / "log", hooks=[failing]) as logger:
        logger.emit("e", {})
    line = strict_json((tmp_path / "log").read_bytes().splitlines()[1])
    assert set(line) - set(LOGGER_FIELDS) == {"event", *EVENTS["hook_failed"].fields}
