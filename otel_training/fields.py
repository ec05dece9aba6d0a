"""Reads fields of payloads one by one: a number goes to its metric, all else is counted and told once."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Collection
from typing import Any

from otel_training import catalog
from otel_training.catalog import Metric
from otel_training.guard import attempt
from otel_training.state import State
from otel_training.values import Number, is_tensor, number, on_device, text

logger = logging.getLogger("otel_training")

Payload = dict[Any, Any]

_TYPE_NAME = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.]*)\s*(?::|$)")


class Fields:
    """The door between payloads and state.

    Args:
        state: Where values, drops and non-finite counts go.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._told: set[str] = set()

    def number(self, payload: Payload, field: str) -> Number | None:
        """Return a field as a finite number, or None when it is absent or not one."""
        value = payload.get(field)
        if value is None:
            return None
        plain = value if type(value) is float else number(value)
        if plain is None:
            self._drop(field, value)
        elif math.isfinite(plain):
            return plain
        else:
            self._count_nonfinite(field, plain)
        return None

    def amount(self, payload: Payload, field: str) -> Number | None:
        """Return a field as a finite number that is not negative: a duration, a size, a count."""
        value = self.number(payload, field)
        return None if value is None or value < 0 else value

    def text(self, payload: Payload, field: str) -> str | None:
        """Return a field as an attribute's text, or None when it is absent."""
        value = payload.get(field)
        return None if value is None else text(value, catalog.MAX_ATTRIBUTE_LENGTH)

    def gauge(self, metric: Metric, payload: Payload, field: str, *labels: str | None) -> None:
        """Set a gauge from a field; a non-finite value withdraws it, an absent one leaves it as it is."""
        value = payload.get(field)
        if value is None:
            return
        plain = value if type(value) is float else number(value)
        if plain is None:
            self._drop(field, value)
            return
        if not math.isfinite(plain):
            self._count_nonfinite(field, plain)
        self._state.set(metric, plain, *labels)

    def custom(self, event: str, payload: Payload, known: Collection[str]) -> None:
        """Carry the numbers of the fields that are not among the known ones."""
        for field in payload:
            if field not in known:
                name = text(field, catalog.FIELD.max_length)
                self.gauge(catalog.CUSTOM, {name: payload[field]}, name, event, name)

    def tell_once(self, subject: str, message: str) -> None:
        """Log a warning, once per subject and run."""
        if subject not in self._told and len(self._told) < catalog.MAX_CUSTOM_FIELDS:
            self._told.add(subject)
            logger.warning("%s", message)

    def _drop(self, field: str, value: Any) -> None:
        self._state.add(catalog.BRIDGE_DROPS, 1, "type")
        if not is_tensor(value):
            return
        if on_device(value):
            why = (
                f"is a tensor on {attempt(str, value.device)} and was not read, because that would make"
                f" training wait for the device; emit {field}.item() at a moment of your choice"
            )
        else:
            why = "is a tensor that is not one number and was left out; emit what is to be seen of it"
        self.tell_once(f"tensor {field}", f"{field!r} {why}")

    def _count_nonfinite(self, field: str, value: Number) -> None:
        kind = "nan" if math.isnan(value) else "positive_infinity" if value > 0 else "negative_infinity"
        self._state.add(catalog.NONFINITE_VALUES, 1, field, kind)
        self.tell_once(
            f"nonfinite {field}", f"{field!r} is {value}: counted, not exported; later ones are only counted"
        )


def error_type(error: Any) -> str:
    """Return the exception's type from an error field such as ``RuntimeError: out of memory``.

    Source: ``_OTHER`` is the fallback of OpenTelemetry's attribute ``error.type``.
    """
    if isinstance(error, BaseException):
        return type(error).__name__
    match = _TYPE_NAME.match(text(error, 1000))
    return match.group(1) if match else "_OTHER"
