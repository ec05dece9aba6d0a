"""Messages about a configuration."""

import pytest

from trainer.problems import ConfigError, closest, show_value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("logging.hooks.0.api_token", "s3cret"),
        ("x.Password", "s3cret"),
        ("x", {"otlp_headers": "s3cret"}),
        ("x", [{"deep": {"API_KEY": "s3cret"}}]),
    ],
)
def test_secrets_are_hidden(key, value):
    assert show_value(key, value) == "(hidden)"


def test_values_are_shown_shortened():
    assert show_value("x", [1, "a"]) == "[1, 'a']"
    assert len(show_value("x", "y" * 1000)) == 80


def test_close_names_come_first():
    assert closest("oteel", ["wandb", "otel"]) == "did you mean otel? known: otel, wandb"
    assert closest("zzz", ["wandb"]) == "known: wandb"
    assert closest("zzz", []) == "known: none"


def test_an_error_has_a_line_per_problem():
    error = ConfigError(iter(["a", "b"]))
    assert error.problems == ["a", "b"]
    assert str(error) == "a\nb"
