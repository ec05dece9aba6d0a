"""Quantiles of step times."""

import random

import pytest

from trainer.result import StepTimes


def test_quantiles_are_exact_to_a_percent():
    times = StepTimes()
    rng = random.Random(2)
    values = [rng.lognormvariate(-2, 1) for _ in range(1001)]
    for value in values:
        times.add(value)
    values.sort()
    assert times.quantile_s(0.50) == pytest.approx(values[500], rel=0.011)
    assert times.quantile_s(0.99) == pytest.approx(values[990], rel=0.011)


def test_nothing_and_zero():
    times = StepTimes()
    assert times.quantile_s(0.5) is None
    times.add(0.0)
    assert times.quantile_s(0.5) == pytest.approx(1e-9, rel=0.02)


def test_memory_is_flat():
    times = StepTimes()
    for n in range(100_000):
        times.add(0.01 + (n % 1000) * 1e-5)
    assert len(times._buckets) < 100
