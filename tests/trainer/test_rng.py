"""All random states, captured and put back."""

import io
import random

import numpy as np
import torch

from trainer.rng import capture_rng, preserved_rng, restore_rng


def _draw():
    return random.random(), float(torch.rand(())), float(np.random.rand())


def test_a_restored_state_gives_the_same_numbers():
    state = capture_rng()
    first = _draw()
    assert _draw() != first
    restore_rng(state)
    assert _draw() == first


def test_a_state_survives_a_checkpoint_that_executes_nothing():
    file = io.BytesIO()
    state = capture_rng()
    torch.save(state, file)
    first = _draw()
    restore_rng(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    assert _draw() == first


def test_a_block_leaves_no_trace():
    with preserved_rng():
        inside = _draw()
    assert _draw() == inside
