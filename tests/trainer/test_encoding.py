"""Lines of JSON and of text, for whatever a payload holds."""

import enum
import gc
import json
import math
import re
import sys
import weakref
from collections import OrderedDict, namedtuple
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.encoding import by_str, escape_controls, json_line, tensor_value, text_line


class Text(str):
    """A string of another type, which sends the encoder down its exact way."""

    __slots__ = ()


class Unspeakable:
    def __str__(self):
        raise RuntimeError("no")


class Unmeasurable(torch.Tensor):
    """A tensor that must not be touched beyond its shape and dtype."""

    def item(self):
        raise AssertionError("read")


PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1]),
    st.floats(),
    st.sampled_from([math.nan, math.inf, -math.inf]),
    st.text(st.characters(exclude_categories=())),  # surrogates included
)
KEYS = st.one_of(
    st.text(), st.text(st.characters(exclude_categories=())), st.sampled_from(["event", "payload_event"])
)
ODD = st.one_of(
    PLAIN,
    st.binary(),
    st.decimals(),
    st.fractions(),
    st.complex_numbers(),
    st.datetimes(),
    st.uuids(),
    st.just(Unspeakable()),
    st.just(object),
    st.floats(width=32).map(np.float32),
    st.floats(width=16).map(np.float16),
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
    st.booleans().map(np.bool_),
    st.floats(width=32).map(torch.tensor),
    st.integers(1, 3).map(torch.zeros),
    st.integers(0, 3).map(np.zeros),
)
NESTED = st.recursive(
    ODD,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.sets(st.integers())
        | st.dictionaries(
            st.one_of(KEYS, st.integers(), st.none(), st.booleans(), st.floats()), inner, max_size=3
        )
    ),
    max_leaves=8,
)


def parsed(payload, strict_json):
    return strict_json(json_line("e", payload))


# ---- JSON


def test_json_is_compact_and_the_event_comes_first():
    line = json_line("train_step", {"step": 1, "loss": 0.5, "ok": True, "none": None, "é": "ü"})
    assert line == '{"event":"train_step","step":1,"loss":0.5,"ok":true,"none":null,"é":"ü"}\n'.encode()


@given(event=st.text(), payload=st.dictionaries(KEYS, PLAIN, max_size=6))
def test_the_fast_way_and_the_exact_way_write_the_same(event, payload):
    assert json_line(event, payload) == json_line(Text(event), payload)


