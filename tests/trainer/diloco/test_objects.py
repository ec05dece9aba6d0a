"""Names and bytes of what lies in the store."""

import pytest
import torch

from trainer.diloco.objects import (
    DeltaName,
    GlobalWeights,
    are_finite,
    by_generation,
    decode,
    delta_label,
    describe_mismatch,
    encode,
    parse_delta_label,
    read_newest_globals,
    read_parameters,
    write_globals,
)
from trainer.diloco.store import StoreError


def test_a_delta_label_says_whose_it_is():
    label = delta_label(3, 120, "alice-2", "0f")
    assert parse_delta_label(label) == DeltaName(3, 120, "alice-2", label)
    assert delta_label(123456789, 10**13, "a", "0") == "g123456789.s10000000000000.a.0"
    for other in ("", "g1.s2.a.0", "g00000001.s000000000001.a b.0", "x" + label, label + ".more"):
        assert parse_delta_label(other) is None


def test_labels_sort_by_generation_and_step():
    labels = [delta_label(g, s, "w", "0") for g, s in ((2, 5), (10, 1), (2, 40))]
    assert sorted(labels) == [labels[0], labels[2], labels[1]]


def test_tensors_and_texts_come_back(weights):
    tensors, metadata = decode(encode(weights(1.5), {"a": "b"}))
    assert metadata == {"a": "b"}
    assert {name: each.tolist() for name, each in tensors.items()} == {"w": [1.5] * 3, "b": [1.5]}
    assert decode(encode({}))[0] == {}
    transposed = torch.arange(6.0).reshape(2, 3).T
    assert torch.equal(decode(encode({"t": transposed}))[0]["t"], transposed)


@pytest.mark.parametrize("data", [b"", b"x", b"\xff" * 64, encode({"a": torch.ones(4)})[:-3]])
def test_other_bytes_are_a_value_error(data):
    with pytest.raises(ValueError, match="not a safetensors file"):
        decode(data)


def test_the_newest_whole_generation_is_read(store, publish):
    assert read_newest_globals(store) is None
    publish(0, 0.0)
    publish(2, 2.0, {"w1": ["label"]})
    publish(10, 10.0)
    found = read_newest_globals(store)
    assert found.generation == 10
    assert found.tensors["b"].item() == 10.0
    torn = store.objects("globals")[-1]
    store._fs.pipe_file(store._path(f"globals/{torn.name}"), b"half")
    found = read_newest_globals(store)
    assert (found.generation, found.included) == (2, {"w1": ["label"]})
    assert read_newest_globals(store, above=0).generation == 2


def test_what_is_not_whole_is_not_there_yet_what_cannot_be_read_is_an_error(store, publish):
    publish(3, 1.0)
    (found,) = store.objects("globals")
    store.broken = {"read"}
    with pytest.raises(StoreError, match="generation 3: cannot read"):
        read_newest_globals(store)
    assert read_newest_globals(store, above=3) is None
    store.broken = set()
    store._fs.pipe_file(store._path(f"globals/{found.name}"), b"")
    assert read_newest_globals(store) is None
    store.write("globals", "g00000004", b"no weights")
    with pytest.raises(StoreError, match="generation 4: not a safetensors file"):
        read_newest_globals(store)


def test_objects_of_one_generation_have_a_fixed_order(store):
    write_globals(store, GlobalWeights(1, {"a": torch.zeros(1)}))
    write_globals(store, GlobalWeights(1, {"a": torch.ones(1)}))
    store.write("globals", "other", b"x")
    pairs = by_generation(store.objects("globals"))
    assert [generation for generation, _ in pairs] == [1, 1]
    assert pairs[0][1].name > pairs[1][1].name


def test_parameters_are_copied_to_fp32():
    model = torch.nn.BatchNorm1d(2).to(torch.bfloat16)
    tensors = read_parameters(model)
    assert set(tensors) == {"weight", "bias"}
    assert all(each.dtype is torch.float32 for each in tensors.values())
    tensors["weight"].zero_()
    assert model.weight.tolist() == [1.0, 1.0]


def test_differences_are_named(weights):
    assert describe_mismatch(weights(1.0), weights(2.0)) is None
    assert describe_mismatch({"w": torch.ones(3)}, weights(1.0)) == "b is missing"
    assert describe_mismatch(weights(1.0), {"w": torch.ones(3)}) == "b is not expected"
    message = describe_mismatch(weights(1.0, size=4), weights(1.0))
    assert message == "w has shape (4,), expected is (3,)"


@pytest.mark.parametrize(("value", "finite"), [(1.0, True), (float("nan"), False), (float("-inf"), False)])
def test_finite(weights, value, finite):
    assert are_finite(weights(1.0) | {"x": torch.tensor([1.0, value])}) is finite
