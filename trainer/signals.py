"""Signals that ask a run to stop at the next step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable
from types import FrameType, TracebackType
from typing import Any

DEFAULT_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Notes the first stop signal inside a ``with`` block instead of letting it end the process.

    At the first signal all former handlers are put back at once, so that a second one takes its usual effect.
    Handlers can only be installed in the main thread; elsewhere the block changes nothing.

    Args:
        signals: Signals to note.
    """

    def __init__(self, signals: Iterable[signal.Signals] = DEFAULT_STOP_SIGNALS) -> None:
        self.received: signal.Signals | None = None
        self._signals = tuple(dict.fromkeys(signals))
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._put_back()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self._put_back()

    def _put_back(self) -> None:
        while self._former:
            number, handler = self._former.popitem()
            # None: the former handler was not installed from Python and cannot be named again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def parse_signal(name: str) -> signal.Signals:
    """Return the signal called ``name`` (``SIGUSR1`` or ``USR1``).

    Raises:
        ValueError: There is no such signal, or it cannot be handled.
    """
    full = name if name.startswith("SIG") else f"SIG{name}"
    unstoppable = {"SIGKILL", "SIGSTOP"}
    if full not in signal.Signals.__members__ or full in unstoppable:
        raise ValueError(f"unknown stop signal {name!r}; accepted: a name such as SIGUSR1 or SIGTERM")
    return signal.Signals[full]
