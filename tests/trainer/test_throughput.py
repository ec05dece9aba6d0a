"""Rates over the window since the previous logged step."""

import pytest

from trainer.throughput import Throughput


class Clock:
    def __init__(self, now_s):
        self.now_s = now_s

    def __call__(self):
        return self.now_s


def test_each_window_is_divided_by_its_own_time():
    clock = Clock(-1.0)
    throughput = Throughput(0, 0, 0, clock)
    rates = []
    for step in (1, 2, 3):
        clock.now_s = step - 1.0
        rates.append(throughput.rates(step, 4 * step, 100 * step, mark=True))
    assert [rate["tokens_per_sec"] for rate in rates] == [pytest.approx(100)] * 3
    assert rates[0]["samples_per_sec"] == pytest.approx(4)


def test_steps_between_logged_ones_belong_to_the_open_window():
    clock = Clock(0.0)
    throughput = Throughput(10, 0, 0, clock)
    clock.now_s = 2.0
    assert throughput.rates(11, 0, 0, mark=False)["steps_per_sec"] == pytest.approx(0.5)
    clock.now_s = 4.0
    assert throughput.rates(12, 0, 0, mark=True)["steps_per_sec"] == pytest.approx(0.5)
    clock.now_s = 5.0
    assert throughput.rates(13, 0, 0, mark=True)["steps_per_sec"] == pytest.approx(1.0)


def test_no_rate_without_time():
    throughput = Throughput(0, 0, 0, Clock(0.0))
    assert throughput.rates(1, 1, 1, mark=True) == {}
