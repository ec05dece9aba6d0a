"""C01, huggingface/trl#6702: a step that went NaN shows as one, although the loss was replaced by a zero."""

import json
import math

import pytest

from trainer import MetricLogger


def parse_strictly(line):
    def refuse(word):
        raise ValueError(f"{word} is not JSON")

    return json.loads(line, parse_constant=refuse)


@pytest.fixture
def run(capture, tmp_path):
    """The logs of a trainer whose NaN filter shows the loss as 0.0 from step 3 on."""
    path = tmp_path / "run.jsonl"
    with MetricLogger(file=tmp_path / "run.log", json_file=path, hooks=[capture.hook]) as logger:
        for step, loss, grad_norm in [(1, 1.0, 0.5), (2, 1.0, 0.5)] + [(n, 0.0, math.nan) for n in (3, 4, 5)]:
            logger.emit("train_step", {"step": step, "loss": loss, "grad_norm": grad_norm})
        yield capture, [parse_strictly(line) for line in path.read_text().splitlines()]


def test_every_line_is_strict_and_says_what_was_not_a_number(run):
    _, lines = run
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert [line["grad_norm"] for line in lines] == [0.5, 0.5, "NaN", "NaN", "NaN"]


def test_the_non_finite_values_are_counted_by_their_field(run):
    capture, _ = run
    assert capture.value("training.nonfinite.values", training_field="grad_norm") == 3
    assert capture.value("training.nonfinite.values", training_field="loss") is None


def test_the_norm_is_withdrawn_instead_of_frozen(run):
    capture, _ = run
    assert capture.value("training.gradient.norm") is None
    assert capture.value("training.loss") == 0.0
