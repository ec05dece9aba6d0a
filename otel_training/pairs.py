"""Settings that are pairs: attributes of the resource, and headers, whose values are secrets.

The values of headers stand in no message and in no ``repr``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from otel_training.kinds import Given

Scalar = str | bool | int | float
AttributeValue = Scalar | tuple[Scalar, ...]
"""What OpenTelemetry accepts as the value of a resource attribute."""

_INT64 = 2**63


class Secrets(Mapping[str, str]):
    """Headers by lower-case name; printing them shows the names alone."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = {name.lower(): value for name, value in (values or {}).items()}

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{name}: ***" for name in self._values) + "}"


@dataclass(frozen=True)
class Attributes:
    """Attributes of the resource: a mapping, or ``key=value`` pairs with percent-encoded values."""

    accepted: str = (
        "key=value pairs: names that are not empty; text, bool, 64-bit int, finite float, or lists"
    )

    def read(self, given: Given) -> dict[str, AttributeValue]:
        """Return the attributes."""
        if isinstance(given.value, str):
            return {key: unquote(value) for key, value in self._pairs(given, given.value)}
        if not isinstance(given.value, Mapping):
            raise given.refusal(self.accepted)
        return {key: self._value(given, key, value) for key, value in given.value.items()}

    def _pairs(self, given: Given, text: str) -> Iterator[tuple[str, str]]:
        for pair in filter(None, (pair.strip() for pair in text.split(","))):
            key, equals, value = (part.strip() for part in pair.partition("="))
            if not key or not equals:
                raise given.refusal(self.accepted)
            yield key, value

    def _value(self, given: Given, key: object, value: object) -> AttributeValue:
        if isinstance(key, str) and key.strip():
            if isinstance(value, Scalar) and self._fits(value):
                return value
            if isinstance(value, list | tuple) and len({type(item) for item in value}) <= 1:
                items = tuple(item for item in value if isinstance(item, Scalar) and self._fits(item))
                if len(items) == len(value):
                    return items
        raise given.refusal(self.accepted, shown=f"{{{key!r}: {value!r}}}"[:200])

    @staticmethod
    def _fits(value: Scalar) -> bool:
        # One number outside would make the encoder refuse whole batches.
        if isinstance(value, float):
            return math.isfinite(value)
        return isinstance(value, str) or -_INT64 <= value < _INT64


@dataclass(frozen=True)
class Headers:
    """Headers: a mapping, or ``key=value`` pairs with percent-encoded values."""

    accepted: str = "key=value pairs, or a mapping of text to text; printable ASCII"

    def read(self, given: Given) -> Secrets:
        """Return the headers."""
        if isinstance(given.value, str):
            return Secrets(dict(self._pair(given, *item) for item in self._items(given.value)))
        if not isinstance(given.value, Mapping):
            raise given.refusal(self.accepted, shown="***")
        pairs = enumerate(given.value.items(), start=1)
        return Secrets(dict(self._checked(given, position, *pair) for position, pair in pairs))

    @staticmethod
    def _items(text: str) -> list[tuple[int, str]]:
        items = enumerate((item.strip() for item in text.split(",")), start=1)
        return [(position, item) for position, item in items if item]

    def _pair(self, given: Given, position: int, item: str) -> tuple[str, str]:
        name, equals, value = item.partition("=")
        if not equals:
            raise given.refusal(self.accepted, shown=f"(item {position})")
        return self._checked(given, position, name.strip(), unquote(value.strip()))

    def _checked(self, given: Given, position: int, name: object, value: object) -> tuple[str, str]:
        # A malformed name may be a secret in the wrong place; then the position has to do.
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
            raise given.refusal(self.accepted, shown=f"(item {position})")
        if not isinstance(value, str) or not re.fullmatch(r"[\x20-\x7e]*", value):
            raise given.refusal(self.accepted, shown=f"({name}=***)")
        return name, value
