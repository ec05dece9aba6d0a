"""C03, huggingface/transformers#30038: tensors of one element are plain numbers everywhere; none is kept."""

import gc
import json
import weakref

import numpy as np
import pytest
import torch
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

from trainer import MetricLogger


def test_tensors_are_numbers_everywhere(capture, tmp_path):
    path = tmp_path / "run.jsonl"
    values = {
        "loss": torch.tensor(0.25, requires_grad=True),
        "lr": torch.tensor(2.0, dtype=torch.bfloat16),
        "n": torch.tensor([7]),
        "g": np.float32(1.5),
    }
    graph = weakref.ref(values["loss"])
    with MetricLogger(file=tmp_path / "run.log", json_file=path, hooks=[capture.hook]) as logger:
        logger.emit("train_step", {"step": 1, **values})
    (line,) = map(json.loads, path.read_text().splitlines())
    found = {name: line[name] for name in values}
    assert found == {"loss": 0.25, "lr": 2.0, "n": 7, "g": 1.5}
    assert {type(value) for value in found.values()} <= {int, float}
    del values
    gc.collect()
    assert graph() is None


@pytest.mark.parametrize(
    ("metric", "labels", "value"),
    [
        ("training.loss", {}, 0.25),
        ("training.learning_rate", {}, 2.0),
        ("training.custom", {"training_field": "n"}, 7),
        ("training.custom", {"training_field": "g"}, 1.5),
    ],
)
def test_points_are_the_same_numbers_and_can_be_encoded(capture, metric, labels, value):
    capture.hook.on_event(
        "train_step",
        {
            "step": 1,
            "loss": torch.tensor(0.25, requires_grad=True),
            "lr": torch.tensor(2.0, dtype=torch.bfloat16),
            "n": torch.tensor([7]),
            "g": np.float32(1.5),
        },
    )
    assert capture.value(metric, **labels) == value
    encode_metrics(capture._reader.get_metrics_data()).SerializeToString()
