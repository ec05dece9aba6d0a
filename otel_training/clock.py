"""The clock of the bridge as an object, so that tests set the time instead of patching it."""

from __future__ import annotations

import time
from typing import NamedTuple


class Moment(NamedTuple):
    """One moment on both clocks.

    Args:
        monotonic_s: Seconds that never go back; only differences mean something.
        unix_s: Seconds since 1970, as the machine believes.
    """

    monotonic_s: float
    unix_s: float

    @property
    def unix_ns(self) -> int:
        """Nanoseconds since 1970: what spans are stamped with."""
        return int(self.unix_s * 1e9)


class Clock:
    """The machine's clocks, read together."""

    def now(self) -> Moment:
        """Return the present moment."""
        return Moment(time.monotonic(), time.time())
