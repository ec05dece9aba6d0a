"""What exists once in a process: live runs, each provider's instruments, the handlers of fork and exit.

This is the only module with global state, and it has none before the first hook is made.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar

from opentelemetry import metrics
from opentelemetry.metrics import MeterProvider

from otel_training.guard import Guard
from otel_training.instruments import Instruments
from otel_training.run import Run
from otel_training.state import State
from otel_training.termination import SigtermChain

FLUSH_TIMEOUT_S = 1.0
"""Longest that a signal waits for each hook before the user's own handler, which may save work, has it."""

_MAX_CLOSED_RUNS = 64

RunKey = tuple[Hashable, ...]


class Pipeline(Protocol):
    """What ``start()`` makes for a run: providers, threads, sockets."""

    def begin_close(self, error: BaseException | None) -> None:
        """End the run and ask for the last delivery, without waiting for it."""

    def abandon_in_child(self) -> None:
        """Let go of threads and sockets that belong to the parent; called in a forked child."""


P = TypeVar("P", bound=Pipeline)


class Closable(Protocol):
    """Something that must end before the process does."""

    def flush(self, timeout_s: float) -> bool:
        """Hand over what there is."""

    def close(self, error: BaseException | None = None) -> None:
        """End it; ``error`` is the exception that ends the program, if one does."""


_lock = threading.RLock()
_live: dict[RunKey, Run] = {}
_closed: OrderedDict[RunKey, State] = OrderedDict()
_instruments: weakref.WeakKeyDictionary[MeterProvider, Instruments] = weakref.WeakKeyDictionary()
_pipelines: dict[RunKey, Pipeline] = {}
# Held here, because a program may drop its hook long before it ends. In order, first come first closed.
_closables: dict[Closable, None] = {}
_numbers = itertools.count(1)
_handlers_set = False
_worker_handler_set = False


def next_number() -> int:
    """Return a number that no other hook of this process has."""
    return next(_numbers)


def join(key: RunKey, hook: int, create: Callable[[State], Run]) -> Run:
    """Return the live run of ``key``, or create it on the totals that the last one of ``key`` left."""
    with _lock:
        _set_handlers()
        run = _live.get(key)
        if run is None:
            state = _closed.pop(key, None) or State()
            state.forget_current()
            run = _live[key] = create(state)
        run.join(hook)
        return run


def leave(key: RunKey, hook: int, *, keep_totals: bool) -> bool:
    """Take a hook from its run and return whether the run is over.

    Args:
        key: The run's identity.
        hook: The hook that leaves.
        keep_totals: Whether a later run of ``key`` goes on from the counters of this one.
    """
    with _lock:
        run = _live.get(key)
        if run is None or not run.leave(hook):
            return False
        del _live[key]
        _pipelines.pop(key, None)
        if keep_totals:
            _closed[key] = run.state
            while len(_closed) > _MAX_CLOSED_RUNS:
                _closed.popitem(last=False)
        return True


def instruments(provider: MeterProvider | None, guard: Guard) -> Instruments:
    """Return the instruments of ``provider``, or of the global one; they are made at the first call."""
    with _lock:
        if provider is None:
            provider = metrics.get_meter_provider()
        found = _instruments.get(provider)
        if found is None and provider is metrics.get_meter_provider():
            # The proxy that stands for a global provider hands its instruments on to the one set later: the
            # two are one provider, and making the instruments again would double every point.
            found = next((made for known, made in _instruments.items() if _is_proxy(known)), None)
        if found is None:
            found = Instruments(provider, guard)
        _instruments[provider] = found
        return found


def share(key: RunKey, create: Callable[[], P]) -> tuple[P, bool]:
    """Return the pipeline of a run, made by ``create`` when there is none, and whether it was made."""
    with _lock:
        _set_handlers()
        known = _pipelines.get(key)
        if known is not None:
            return known, False  # type: ignore[return-value] # a key belongs to one kind of pipeline
        made = _pipelines[key] = create()
        return made, True


def close_at_end(closable: Closable) -> None:
    """Close ``closable`` when the interpreter ends or SIGTERM ends it, if nothing did before."""
    with _lock:
        _set_handlers()
        _closables[closable] = None
        sigterm.install()


def closed(closable: Closable) -> None:
    """Forget something that is closed; with the last, SIGTERM is none of our business any more."""
    with _lock:
        _closables.pop(closable, None)
        if not _closables:
            sigterm.uninstall()


def _is_proxy(provider: MeterProvider) -> bool:
    return type(provider).__name__ == "_ProxyMeterProvider"  # the API has no public name for it


def _set_handlers() -> None:
    global _handlers_set, _worker_handler_set
    if not _handlers_set:
        _handlers_set = True
        atexit.register(_close_all)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_after_fork_in_child)
    if not _worker_handler_set:
        _worker_handler_set = True
        _close_at_end_of_worker()


def _close_at_end_of_worker() -> None:
    """Close in processes of ``multiprocessing`` too: those made by fork end without what atexit knows."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _close_all, exitpriority=0)


def _close_all() -> None:
    # Set by the interpreter when an exception nobody caught ends the program; a prompt goes on after one.
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    for pipeline in list(_pipelines.values()):
        pipeline.begin_close(error)  # all at once, so that their budgets run side by side
    for closable in list(_closables):
        closable.close(error)


def _flush_all() -> None:
    for closable in list(_closables):
        closable.flush(FLUSH_TIMEOUT_S)


sigterm = SigtermChain(finish=_close_all, flush=_flush_all)
"""This process's link in the chain of SIGTERM handlers."""


def _after_fork_in_child() -> None:
    """Leave what is the parent's to the parent; a child may begin telemetry of its own."""
    global _lock, _worker_handler_set
    _lock = threading.RLock()  # a thread that does not exist here may have held it
    _worker_handler_set = False
    _live.clear()
    _closed.clear()
    _instruments.clear()
    _closables.clear()
    sigterm.abandon_in_child()
    pipelines = list(_pipelines.values())
    _pipelines.clear()
    for pipeline in pipelines:
        pipeline.abandon_in_child()