@given(payload=st.dictionaries(KEYS, PLAIN, max_size=6))
def test_plain_values_are_read_back_as_they_were(payload, strict_json):
    line = strict_json(json_line(Text("e"), payload))
    assert next(iter(line)) == "event"
    assert len(line) == len(payload) + 1
    for key, value in payload.items():
        if key == "event" or not key.isascii():
            continue
        if isinstance(value, float) and not math.isfinite(value):
            assert line[key] == {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
        elif not isinstance(value, str) or value.isascii():
            assert line[key] == value
            assert type(line[key]) is type(value)


@settings(max_examples=300)
@given(payload=st.dictionaries(st.one_of(KEYS, st.integers(), st.tuples(st.integers())), NESTED, max_size=4))
def test_any_payload_is_one_strict_line_of_each_kind(payload, strict_json):
    line = json_line("e", payload)
    assert line.count(b"\n") == 1
    assert len(strict_json(line)) == len(payload) + 1
    text = text_line("e", payload)
    assert text.splitlines() == [text]
    text.encode()


@pytest.mark.parametrize(
    ("value", "word"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")]
)
@pytest.mark.parametrize(
    "kind", [float, np.float64, np.float32, torch.tensor, lambda value: torch.tensor([[value]])]
)
def test_json_writes_what_is_not_finite_as_a_string(kind, value, word, strict_json):
    assert parsed({"x": kind(value)}, strict_json) == {"event": "e", "x": word}
    assert parsed({"xs": [kind(value)]}, strict_json) == {"event": "e", "xs": [word]}


def test_one_element_becomes_a_plain_number(strict_json):
    payload = {
        "loss": torch.tensor(0.25, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.tensor([3.0])),
        "lr": torch.tensor(2.0, dtype=torch.bfloat16),
        "n": torch.tensor([7]),
        "flag": torch.tensor(True),
        "g": np.float32(1.5),
        "h": np.float16(0.5),
        "long": np.longdouble(0.5),
        "i": np.int8(-3),
        "u": np.uint64(2**64 - 1),
        "b": np.bool_(True),
        "array": np.array([[4]]),
    }
    line = parsed(payload, strict_json)
    assert line == {
        "event": "e", "loss": 0.25, "parameter": 3.0, "lr": 2.0, "n": 7, "flag": True, "g": 1.5, "h": 0.5,
        "long": 0.5, "i": -3, "u": 2**64 - 1, "b": True, "array": 4,
    }  # fmt: skip
    assert text_line("e", payload) == (
        "e loss=0.25 parameter=3 lr=2 n=7 flag=True g=1.5 h=0.5 long=0.5 i=-3 u=18446744073709551615 b=True "
        "array=4"
    )


def test_no_graph_is_kept_alive():
    loss = torch.tensor(0.25, requires_grad=True) * 2
    json_line("e", {"loss": loss})
    text_line("e", {"loss": loss})
    alive = weakref.ref(loss)
    del loss
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    ("tensor", "shown"),
    [
        (torch.zeros(2, 3), "tensor((2, 3), torch.float32)"),
        (torch.zeros(0, dtype=torch.int64), "tensor((0,), torch.int64)"),
        (torch.zeros((), device="meta"), "tensor((), torch.float32)"),
        (torch.zeros((), device="meta", dtype=torch.bfloat16), "tensor((), torch.bfloat16)"),
        (torch.zeros(()).as_subclass(Unmeasurable), "tensor((), torch.float32)"),
    ],
)
def test_a_tensor_that_is_large_or_elsewhere_is_described_and_not_read(
    monkeypatch, tensor, shown, strict_json
):
    # A meta tensor stands for one on a GPU: its device is not the CPU.
    read = []
    monkeypatch.setattr(torch.Tensor, "item", lambda tensor: read.append(tensor))
    assert parsed({"x": tensor, "d": {"y": [tensor]}, tensor: 1}, strict_json) == {
        "event": "e", "x": shown, "d": {"y": [shown]}, shown: 1,
    }  # fmt: skip
    assert text_line("e", {"x": tensor}) == f"e x={shown}"
    assert read == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_tensor_on_a_gpu_is_not_read(strict_json):
    assert parsed({"x": torch.tensor(1.0, device="cuda")}, strict_json)["x"] == "tensor((), torch.float32)"


@pytest.mark.parametrize("value", [2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**400, -(10**400)])
def test_integers_of_any_size_are_exact(value, strict_json):
    assert parsed({"n": value}, strict_json) == {"event": "e", "n": value}
    assert parsed({"ns": [value]}, strict_json) == {"event": "e", "ns": [value]}
    assert text_line("e", {"n": value}) == f"e n={value}"


def test_an_integer_longer_than_python_converts_is_its_type(strict_json):
    value = 10 ** (sys.get_int_max_str_digits() + 1)
    assert parsed({"n": value}, strict_json)["n"] == "<class 'int'>"
    assert text_line("e", {"n": value}) == "e n=<class 'int'>"


def test_subclasses_count_as_what_they_are_of(strict_json):
    class Colour(enum.IntEnum):
        RED = 3

    class Mode(str, enum.Enum):
        FIT = "fit"

    class Loud(str):
        __slots__ = ()

        def __str__(self):
            return "LOUD"

    class Half(float):
        def __repr__(self):
            return "half"

    pair = namedtuple("pair", "a b")
    payload = {
        "c": Colour.RED,
        "m": Mode.FIT,
        "l": Loud("quiet"),
        "h": Half(0.5),
        "p": pair(1, 2),
        Loud("k"): 1,
    }
    assert parsed({**payload, "o": OrderedDict(z=1)}, strict_json) == {
        "event": "e", "c": 3, "m": "fit", "l": "quiet", "h": 0.5, "p": [1, 2], "k": 1, "o": {"z": 1},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Decimal("1.10"), "1.10"),
        (Fraction(1, 3), "1/3"),
        (1 + 2j, "(1+2j)"),
        (b"\xff\n", "b'\\xff\\n'"),
        (bytearray(b"x"), "bytearray(b'x')"),
        (np.arange(3), "[0 1 2]"),
        (Exception("boom"), "boom"),
        (range(3), "range(0, 3)"),
        (int, "<class 'int'>"),
    ],
)
def test_anything_else_is_written_by_str(value, shown, strict_json):
    assert parsed({"x": value, "xs": [value]}, strict_json) == {"event": "e", "x": shown, "xs": [shown]}
    assert text_line("e", {"x": value}) == f"e x={shown}"


def test_an_object_whose_str_raises_is_its_type(strict_json):
    shown = repr(Unspeakable)
    bad = Unspeakable()
    assert parsed({"x": bad, bad: [bad]}, strict_json) == {"event": "e", "x": shown, shown: [shown]}
    assert text_line("e", {"x": bad, bad: 1}) == f"e x={shown} {shown}=1"
    assert by_str(bad) == shown


def test_cycles_are_cut_and_shared_values_are_not(strict_json):
    ring: list[object] = [1]
    ring.append(ring)
    knot: dict[str, object] = {"ring": ring}
    knot["self"] = knot
    shared = {"n": 1}
    line = parsed({"ring": ring, "knot": knot, "twice": [shared, shared]}, strict_json)
    assert line["ring"] == [1, "..."]
    assert line["knot"] == {"ring": [1, "..."], "self": "..."}
    assert line["twice"] == [{"n": 1}, {"n": 1}]
    assert "..." in text_line("e", {"knot": knot})


