"""Copies of payloads."""

import pytest

from trainer.payloads import copy_with, own_copy


def test_dicts_and_lists_are_copied_through():
    payload = {"n": 1, "stages": ["a", {"b": [2]}]}
    copied = own_copy(payload)
    assert copied == payload
    copied["stages"][1]["b"].clear()
    copied["stages"].clear()
    assert payload == {"n": 1, "stages": ["a", {"b": [2]}]}


@pytest.mark.parametrize("payload", [{}, {"x": 1}, {"x": [1]}])
def test_the_copy_is_another_dict(payload):
    copied = own_copy(payload)
    copied["new"] = 1
    assert "new" not in payload


def test_cycles_stay_cycles():
    ring = [1]
    ring.append(ring)
    copied = own_copy({"ring": ring})["ring"]
    assert copied is not ring
    assert copied[0] == 1
    assert copied[1] is copied


def test_values_that_are_no_containers_are_shared():
    value = object()
    copied = own_copy({"x": value, "xs": [value], "t": (value,)})
    assert copied["x"] is copied["xs"][0] is copied["t"][0] is value


def test_what_is_nested_too_deeply_is_shared():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    copied = own_copy({"deep": deep, "x": [1]})
    assert copied["deep"] is deep


def test_values_are_converted_wherever_they_are():
    assert copy_with({"x": 1, "xs": [2, {"y": 3}]}, str) == {"x": "1", "xs": ["2", {"y": "3"}]}
