"""What any Python object becomes at the door: a number, a text, or nothing, and never an exception."""

import math
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from otel_training.values import finite, number, on_device, storable, text


class Cheating:
    """Raises whatever is asked of it."""

    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __float__ = __int__ = __index__ = __bool__ = __str__


class CheatingFloat(float):
    def __float__(self):
        raise RuntimeError("no number")


class Colour(IntEnum):
    RED = 3


CYCLE = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1),
        (-1.5, -1.5),
        (True, 1),
        (False, 0),
        (2**63 - 1, 2**63 - 1),
        (2**63, float(2**63)),
        (-(2**63) - 1, float(-(2**63))),
        (Decimal("0.25"), 0.25),
        (Fraction(1, 4), 0.25),
        (Colour.RED, 3),
        (np.float32(1.5), 1.5),
        (np.float16(0.5), 0.5),
        (np.longdouble(0.5), 0.5),
        (np.int64(2**62 + 1), 2**62 + 1),
        (np.uint64(2**64 - 1), float(2**64)),
        (np.bool_(True), 1),
        (np.array(2.5), 2.5),
        (np.array([[7]]), 7),
        (torch.tensor(0.25, requires_grad=True), 0.25),
        (torch.tensor(2.0, dtype=torch.bfloat16), 2.0),
        (torch.tensor(1.5, dtype=torch.float16), 1.5),
        (torch.tensor([7]), 7),
        (torch.tensor([[[True]]]), 1),
        (torch.nn.Parameter(torch.tensor(3.0)), 3.0),
    ],
)
def test_numbers_of_all_kinds_become_plain_ones(value, expected):
    found = number(value)
    assert found == expected
    assert type(found) in (int, float)


def test_a_number_of_a_kind_keeps_its_kind():
    assert type(number(np.int32(7))) is int
    assert type(number(torch.tensor(7))) is int
    assert type(number(Decimal(7))) is float


@pytest.mark.parametrize(
    "value",
    [
        None, "1.5", b"1.5", "", [1.0], (1.0,), {"a": 1}, {1}, 1j, object(), Cheating(),
        CheatingFloat(1.0), CYCLE, 10**400, Decimal("sNaN"),
        np.array([1.0, 2.0]), np.array([]), np.array(["a"]), np.array([None]), np.complex64(1),
        np.datetime64("2026-01-01"), np.str_("1"),
        torch.tensor([1.0, 2.0]), torch.tensor([]), torch.tensor(1j), torch.empty(1, device="meta"),
        torch.Tensor,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_anything_else_is_no_number(value):
    assert number(value) is None
    assert finite(value) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, Decimal("NaN"), torch.tensor(math.nan)])
def test_non_finite_numbers_are_numbers_but_not_finite(value):
    assert not math.isfinite(number(value))
    assert finite(value) is None


def test_a_tensor_elsewhere_is_known_and_not_read():
    elsewhere = torch.empty(1, device="meta")  # reading it raises
    assert on_device(elsewhere)
    assert not on_device(torch.tensor(1.0))
    assert not on_device("cuda:0")


def test_a_distributed_tensor_is_not_read():
    class DTensor(torch.Tensor):
        def item(self):
            raise AssertionError("a collective call")

    DTensor.__module__ = "torch.distributed.tensor"
    assert number(torch.tensor(1.0).as_subclass(DTensor)) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("plain", "plain"),
        (True, "true"),
        (False, "false"),
        (None, "None"),
        (7, "7"),
        (torch.device("cuda:1"), "cuda:1"),
        (RuntimeError("why"), "why"),
        ("a\udcffb", "a?b"),
        ("x" * 200, "x" * 128),
        (Cheating(), "Cheating"),
        (torch.tensor(1.0), "Tensor"),
        (torch.empty(1, device="meta"), "Tensor"),
        (np.zeros(10**6), "ndarray"),
        (np.float64(0.5), "0.5"),
        ([torch.tensor(1.0)], "list"),
        ({"a": 1}, "dict"),
        (CYCLE, "list"),
        (10**5000, "int"),
        (b"bytes", "b'bytes'"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_texts_are_short_valid_and_cost_no_reading_of_tensors(value, expected):
    assert text(value, 128) == expected


@given(st.text(alphabet=st.characters(), max_size=300), st.integers(1, 200))
def test_any_text_can_be_encoded_and_is_not_longer_than_it_may(value, length):
    found = text(value, length)
    found.encode("utf-8")
    assert len(found) <= length
    if "?" not in found:
        assert value.startswith(found)


@given(st.one_of(st.integers(), st.floats(), st.decimals(), st.fractions(), st.booleans()))
def test_what_is_finite_fits_otlp(value):
    found = finite(value)
    if found is not None:
        assert isinstance(found, float) or -(2**63) <= found < 2**63
        assert math.isclose(found, value, rel_tol=1e-9) or math.isclose(found, value, abs_tol=1e-300)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(5, 5), (0.5, 0.5), (2**63, float(2**63)), (math.nan, None), (math.inf, None), (10**400, None)],
)
def test_results_of_arithmetic_fit_otlp(value, expected):
    assert storable(value) == expected
