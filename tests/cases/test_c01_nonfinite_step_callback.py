"""C01 through the Hugging Face callback, whose Trainer shows the loss of a step that went NaN as 0.0."""

import json
import math
from types import SimpleNamespace

import pytest

from otel_training.integrations.transformers import OTelCallback
from trainer import MetricLogger


def parse_strictly(line):
    def refuse(word):
        raise ValueError(f"{word} is not JSON")

    return json.loads(line, parse_constant=refuse)


@pytest.fixture
def run(capture, tmp_path):
    path = tmp_path / "run.jsonl"
    with MetricLogger(file=tmp_path / "run.log", json_file=path, hooks=[capture.hook]) as logger:
        callback = OTelCallback(logger)
        for step in range(1, 6):
            logs = {"loss": 1.0, "grad_norm": 0.5} if step < 3 else {"loss": 0.0, "grad_norm": math.nan}
            callback.on_log(
                SimpleNamespace(), SimpleNamespace(global_step=step), SimpleNamespace(), logs=logs
            )
        yield capture, [parse_strictly(line) for line in path.read_text().splitlines()]


def test_every_line_is_strict_and_says_what_was_not_a_number(run):
    _, lines = run
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert [line["grad_norm"] for line in lines] == [0.5, 0.5, "NaN", "NaN", "NaN"]


def test_the_non_finite_values_are_counted_by_their_field(run):
    capture, _ = run
    assert capture.value("training.nonfinite.values", training_field="grad_norm") == 3
    assert capture.value("training.nonfinite.values", training_field="loss") is None
