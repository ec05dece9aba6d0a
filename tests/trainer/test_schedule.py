"""Warm-up and cosine decay."""

import pytest
import torch

from trainer.schedule import make_scheduler, warmup_cosine


@pytest.mark.parametrize(
    ("step", "fraction"),
    [(0, 0.1), (4, 0.5), (9, 1.0), (10, 1.0), (60, 0.6), (110, 0.2), (5000, 0.2)],
)
def test_rises_to_the_peak_and_falls_to_the_floor(step, fraction):
    got = warmup_cosine(step, warmup_steps=10, decay_steps=110, min_fraction=0.2)
    assert got == pytest.approx(fraction)


def test_without_decay_it_stays_at_the_peak():
    assert warmup_cosine(10**6, warmup_steps=0, decay_steps=None, min_fraction=0.1) == 1.0


def test_the_scheduler_sets_the_optimizers_rate():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    scheduler = make_scheduler(optimizer, warmup_steps=4)
    rates = []
    for _ in range(5):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0])
