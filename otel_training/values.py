"""What a payload's value becomes at the door: a plain number, a label's text, or nothing."""

from __future__ import annotations

import math
import numbers
import sys
from decimal import Decimal
from typing import Any

from otel_training.guard import attempt

Number = int | float

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1

_CONTAINERS = (dict, list, tuple, set, frozenset, bytearray, memoryview)


def number(value: Any) -> Number | None:
    """Return ``value`` as a float or a 64-bit int, or None when it is not a number that can be read for free.

    bool becomes 0 or 1, an int beyond 64 bits a float, ``Decimal`` and other real numbers a float, CPU
    tensors and NumPy values of one element their item. A tensor elsewhere is not read: it would synchronise.
    """
    kind = type(value)
    if kind is float:
        return value  # type: ignore[no-any-return]
    if kind is int:
        if _INT64_MIN <= value <= _INT64_MAX:
            return value  # type: ignore[no-any-return]
        return attempt(float, value)
    if kind is bool:
        return int(value)
    if value is None or kind is str:
        return None
    return attempt(_foreign_number, value)


def finite(value: Any) -> Number | None:
    """Return ``value`` as ``number`` does, but None for NaN and infinities too."""
    plain = number(value)
    return plain if plain is not None and math.isfinite(plain) else None


def storable(value: Number) -> Number | None:
    """Return the result of arithmetic as OTLP can carry it: an int beyond 64 bits as a float, or None.

    One number outside would make the encoder refuse a whole batch.
    """
    plain = value if type(value) is float or _INT64_MIN <= value <= _INT64_MAX else attempt(float, value)
    return plain if plain is not None and math.isfinite(plain) else None


def _foreign_number(value: Any) -> Number | None:
    if isinstance(value, (int, numbers.Integral)):
        return number(int(value))
    if isinstance(value, (float, Decimal, numbers.Real)):
        return float(value)
    if is_tensor(value):
        if value.device.type != "cpu" or value.numel() != 1 or _is_distributed(value):
            return None
        return _plain_item(value.item())
    if _is_numpy(value) and value.size == 1:
        return _plain_item(value.item())
    return None


def _plain_item(item: Any) -> Number | None:
    return number(item) if isinstance(item, (bool, int, float)) else None


def _is_distributed(tensor: Any) -> bool:
    # Reading a DTensor is a collective call: it would hang the ranks that do not read it.
    return type(tensor).__module__.startswith("torch.distributed")


def is_tensor(value: Any) -> bool:
    """Return whether ``value`` is a torch tensor, without importing torch."""
    tensor_type = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor_type is not None and isinstance(value, tensor_type)


def _is_numpy(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.generic, numpy.ndarray))


def on_device(value: Any) -> bool:
    """Return whether ``value`` is a tensor that lives on an accelerator."""
    return is_tensor(value) and attempt(lambda: str(value.device.type)) not in ("cpu", None)


def text(value: Any, max_length: int) -> str:
    """Return ``value`` as an attribute's text: ``true``/``false`` for bools, valid UTF-8, not too long.

    Tensors, arrays and containers, which may hold tensors or millions of items, become the name of their type
    unread; so does an object whose ``str`` raises.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if type(value) is str:
        plain: str | None = value
    elif isinstance(value, _CONTAINERS) or is_tensor(value) or (_is_numpy(value) and value.ndim):
        plain = None
    else:
        plain = attempt(str, value)
    if type(plain) is not str:
        plain = type(value).__name__
    # Surrogates cannot be encoded: neither OTLP nor the page could carry them.
    return plain[:max_length].encode("utf-8", "replace").decode("utf-8")
