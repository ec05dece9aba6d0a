"""Copies of payloads, so that what one hook does to its own is not seen by another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainer.isolation import attempt

_CONTAINERS = frozenset((dict, list))


def own_copy(payload: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the payload and of the dicts and lists in it; what these hold is shared."""
    if _CONTAINERS.isdisjoint(map(type, payload.values())):
        return payload.copy()
    return copy_with(payload, lambda value: value)


def copy_with(payload: dict[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a copy of the payload and of the dicts and lists in it, with all other values converted."""
    copied, _ = attempt(_copy, payload, convert, {})
    # What is nested too deeply to be copied through is shared from its first level on.
    return copied if copied is not None else {key: convert(value) for key, value in payload.items()}


def _copy(value: Any, convert: Callable[[Any], Any], copies: dict[int, Any]) -> Any:
    """``copies``: what was copied already, by the original's id, so that cycles end."""
    kind = type(value)
    if kind not in _CONTAINERS:
        return convert(value)
    if id(value) in copies:
        return copies[id(value)]
    copied: Any = kind()
    copies[id(value)] = copied
    if kind is dict:
        copied.update((key, _copy(item, convert, copies)) for key, item in value.items())
    else:
        copied.extend(_copy(item, convert, copies) for item in value)
    return copied
