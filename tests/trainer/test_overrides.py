"""Single values replaced by their dotted key."""

import pytest

from trainer.overrides import apply_override, parse_override
from trainer.problems import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b=5", ("a.b", 5)),
        ("a=[x, {y: 1}]", ("a", ["x", {"y": 1}])),
        ("a=", ("a", None)),
        ("a=b=c", ("a", "b=c")),
        ("a=true", ("a", True)),
    ],
)
def test_values_are_yaml(text, expected):
    assert parse_override(text) == expected


@pytest.mark.parametrize("text", ["a", "=5", "a={", " =1"])
def test_what_is_no_assignment_is_refused(text):
    with pytest.raises(ConfigError, match="--set"):
        parse_override(text)


@pytest.mark.parametrize(
    ("tree", "key", "expected"),
    [
        ({}, "train.max_steps", {"train": {"max_steps": 1}}),
        ({"train": None}, "train.max_steps", {"train": {"max_steps": 1}}),
        ({"train": {"lr": 2}}, "train.max_steps", {"train": {"lr": 2, "max_steps": 1}}),
        ({"data": {"paths": ["a", "b"]}}, "data.paths.1", {"data": {"paths": ["a", 1]}}),
        (
            {"logging": {"hooks": ["otel"]}},
            "logging.hooks.otel.port",
            {"logging": {"hooks": [{"otel": {"port": 1}}]}},
        ),
        (
            {"logging": {"hooks": ["x", {"otel": {"host": "h"}}]}},
            "logging.hooks.otel.port",
            {"logging": {"hooks": ["x", {"otel": {"host": "h", "port": 1}}]}},
        ),
        (
            {"logging": {"hooks": [{"otel": None}]}},
            "logging.hooks.0.otel",
            {"logging": {"hooks": [{"otel": 1}]}},
        ),
        ({}, "logging.hooks.otel.port", {"logging": {"hooks": [{"otel": {"port": 1}}]}}),
    ],
)
def test_sections_and_list_items_on_the_way_are_made(tree, key, expected):
    apply_override(tree, key, 1)
    assert tree == expected


@pytest.mark.parametrize("key", ["train.x", "paths.7", "paths.7.x", "paths.name"])
def test_a_key_that_leads_nowhere_is_refused(key):
    with pytest.raises(ConfigError, match=key.split(".")[0]):
        apply_override({"train": 5, "paths": ["a"]}, key, 1)
