"""The GPT: shapes, causality, initial loss."""

import math

import pytest
import torch

from trainer.model import GPT


@pytest.fixture
def model():
    torch.manual_seed(0)
    return GPT(vocab_size=256, context=16, layers=2, heads=2, width=32)


def test_shapes_and_the_loss_of_a_fresh_model(model):
    tokens = torch.randint(256, (4, 16))
    logits, loss = model(tokens, torch.randint(256, (4, 16)))
    assert logits.shape == (4, 16, 256)
    assert loss.item() == pytest.approx(math.log(256), abs=0.2)
    assert model(tokens)[1] is None


def test_a_position_does_not_see_what_comes_after(model):
    tokens = torch.randint(256, (1, 16))
    changed = tokens.clone()
    changed[0, 10:] = 0
    assert torch.allclose(model(tokens)[0][0, :10], model(changed)[0][0, :10], atol=1e-6)
    assert not torch.allclose(model(tokens)[0][0, 10:], model(changed)[0][0, 10:])


def test_every_parameter_gets_a_gradient(model):
    tokens = torch.randint(256, (2, 16))
    model(tokens, tokens)[1].backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_flops_follow_the_formula(model):
    multiplied = sum(p.numel() for p in model.parameters()) - 16 * 32
    assert model.flops_per_token() == 6 * multiplied + 12 * 2 * 32 * 16


def test_refuses_what_does_not_fit(model):
    with pytest.raises(ValueError, match="longer than the context of 16"):
        model(torch.zeros(1, 17, dtype=torch.long))
    with pytest.raises(ValueError, match=r"multiple of model\.heads"):
        GPT(width=30, heads=4)
