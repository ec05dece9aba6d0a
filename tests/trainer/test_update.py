"""Applied and skipped optimizer steps."""

import pytest
import torch
from torch import nn

from trainer.precision import Precision
from trainer.update import Update


@pytest.fixture
def weight():
    return nn.Linear(2, 1, bias=False)


def _update(model, lr=0.5, scheduler=None, clip_norm=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    made = None if scheduler is None else scheduler(optimizer)
    return Update(model, optimizer, Precision("fp32", torch.device("cpu")), made, clip_norm)


def _give_gradient(model, *values):
    model.weight.grad = torch.tensor([values])


def test_the_norm_is_that_before_clipping(weight):
    update = _update(weight, clip_norm=1.0)
    _give_gradient(weight, 3.0, 4.0)
    assert update.clip().item() == pytest.approx(5.0)
    assert weight.weight.grad.norm().item() == pytest.approx(1.0, rel=1e-4)


def test_an_applied_step_moves_the_weights_and_the_schedule(weight):
    update = _update(weight, scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1, gamma=0.1))
    before = weight.weight.detach().clone()
    _give_gradient(weight, 1.0, 0.0)
    update.apply()
    assert update.lr == 0.5
    assert torch.equal(before - weight.weight, torch.tensor([[0.5, 0.0]]))
    assert weight.weight.grad is None
    _give_gradient(weight, 0.0, 0.0)
    update.apply()
    assert update.lr == pytest.approx(0.05)


def test_a_skipped_step_moves_nothing(weight):
    update = _update(weight)
    before = weight.weight.detach().clone()
    _give_gradient(weight, float("nan"), 1.0)
    assert update.skip() == "nonfinite_gradient"
    assert torch.equal(weight.weight, before)
    assert weight.weight.grad is None


def test_only_skips_in_a_row_end_the_run(weight):
    update = _update(weight)
    for _ in range(199):
        update.skip()
    _give_gradient(weight, 0.0, 0.0)
    update.apply()
    for _ in range(199):
        update.skip()
    with pytest.raises(FloatingPointError, match="200 times in a row"):
        update.skip()
