"""The one place where any exception is caught: count it, say it once, carry on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("otel_training")

REPEAT_AFTER_S = 300.0
"""Seconds between two log lines on the same subject."""


class Notices:
    """Log lines that cannot become a flood: a subject's first at once, then a summary every five minutes.

    Args:
        clock: Returns seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told_s: dict[str, float] = {}
        self._held_back: dict[str, int] = {}
        self._in_trouble: set[str] = set()

    def warn(self, subject: str, message: str) -> None:
        """Log ``message`` unless ``subject`` had a line in the last five minutes; then only count it."""
        now_s = self._clock()
        told_s = self._told_s.get(subject)
        if told_s is not None and now_s - told_s < REPEAT_AFTER_S:
            self._held_back[subject] = self._held_back.get(subject, 0) + 1
            return
        self._told_s[subject] = now_s
        self._in_trouble.add(subject)
        held_back = self._held_back.pop(subject, 0)
        more = f" ({held_back} more since the last line on this)" if held_back else ""
        logger.warning("%s%s", message, more)

    def recovered(self, subject: str, message: str) -> None:
        """Log ``message`` once for each line that ``warn`` logged about ``subject``.

        What fails and recovers again and again still has one pair of lines in five minutes.
        """
        if subject in self._in_trouble:
            self._in_trouble.discard(subject)
            logger.warning("%s", message)


class Guard:
    """Runs parts of the telemetry so that no failure of theirs reaches training.

    Args:
        notices: Where failures are told.
    """

    def __init__(self, notices: Notices) -> None:
        self.notices = notices

    def run(self, part: str, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> bool:
        """Call ``function`` and return whether it came back; ``part`` is its name in the log."""
        try:
            function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the blanket except that this module is for
            attempt(self.notices.warn, part, f"{part} failed, training goes on: {describe(error)}")
            return False
        return True


def attempt(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Call a function that may raise anything, such as a method of a foreign object; None when it raised."""
    return outcome(function, *args, **kwargs)[0]


def outcome(
    function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> tuple[T, None] | tuple[None, Exception]:
    """Call a function that may raise anything; return its result, or the exception that it raised."""
    try:
        return function(*args, **kwargs), None
    except Exception as error:  # noqa: BLE001 - the same for what the caller counts and tells, or must not tell
        return None, error


def failure(function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> Exception | None:
    """Call a function and return what it raised, for a caller that tells it in its own words."""
    return outcome(function, *args, **kwargs)[1]


def describe(error: BaseException) -> str:
    """Return the type and the message of an exception in one line, though its ``str`` raises."""
    message = attempt(str, error) or ""
    return f"{type(error).__name__}: {' '.join(message.split())}"[:300].removesuffix(": ")
