"""What a device may answer, and what is no answer."""

import math

import pytest

from otel_training import catalog
from otel_training.devices.reading import Reading, Sample, plausible


@pytest.mark.parametrize("value", [0, 1, 0.5, 4294967296, 80 << 30, True])
def test_figures_are_taken(value):
    assert plausible(value) == value


@pytest.mark.parametrize(
    "value",
    [
        None, -1, -0.5, math.nan, math.inf, "12", "N/A", b"1", [1], object(),
        4294967295, 2147483632, 9223372036854775792, 9223372036854775794, 9223372036854775807,
    ],
)  # fmt: skip
def test_blanks_and_what_is_no_figure_are_no_answer(value):
    assert plausible(value) is None


def test_more_than_can_be_is_no_answer():
    assert plausible(101, most=100) is None
    assert plausible(100, most=100) == 100


def test_a_call_that_raises_costs_itself_alone():
    reading = Reading()

    def lost():
        raise RuntimeError("GPU is lost")

    def never():
        raise NotImplementedError

    reading.put(catalog.HW_POWER, reading.ask("power", lost), "u", "gpu", None, "0")
    reading.put(catalog.HW_POWER, reading.ask("energy", never), "u", "gpu", None, "0")
    reading.put(catalog.HW_POWER, reading.ask("temperature", abs, -3), "u", "gpu", None, "0", scale=2)
    assert reading.samples == [Sample(catalog.HW_POWER, 6, ("u", "gpu", None, "0"))]
    assert reading.failures == {"power": "RuntimeError: GPU is lost"}
    assert reading.unsupported == {"energy": "NotImplementedError"}
