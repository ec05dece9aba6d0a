"""SIGTERM: deliver what there is, put the former handler back and let it have the signal.

Slurm, Kubernetes and torchrun stop jobs with SIGTERM, which ends Python without running anything.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int | None


class SigtermChain:
    """Our link in the chain of SIGTERM handlers of this process.

    Where the signal's default would end the process, ``finish`` is called first. A handler of the user may
    let the program go on, so before one of those only ``flush`` is called. So may one that was set on top of
    ours and passes the signal down, as Lightning's does to end training in its own time: it has taken the
    default's place.

    Args:
        finish: Ends all telemetry, within its budget.
        flush: Hands over what there is, within its budget.

    Attributes:
        main_ident: The main thread, the only one that signals interrupt.
        depth: How many calls of that thread must not be interrupted: the numbers that an export reads may be
            locked, or a delivery under way would be cut off.
        pending: Whether a signal came meanwhile.
    """

    def __init__(self, finish: Callable[[], None], flush: Callable[[], None]) -> None:
        self._finish = finish
        self._flush = flush
        self._former: Handler = None
        self._installed = False
        self._handling = False
        self.main_ident = threading.main_thread().ident
        self.depth = 0
        self.pending = False

    def install(self) -> None:
        """Join the chain; only the main thread can, and where SIGTERM is ignored it stays so."""
        if self._installed or threading.get_ident() != self.main_ident:
            return
        former = signal.getsignal(signal.SIGTERM)
        if former is None or former == signal.SIG_IGN:  # None: a handler that Python did not set
            return
        self._former = former
        self._installed = True
        signal.signal(signal.SIGTERM, self._handle)

    def uninstall(self) -> None:
        """Leave the chain, unless somebody has put a handler on top of ours since."""
        if not self._installed or threading.get_ident() != self.main_ident:
            return
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, self._former)
            self._installed = False

    def catch_up(self) -> None:
        """Let a signal that had to wait take effect."""
        if self.pending and self.depth == 0:
            self.pending = False
            self._handle(signal.SIGTERM, None)

    @contextmanager
    def held_off(self) -> Iterator[None]:
        """Let signals wait for the end of the block."""
        on_main = threading.get_ident() == self.main_ident
        try:
            self.depth += on_main
            yield
        finally:
            self.depth -= on_main
            if on_main:
                self.catch_up()

    def abandon_in_child(self) -> None:
        """In a forked child: give its SIGTERM the handler that it would have without us."""
        self.main_ident = threading.get_ident()  # the thread that forked is the child's main thread
        self.depth, self.pending, self._handling = 0, False, False
        self.uninstall()
        self._installed = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.depth:
            self.pending = True
            return
        if self._handling:
            return  # launchers often send it twice; the first delivery is under way, and bounded
        self._handling = True
        former = self._former
        # Where we have left the chain since the signal came, nothing is on top.
        on_top = self._installed = self._installed and signal.getsignal(number) != self._handle
        try:
            (self._finish if former == signal.SIG_DFL and not on_top else self._flush)()
        finally:
            self._handling = False
        if on_top:
            if callable(former):
                former(number, frame)
            return
        signal.signal(signal.SIGTERM, former)
        os.kill(os.getpid(), number)
