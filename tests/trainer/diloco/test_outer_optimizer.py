"""Nesterov on the global weights, against the formula worked out by hand."""

import pytest
import torch

from trainer.diloco.outer_optimizer import OuterOptimizer


def _one(value):
    return {"w": torch.tensor([value])}


def test_two_steps_follow_the_formula():
    lr, momentum = 0.7, 0.9
    optimizer = OuterOptimizer(_one(10.0), lr=lr, momentum=momentum)
    assert optimizer.momentum() == {}
    weight, velocity = 10.0, 0.0
    for delta in (2.0, -1.0):
        optimizer.step(_one(delta))
        velocity = momentum * velocity + delta
        weight -= lr * (delta + momentum * velocity)
        assert optimizer.weights()["w"].item() == pytest.approx(weight)
        assert optimizer.momentum()["w"].item() == pytest.approx(velocity)


def test_lr_1_without_momentum_is_averaging():
    optimizer = OuterOptimizer(_one(10.0), lr=1.0, momentum=0.0)
    optimizer.step(_one(2.5))
    assert optimizer.weights()["w"].item() == 7.5
    assert optimizer.momentum() == {}


def test_with_its_momentum_it_goes_on_as_if_never_stopped():
    whole = OuterOptimizer(_one(10.0), lr=0.7, momentum=0.9)
    whole.step(_one(2.0))
    resumed = OuterOptimizer(whole.weights(), lr=0.7, momentum=0.9)
    resumed.load_momentum(whole.momentum())
    for optimizer in (whole, resumed):
        optimizer.step(_one(3.0))
    assert torch.equal(whole.weights()["w"], resumed.weights()["w"])


def test_what_goes_in_and_comes_out_are_copies():
    weights = _one(10.0)
    optimizer = OuterOptimizer(weights, lr=1.0, momentum=0.9)
    optimizer.step(_one(1.0))
    optimizer.weights()["w"].zero_()
    optimizer.momentum()["w"].zero_()
    assert weights["w"].item() == 10.0
    assert optimizer.weights()["w"].item() != 0.0
    assert optimizer.momentum()["w"].item() == 1.0
