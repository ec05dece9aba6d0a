"""The kinds of values a setting can have: how text and Python values are read, and what is refused.

Every refusal is a ``ValueError`` that names the setting, the value and what is accepted.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from numbers import Real
from typing import Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, kw_only=True)
class Given:
    """A value that somebody gave, and where.

    Args:
        name: Name of the argument or of the variable.
        value: The value; text without surrounding space when it comes from a variable.
        is_text: Whether it comes from a variable.
    """

    name: str
    value: object
    is_text: bool

    def refusal(self, accepted: str, *, shown: str | None = None) -> ValueError:
        """The error for this value; ``shown`` stands for a value that must not be printed."""
        value = repr(self.value)[:200] if shown is None else shown
        return ValueError(f"{self.name}={value} is not accepted: {accepted}")


class Kind(Protocol[T_co]):
    """A kind of value."""

    @property
    def accepted(self) -> str:
        """What is accepted, for messages and for the table in the docs."""

    def read(self, given: Given) -> T_co:
        """Return the setting's value, or raise ``ValueError``."""


@dataclass(frozen=True)
class File:
    """A file that a setting names; ``setting`` is for the message when it cannot be used."""

    path: str
    setting: str


@dataclass(frozen=True)
class Flag:
    """``true`` or ``false``."""

    accepted: str = "true, false"

    def read(self, given: Given) -> bool:
        """Return the flag."""
        value = given.value
        if given.is_text:
            value = {"true": True, "false": False}.get(str(value).lower())
        if not isinstance(value, bool):
            raise given.refusal(self.accepted)
        return value


@dataclass(frozen=True)
class Number:
    """A finite number in a range.

    Args:
        minimum: Smallest.
        maximum: Largest.
    """

    minimum: float
    maximum: float = math.inf

    @property
    def accepted(self) -> str:
        """The range in words."""
        return f"a number {_span(self.minimum, self.maximum)}"

    def read(self, given: Given) -> float:
        """Return the number."""
        number = _finite(given)
        if number is None or not self.minimum <= number <= self.maximum:
            raise given.refusal(self.accepted)
        return number


@dataclass(frozen=True)
class Whole:
    """A whole number in a range.

    Args:
        minimum: Smallest.
        maximum: Largest.
    """

    minimum: int
    maximum: int

    @property
    def accepted(self) -> str:
        """The range in words."""
        return f"a whole number {_span(self.minimum, self.maximum)}"

    def read(self, given: Given) -> int:
        """Return the number."""
        number = _finite(given, whole=True)
        if number is None or not self.minimum <= number <= self.maximum:
            raise given.refusal(self.accepted)
        return int(number)


@dataclass(frozen=True)
class Seconds:
    """A time: an argument in seconds, a variable in whole milliseconds.

    Args:
        minimum: Shortest, in seconds.
        maximum: Longest, in seconds.
        short_is_seconds: Whether a variable below 100 is in seconds. OpenTelemetry's specification has the
            export timeout in milliseconds, its Python exporters read the same variable in seconds; no sane
            timeout is below 100 ms or above 100 s.
    """

    minimum: float
    maximum: float = 86_400.0
    short_is_seconds: bool = False

    @property
    def accepted(self) -> str:
        """The range of an argument in words."""
        return f"seconds {_span(self.minimum, self.maximum)}"

    @property
    def accepted_as_text(self) -> str:
        """The range of a variable in words."""
        shortest_ms = math.ceil(self.minimum * 1000)
        seconds = "; a number below 100 is in seconds" if self.short_is_seconds else ""
        return f"milliseconds {_span(shortest_ms, self.maximum * 1000)}, whole{seconds}"

    def read(self, given: Given) -> float:
        """Return the time in seconds."""
        time_s = _finite(given, whole=given.is_text)
        in_seconds = not given.is_text or (self.short_is_seconds and time_s is not None and time_s < 100)
        if time_s is not None and not in_seconds:
            time_s /= 1000
        if time_s is None or not self.minimum <= time_s <= self.maximum:
            raise given.refusal(self.accepted_as_text if given.is_text else self.accepted)
        return time_s