def test_nesting_without_end_is_cut(strict_json):
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    line = json_line("e", {"deep": deep})
    assert b'"..."' in line
    strict_json(line)


def test_keys_become_strings_and_none_is_lost(strict_json):
    payload = {1: "int", "1": "str", None: 0, 2.5: 2, (1, 2): 3, b"k": 4}
    assert parsed(payload, strict_json) == {
        "event": "e", "1_": "int", "1": "str", "None": 0, "2.5": 2, "(1, 2)": 3, "b'k'": 4,
    }  # fmt: skip


class Untouchable:
    def __getattribute__(self, name):
        raise RuntimeError("no")


def test_a_key_that_cannot_be_asked_anything_is_its_type(strict_json):
    (key,) = parsed({Untouchable(): 1}, strict_json).keys() - {"event"}
    assert "Untouchable" in key


def test_keys_are_kept_as_given(strict_json):
    keys = ["val-aux/reward/mean@1", "1st_token_ms", "top 5 acc", "x" * 300, "", "a\nb", "ключ", '"', "\x00"]
    assert parsed(dict.fromkeys(keys, 0.5), strict_json) == {"event": "e", **dict.fromkeys(keys, 0.5)}


def test_a_payload_s_own_event_is_written_as_payload_event(strict_json):
    assert json_line("e", {"event": "mine", "x": 1}) == b'{"event":"e","payload_event":"mine","x":1}\n'
    assert parsed({"event": "mine", "payload_event": "other"}, strict_json) == {
        "event": "e", "payload_event_": "mine", "payload_event": "other",
    }  # fmt: skip


def test_lone_surrogates_are_written_as_escapes(strict_json):
    assert parsed({"x": "a\udcff", "k\ud800": "b"}, strict_json) == {
        "event": "e",
        "x": "a\\udcff",
        "k\\ud800": "b",
    }
    assert text_line("e\ud800", {"k\ud800": "a\udcff"}) == "e\\ud800 k\\ud800=a\\udcff"


# ---- text


def test_text_is_the_event_and_its_values():
    payload = {
        "step": 1,
        "loss": 1.2,
        "lr": 0.0003,
        "path": "a b",
        "ok": True,
        "none": None,
        "big": 123456789.0,
    }
    assert text_line("train_step", payload) == (
        "train_step step=1 loss=1.2 lr=0.0003 path=a b ok=True none=None big=1.23457e+08"
    )
    assert text_line("e", {}) == "e"


def test_text_keeps_nan_and_inf():
    assert text_line(
        "e", {"a": math.nan, "b": math.inf, "c": -math.inf, "d": [math.nan, np.float32(-math.inf)]}
    ) == ("e a=nan b=inf c=-inf d=[nan, -inf]")


def test_text_shows_nested_values_as_python_does():
    payload = {"ooo": {"enabled": False, "stages": ["a", torch.tensor(2)]}}
    assert text_line("e", payload) == "e ooo={'enabled': False, 'stages': ['a', 2]}"


@pytest.mark.parametrize("where", ["event", "key", "value", "nested"])
@pytest.mark.parametrize("code", [*range(0x20), 0x7F, 0x85, 0x9B, 0x2028, 0x2029])
def test_text_escapes_control_characters(where, code):
    bad = f"a{chr(code)}b"
    line = {
        "event": text_line(bad, {}),
        "key": text_line("e", {bad: 1}),
        "value": text_line("e", {"k": bad}),
        "nested": text_line("e", {"k": [bad]}),
    }[where]
    assert chr(code) not in line
    assert re.search(r"a\\(x..|u....|[nrt])b", line)


def test_text_keeps_printable_characters_of_all_languages():
    assert escape_controls("größe 損失 🙂 a\\b") == "größe 損失 🙂 a\\b"


# ---- values for hooks


def test_tensor_value_leaves_other_values_alone():
    array = np.zeros(3)
    nested = {"a": [1]}
    assert tensor_value(array) is array
    assert tensor_value(nested) is nested
    assert tensor_value("x") == "x"
    assert tensor_value(torch.tensor([2])) == 2
    assert tensor_value(np.ma.masked_array([1, 2])) is not None


def test_encoding_imports_neither_torch_nor_numpy(run_python):
    run_python(
        "import sys; from trainer.encoding import json_line, text_line;"
        "json_line('e', {'x': object()}); text_line('e', {'x': object()});"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )


def test_lines_match_the_standard_library_s_reading(strict_json):
    payload = {"step": 3, "loss": 1e-6, "text": 'a"b\\c\u2028', "n": [1, [2.5, None]]}
    assert json.loads(json_line("e", payload)) == {"event": "e", **payload}
