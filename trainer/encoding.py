"""Events as lines: strict JSON and readable text, whatever a payload holds.

Nothing here raises, and nothing waits for a device: of a tensor only a single element on the CPU is read.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import orjson

from trainer.isolation import attempt

_Leaf: TypeAlias = Callable[[Any], Any]

_PLAIN_TYPES = frozenset((str, int, bool, type(None)))
_MAX_DEPTH = 64
_CUT = "..."
# Controls, the separators that split lines in Unicode, and lone surrogates, which UTF-8 cannot hold.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def json_line(event: str, payload: dict[Any, Any]) -> bytes:
    """Return the event as one line of strict JSON in UTF-8, newline included: compact, ``event`` first.

    NaN and infinities become the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``; tensors and NumPy
    values of one element become numbers, larger tensors ``tensor(shape, dtype)``; keys become strings; cycles
    are cut; anything else is written by ``str``, and by its type when that raises. A payload's own ``event``
    is written as ``payload_event``.
    """
    if "event" not in payload and type(event) is str and _is_plain(payload):
        try:
            return orjson.dumps({"event": event, **payload}, option=orjson.OPT_APPEND_NEWLINE)
        except TypeError:
            pass  # a key that is no string, an integer beyond 64 bits, a lone surrogate: the exact way below
    line = {
        "event": _json_leaf(event),
        **_strings_as_keys(payload, _json_value, _json_leaf, reserved="event"),
    }
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def text_line(event: str, payload: dict[Any, Any]) -> str:
    """Return the event as ``event key=value ...`` on one line, floats by ``%.6g`` and controls escaped."""
    parts = [event if type(event) is str else by_str(event)]
    for key, value in payload.items():
        name = key if type(key) is str else by_str(key)
        kind = type(value)
        if kind is float:
            parts.append(f"{name}={value:.6g}")
        elif kind is str or kind is bool or value is None or (kind is int and abs(value) < 1 << 64):
            parts.append(f"{name}={value}")
        else:
            parts.append(f"{name}={_text_value(value)}")
    return escape_controls(" ".join(parts))


def escape_controls(text: str) -> str:
    """Return the text with control characters, line separators and lone surrogates as escapes: one line."""
    if text.isprintable():
        return text
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def exact_str(text: str) -> str:
    """Return a string as one of the very type ``str``: a subclass may show itself differently."""
    return text if type(text) is str else str.__str__(text)


def by_str(value: object) -> str:
    """Return ``str(value)``, or the value's type when that raises; a tensor is not read for it."""
    text, error = attempt(_shown, value)
    return type.__repr__(type(value)) if error is not None or text is None else exact_str(text)


def _shown(value: object) -> str:
    value = tensor_value(value)
    # repr() of bytes is their str(), without the warning that Python may be asked to give.
    return repr(value) if isinstance(value, bytes) else str(value)


def tensor_value(value: Any) -> Any:
    """Return a tensor or NumPy value as something that a log can hold; every other value as it is.

    Args:
        value: Anything. Of tensors, those of one element on the CPU are read, of any shape and dtype; NumPy
            scalars and arrays of one element as well.

    Returns:
        A Python scalar for what was read; the text ``tensor(shape, dtype)`` for other tensors, unread,
        because reading one waits for its device; otherwise ``value`` itself, larger NumPy arrays included.
    """
    kind = type(value)
    if kind is float or kind in _PLAIN_TYPES:
        return value
    # Looked up, never imported: a value can only be a tensor when torch is there already.
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and issubclass(kind, getattr(torch, "Tensor", ())):
        read, error = attempt(_read_tensor, value, torch)
        return _described(value) if error is not None or read is None else read
    if numpy is not None and issubclass(kind, (numpy.generic, numpy.ndarray)) and value.size == 1:
        read, error = attempt(value.item)
        if error is None and not isinstance(read, numpy.generic):
            return read
        return float(value) if issubclass(kind, numpy.floating) else value
    return value


def _read_tensor(tensor: Any, torch: Any) -> Any:
    """Return the one element of a CPU tensor; ``None`` when it has more or lies elsewhere."""
    # Subclasses are left alone: reading a distributed tensor, for one, talks to the other ranks.
    if (
        type(tensor) not in (torch.Tensor, torch.nn.Parameter)
        or tensor.device.type != "cpu"
        or tensor.numel() != 1
    ):
        return None
    return tensor.item()


def _described(tensor: Any) -> str:
    text, error = attempt(lambda: f"tensor({tuple(tensor.shape)}, {tensor.dtype})")
    return type.__repr__(type(tensor)) if error is not None or text is None else text


def plain(value: object) -> Any:
    """Return the value as None, bools, numbers, strings, lists and dicts of string keys; cycles are cut.

    Tensors are what `tensor_value` makes of them; anything else is written by ``str``.
    """
    return _plain_or_type(value, _same)


def _is_plain(payload: dict[Any, Any]) -> bool:
    """Return whether orjson's own output is already what is wanted for each of the values."""
    for value in payload.values():
        kind = type(value)
        if kind is float:
            if value - value != 0.0:  # NaN or infinite, which orjson would write as null
                return False
        elif kind not in _PLAIN_TYPES:
            return False
    return True


def _json_leaf(value: Any) -> Any:
    """Return a string or a number as what orjson writes exactly."""
    if isinstance(value, str):
        return str.__str__(value).encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, int):
        if -(1 << 63) <= value < 1 << 64:
            return value
        digits, error = attempt(int.__repr__, value)
        return by_str(value) if error is not None or digits is None else orjson.Fragment(digits)
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _json_value(value: object) -> Any:
    return _plain_or_type(value, _json_leaf)


def _text_value(value: object) -> str:
    shown = plain(value)
    return f"{shown:.6g}" if type(shown) is float else by_str(shown)


def _same(value: Any) -> Any:
    return value


def _plain_or_type(value: object, leaf: _Leaf) -> Any:
    made, error = attempt(_plain, value, leaf, ())
    return type.__repr__(type(value)) if error is not None else made


def _plain(value: object, leaf: _Leaf, inside: tuple[int, ...]) -> Any:
    """Return the value as None, bools, leaves, lists and dicts; ``inside`` are the ids of its containers."""
    value = tensor_value(value)
    if value is None or isinstance(value, bool):
        return value
    # The base class's own conversion, because a subclass (an enum, say) may show itself differently.
    if isinstance(value, str):
        return leaf(str.__str__(value))
    if isinstance(value, int):
        return leaf(int.__index__(value))
    if isinstance(value, float):
        return leaf(float.__float__(value))
    if not isinstance(value, dict | list | tuple):
        return leaf(by_str(value))
    if id(value) in inside or len(inside) == _MAX_DEPTH:
        return _CUT
    within = (*inside, id(value))
    if isinstance(value, dict):
        return _strings_as_keys(value, lambda item: _plain(item, leaf, within), leaf)
    return [_plain(item, leaf, within) for item in value]


def _strings_as_keys(
    items: dict[Any, Any], convert: Callable[[object], Any], leaf: _Leaf, reserved: str = ""
) -> dict[str, Any]:
    """Return the dict with string keys; a key that had to be changed gives way to one written as it is."""
    out: dict[str, Any] = {}
    for key, value in dict.items(items):
        given = exact_str(key) if issubclass(type(key), str) else None
        name: str = leaf(by_str(key) if given is None else given)
        if reserved and name == reserved:
            name = f"payload_{reserved}"
        if name != given:
            while name in out or name in items:
                name += "_"
        out[name] = convert(value)
    return out