def _span(minimum: float, maximum: float) -> str:
    upto = "" if maximum == math.inf else f" to {maximum:.0f}"
    return f"from {minimum:g}{upto}"


def _finite(given: Given, *, whole: bool = False) -> float | None:
    value = given.value
    try:
        if given.is_text:
            text = str(value)
            # Python's own spellings of numbers, such as 1_000, are not those of the environment.
            readable = text.isascii() and (text.isdecimal() if whole else "_" not in text)
            number = float(text) if readable else math.nan
        elif isinstance(value, Real) and not isinstance(value, bool):
            number = float(value)
        else:
            return None
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and not (whole and number != int(number)) else None


@dataclass(frozen=True)
class Choice:
    """One of a few words, in any case."""

    words: tuple[str, ...]

    @property
    def accepted(self) -> str:
        """The words."""
        return ", ".join(self.words)

    def read(self, given: Given) -> str:
        """Return the word in lower case."""
        word = given.value.strip().lower() if isinstance(given.value, str) else None
        if word not in self.words:
            raise given.refusal(self.accepted)
        return word


@dataclass(frozen=True)
class Words:
    """A comma-separated list of a few words, ``none`` standing alone for an empty list."""

    words: tuple[str, ...]

    @property
    def accepted(self) -> str:
        """The words."""
        return f"{', '.join(self.words)} (a list with commas), or none alone"

    def read(self, given: Given) -> tuple[str, ...]:
        """Return the words, each once."""
        found = [word.strip().lower() for word in str(given.value).split(",")]
        found = list(dict.fromkeys(word for word in found if word))
        if found == ["none"]:
            return ()
        if not found or not set(found) <= set(self.words):
            raise given.refusal(self.accepted)
        return tuple(found)


@dataclass(frozen=True)
class Text:
    """Text that fits a pattern.

    Args:
        accepted: The pattern in words.
        pattern: Regular expression that the whole text matches.
    """

    accepted: str = "text that is not empty"
    pattern: str = r"(?s).*\S.*"

    def read(self, given: Given) -> str:
        """Return the text."""
        if not isinstance(given.value, str) or not re.fullmatch(self.pattern, given.value):
            raise given.refusal(self.accepted)
        return given.value


@dataclass(frozen=True)
class FilePath:
    """The path of a file; whether it can be used is found out by the one who needs it."""

    accepted: str = "path of a PEM file"

    def read(self, given: Given) -> File:
        """Return the path with the name of its setting."""
        value = given.value
        path = os.fsdecode(value) if isinstance(value, str | os.PathLike) else ""
        if not path.strip() or "\0" in path:
            raise given.refusal(self.accepted)
        return File(path, given.name)


@dataclass(frozen=True)
class Device:
    """A device as PyTorch names it; a ``torch.device`` is accepted as well."""

    accepted: str = "a device such as cpu, cuda:0 or xla:0"

    def read(self, given: Given) -> str:
        """Return the device's name."""
        value = given.value
        # PyTorch need not be loaded to know its device by its two attributes.
        is_device = hasattr(value, "type") and hasattr(value, "index")
        name = str(value) if (isinstance(value, str) and value) or is_device else ""
        if not re.fullmatch(r"[a-z][a-z0-9_]*(:[0-9]+)?", name):
            raise given.refusal(self.accepted)
        return name


@dataclass(frozen=True)
class Devices:
    """Sources of device stats: ``auto``, ``all``, or names; an empty list is none."""

    names: tuple[str, ...]

    @property
    def accepted(self) -> str:
        """The names."""
        return f"auto, all, or any of {', '.join(self.names)}; an empty list is none"

    def read(self, given: Given) -> str | tuple[str, ...]:
        """Return ``auto``, ``all``, or a tuple of names."""
        value = given.value
        if value in ("auto", "all"):
            return str(value)
        if isinstance(value, str):
            value = (value,)
        if not isinstance(value, Collection) or not all(name in self.names for name in value):
            raise given.refusal(self.accepted)
        return tuple(name for name in self.names if name in value)
