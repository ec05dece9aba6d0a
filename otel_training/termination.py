"""SIGTERM: deliver what there is, put the former handler back and let it have the signal.

Slurm, Kubernetes and torchrun stop jobs with SIGTERM, which ends Python without running anything.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int | None


class SigtermChain:
    """Our link in the chain of SIGTERM handlers of this process.

    Where the signal's default would end the process, ``finish`` is called first. A handler of the user may
    let the program go on, so before one of those only ``flush`` is called.

    Args:
        finish: Ends all telemetry, within its budget.
        flush: Hands over what there is, within its budget.
    """

    def __init__(self, finish: Callable[[], None], flush: Callable[[], None]) -> None:
        self._finish = finish
        self._flush = flush
        self._former: Handler = None
        self._installed = False
        self._main_ident = threading.main_thread().ident
        self._depth = 0
        self._pending = False

    def install(self) -> None:
        """Join the chain; only the main thread can, and where SIGTERM is ignored it stays so."""
        if self._installed or threading.get_ident() != self._main_ident:
            return
        former = signal.getsignal(signal.SIGTERM)
        if former is None or former == signal.SIG_IGN:  # None: a handler that Python did not set
            return
        self._former = former
        self._installed = True
        signal.signal(signal.SIGTERM, self._handle)

    def uninstall(self) -> None:
        """Leave the chain, unless somebody has put a handler on top of ours since."""
        if not self._installed or threading.get_ident() != self._main_ident:
            return
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, self._former)
            self._installed = False

    def enter(self) -> bool:
        """Say that an event is being taken in; return whether ``leave`` must be called."""
        if threading.get_ident() != self._main_ident:
            return False
        self._depth += 1
        return True

    def leave(self) -> None:
        """Say that the event is in; a signal that came meanwhile takes effect now."""
        self._depth -= 1
        if self._pending and self._depth == 0:
            self._pending = False
            self._handle(signal.SIGTERM, None)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._depth:
            # This thread holds the lock of the numbers that the export must read: finish the event first.
            self._pending = True
            return
        former, self._installed = self._former, False
        (self._finish if former == signal.SIG_DFL else self._flush)()
        signal.signal(signal.SIGTERM, former)
        os.kill(os.getpid(), number)
