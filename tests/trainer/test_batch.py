"""Batches: moved, counted, and turned into a loss."""

from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from trainer.batch import compute_loss, count_batch, move_batch

LOSS = torch.tensor(2.0)
VECTOR = torch.ones(3)
Pair = namedtuple("Pair", "x y")


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ((torch.zeros(4, 7, dtype=torch.long), torch.zeros(4, 7)), (4, 28)),
        ({"labels": torch.zeros(9), "input_ids": torch.zeros(2, 5, dtype=torch.int32)}, (2, 10)),
        (torch.zeros(3, 8), (3, 0)),
        ([torch.zeros(6, dtype=torch.bool)], (6, 0)),
        (torch.tensor(1), (1, 1)),
        ("no tensor", (0, 0)),
        (("text", [torch.zeros(5, 2, dtype=torch.uint8)]), (5, 10)),
    ],
)
def test_samples_and_tokens(batch, expected):
    assert count_batch(batch) == expected


@pytest.mark.parametrize(
    "output",
    [LOSS, (VECTOR, LOSS), [LOSS, VECTOR], {"loss": LOSS, "n": 1}, SimpleNamespace(loss=LOSS)],
)
def test_the_loss_is_found_in_what_a_model_returns(output):
    assert compute_loss(lambda x: output, torch.zeros(1)) is LOSS


@pytest.mark.parametrize("batch", [(1, 2), [1, 2], {"a": 1, "b": 2}])
def test_batches_are_passed_as_arguments(batch):
    def model(a, b):
        return torch.tensor(float(a + 10 * b))

    assert compute_loss(model, batch).item() == 21


def test_a_loss_function_gets_output_and_target():
    loss = compute_loss(lambda a, b: a + b, (VECTOR, VECTOR, VECTOR * 5), F.mse_loss)
    assert loss.item() == 9


@pytest.mark.parametrize("output", [VECTOR, None, (VECTOR,), {"logits": LOSS}, "text"])
def test_a_model_without_a_loss_is_an_error_that_says_what_is_accepted(output):
    with pytest.raises(TypeError, match="accepted: a scalar tensor"):
        compute_loss(lambda x: output, torch.zeros(1))


def test_a_loss_function_without_a_target_is_an_error():
    with pytest.raises(TypeError, match=r"inputs\.\.\., target"):
        compute_loss(lambda x: x, torch.zeros(1), F.mse_loss)


def test_moving_keeps_the_structure():
    batch = Pair({"a": [VECTOR]}, ("text", VECTOR))
    moved = move_batch(batch, torch.device("meta"))
    assert isinstance(moved, Pair)
    assert moved.x["a"][0].device.type == moved.y[1].device.type == "meta"
    assert moved.y[0] == "text"
