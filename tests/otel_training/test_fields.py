"""Fields of payloads one by one: what reaches a metric, what is counted, what is told and how often."""

import gc
import math
import weakref

import numpy as np
import pytest
import torch

from otel_training import catalog
from otel_training.fields import Fields, error_type
from otel_training.state import State


@pytest.fixture
def state():
    return State()


@pytest.fixture
def fields(state):
    return Fields(state)


def custom(state):
    return {labels[1]: value for labels, value in state.values_of(catalog.CUSTOM).items()}


def test_numbers_come_through_and_other_values_are_counted(state, fields):
    payload = {"a": 1.5, "b": "text", "c": None, "d": [1]}
    assert [fields.number(payload, field) for field in "abcde"] == [1.5, None, None, None, None]
    assert state.get(catalog.BRIDGE_DROPS, "type") == 2  # absent and None are nothing


def test_an_amount_is_not_negative(fields):
    assert [fields.amount({"a": value}, "a") for value in (-1, 0, 2.5)] == [None, 0, 2.5]


def test_text_of_a_field(fields):
    assert fields.text({"reason": "why"}, "reason") == "why"
    assert fields.text({"reason": None}, "reason") is None
    assert fields.text({"reason": torch.ones(3)}, "reason") == "Tensor"


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (math.nan, "nan"),
        (math.inf, "positive_infinity"),
        (-math.inf, "negative_infinity"),
        (np.float32("nan"), "nan"),
        (torch.tensor(-math.inf), "negative_infinity"),
    ],
)
def test_a_non_finite_value_withdraws_its_gauge_and_is_counted_by_field_and_kind(state, fields, value, kind):
    fields.gauge(catalog.LOSS, {"loss": 2.0}, "loss")
    fields.gauge(catalog.LOSS, {"loss": value}, "loss")
    fields.gauge(catalog.LOSS, {"loss": value}, "loss")
    assert state.get(catalog.LOSS) is None
    assert state.values_of(catalog.NONFINITE_VALUES) == {("loss", kind): 2}
    fields.gauge(catalog.LOSS, {"loss": 1.0}, "loss")
    assert state.get(catalog.LOSS) == 1.0


def test_an_absent_or_unreadable_value_leaves_the_gauge_as_it_is(state, fields):
    fields.gauge(catalog.LOSS, {"loss": 2.0}, "loss")
    for payload in ({}, {"loss": None}, {"loss": "low"}):
        fields.gauge(catalog.LOSS, payload, "loss")
    assert state.get(catalog.LOSS) == 2.0


def test_non_finite_values_are_told_once_a_field(fields, caplog):
    for _ in range(3):
        fields.number({"loss": math.nan}, "loss")
        fields.number({"grad_norm": math.inf}, "grad_norm")
    assert [record.getMessage().split()[0] for record in caplog.records] == ["'loss'", "'grad_norm'"]


def test_a_tensor_elsewhere_is_told_once_with_the_cure(state, fields, caplog):
    for _ in range(3):
        assert fields.number({"loss": torch.empty((), device="meta")}, "loss") is None
    assert state.get(catalog.BRIDGE_DROPS, "type") == 3
    (record,) = caplog.records
    assert "'loss' is a tensor on meta" in record.getMessage()
    assert "loss.item()" in record.getMessage()


def test_a_tensor_of_many_elements_is_told_once(state, fields, caplog):
    for _ in range(3):
        fields.custom("train_step", {"weights": torch.zeros(1000)}, frozenset())
    assert state.get(catalog.BRIDGE_DROPS, "type") == 3
    (record,) = caplog.records
    assert "'weights' is a tensor that is not one number" in record.getMessage()


def test_telling_has_an_end_though_fields_have_none(fields, caplog):
    for position in range(1000):
        fields.number({"x": math.nan}, "x")
        fields.gauge(catalog.CUSTOM, {f"x{position}": math.nan}, f"x{position}", "e", "x")
    assert len(caplog.records) == catalog.MAX_CUSTOM_FIELDS


def test_fields_outside_the_catalog_are_carried_by_their_name(state, fields):
    fields.custom("train_step", {"loss": 1.0, "acc@5": 0.5, 3: 7, ("a", 1): 2}, frozenset({"loss"}))
    assert custom(state) == {"acc@5": 0.5, "3": 7, "tuple": 2}


def test_fields_are_carried_in_the_order_of_the_payload_up_to_the_cap(state, fields):
    payload = {f"field{position}": position for position in range(250)}
    fields.custom("train_step", payload, frozenset())
    carried = custom(state)
    assert len(carried) == catalog.MAX_CUSTOM_FIELDS + 1
    assert carried["field199"] == 199
    assert "field200" not in carried
    assert carried[catalog.OTHER] == 249
    assert state.get(catalog.BRIDGE_DROPS, "cardinality") == 50
    fields.custom("train_step", {"field7": -1}, frozenset())
    assert custom(state)["field7"] == -1


def test_no_value_is_kept(fields):
    tensor = torch.tensor(1.0, requires_grad=True)
    big = torch.zeros(100)
    alive = weakref.ref(tensor), weakref.ref(big)
    fields.custom("train_step", {"one": tensor, "many": big}, frozenset())
    del tensor, big
    gc.collect()
    assert [reference() for reference in alive] == [None, None]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("RuntimeError: out of memory", "RuntimeError"),
        ("torch.OutOfMemoryError: CUDA out of memory", "torch.OutOfMemoryError"),
        ("KeyboardInterrupt", "KeyboardInterrupt"),
        ("KeyboardInterrupt\n", "KeyboardInterrupt"),
        ("  ValueError : spaces", "ValueError"),
        ("out of memory", "_OTHER"),
        ("Traceback (most recent call last):\n  File", "_OTHER"),
        ("", "_OTHER"),
        ("4: four", "_OTHER"),
        (7, "_OTHER"),
        (ValueError("text: more"), "ValueError"),
        (torch.zeros(3), "Tensor"),
    ],
)
def test_the_type_of_an_error_is_found_in_its_text(error, kind):
    assert error_type(error) == kind
