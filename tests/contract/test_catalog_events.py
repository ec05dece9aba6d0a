"""``trainer/events.py`` and ``otel_training.catalog`` agree on every event and field."""

import pytest

from otel_training import catalog
from trainer.events import EVENTS, LOGGER_FIELDS

# What only other trainers send, or senders that know the model and the machine better than ours.
FROM_OTHERS = {
    "train_start": {"microbatches", "framework"},
    "train_step": {"microbatches"},
}


def test_both_know_the_same_events():
    assert set(catalog.EVENTS) == set(EVENTS)


@pytest.mark.parametrize("event", sorted(EVENTS))
def test_every_field_that_is_sent_is_known_and_the_others_are_listed_here(event):
    sent = set(EVENTS[event].fields) | set(LOGGER_FIELDS)
    assert catalog.EVENTS[event] - sent == FROM_OTHERS.get(event, set())
    assert sent <= catalog.EVENTS[event]


def test_both_know_the_same_other_names():
    aliases = {
        field.name: field.alias for event in EVENTS.values() for field in event.fields.values() if field.alias
    }
    assert dict(catalog.ALIASES) == aliases


def test_closed_sets_of_values_are_the_same():
    def values(event, field):
        return set(EVENTS[event].fields[field].values)

    assert values("train_end", "outcome") == set(catalog.OUTCOME.values)
    assert values("train_start", "precision") == values("shape_profile", "precision")


def test_metrics_name_events_that_exist():
    named = {event for metric in catalog.METRICS for event in metric.events}
    assert named <= set(catalog.EVENTS)
