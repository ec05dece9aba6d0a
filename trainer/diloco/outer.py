"""The master: makes outer steps from deltas and publishes the global weights, on a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from trainer.diloco.inbox import Inbox
from trainer.diloco.objects import (
    FINISHED,
    GLOBALS,
    OUTER_STATES,
    GlobalWeights,
    Tensors,
    by_generation,
    decode,
    describe_mismatch,
    encode,
    generation_label,
    read_newest_globals,
    write_globals,
)
from trainer.diloco.outer_optimizer import OuterOptimizer
from trainer.diloco.round import Round
from trainer.diloco.settings import DiLoCoSection
from trainer.diloco.store import Store, StoreError


class OuterLoop:
    """Makes an outer step when the required workers have sent a delta, or when the first one waited too long.

    Everything it needs lies in the store: the momentum is written before the global weights that belong to
    it, and a delta is removed only after those that include it are out. So a master that is killed at any
    moment and started again goes on as if nothing had happened.

    Args:
        settings: The schedule.
        store: Where workers and master meet.
        initial: Weights that training begins with, when the store holds none.
        emit: Takes ``outer_step`` events, from this loop's thread.
        warn: Takes warnings for the log.
        clock: Monotonic seconds.

    Attributes:
        generation: Of the newest global weights, which is the number of outer steps made; -1 until known.
    """

    def __init__(
        self,
        settings: DiLoCoSection,
        store: Store,
        initial: Tensors,
        *,
        emit: Callable[[str, dict[str, Any]], None],
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.generation = -1
        self._settings = settings
        self._store = store
        self._initial = initial
        self._emit = emit
        self._warn = warn
        self._clock = clock
        self._began_s = clock()
        self._inbox = Inbox(store, torn_after_s=settings.torn_after_s, warn=warn, clock=clock)
        self._round = Round(-1, initial)
        self._round_since_s: float | None = None
        self._optimizer = self._make_optimizer(initial)
        self._included: dict[str, list[str]] = {}
        self._finished: list[str] = []
        self._finished_before: list[str] = []
        self._has_finish_news = False
        self._is_failing = False
        self._stopped = threading.Event()
        self._over = threading.Event()
        self._has_failed = True
        self._failure: ValueError | None = None
        self._thread = threading.Thread(target=self._run, name="diloco-outer", daemon=True)

    def start(self) -> None:
        """Begin: go on from what the store holds, or publish the initial weights as generation 0."""
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait until all workers are done, or no delta has come for too long; return whether it is so.

        Raises:
            ValueError: The store holds the weights of another model, or damaged ones alone.
            RuntimeError: The loop has died of something else.
        """
        is_over = self._over.wait(timeout_s)
        if is_over and self._has_failed:
            raise self._failure or RuntimeError("the outer loop has died; its thread said of what")
        return is_over

    def close(self, timeout_s: float) -> None:
        """Stop between two requests to the store; one that hangs for longer than this is left behind."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    # ---- The loop ----

    def _run(self) -> None:
        try:
            if self._persist(self._recover):
                while self._persist(self._look) and not self._is_over():
                    self._stopped.wait(self._settings.poll_s)
            self._has_failed = False
        except ValueError as error:
            self._failure = error
        finally:
            self._over.set()

    def _persist(self, action: Callable[[], None]) -> bool:
        """Repeat an action until the store lets it be done; return False when stopped before that."""
        while not self._stopped.is_set():
            try:
                action()
            except StoreError as error:
                if not self._is_failing:
                    self._warn(f"diloco: {error}; will be tried again")
                self._is_failing = True
                self._stopped.wait(self._settings.poll_s)
            else:
                self._is_failing = False
                return True
        return False

    def _look(self) -> None:
        self._finished = self._store.names(FINISHED)
        self._has_finish_news |= self._finished != self._finished_before
        self._inbox.look(self._round)
        if self._round_since_s is None and self._round.included:
            self._round_since_s = self._clock()
        if self._is_due():
            self._make_outer_step()

    def _is_due(self) -> bool:
        if self._round_since_s is None:
            return False
        # Workers that are done send nothing more.
        needed = min(self._settings.required, self._settings.workers - len(self._finished))
        is_late = self._clock() - self._round_since_s >= self._settings.round_timeout_s
        return len(self._round.included) >= needed or is_late

    def _is_over(self) -> bool:
        now_s = self._clock()
        if now_s - self._inbox.news_s >= self._settings.idle_timeout_s:
            self._warn(f"diloco: no delta for {self._settings.idle_timeout_s:g} s (diloco.idle_timeout_s)")
            return True
        # Workers that were done before this start may be about to train on.
        is_known = self._has_finish_news or now_s - self._began_s >= self._settings.join_timeout_s
        are_done = len(self._finished) >= self._settings.workers and not self._round.included
        return are_done and is_known

    # ---- Starting ----

    def _recover(self) -> None:
        found = read_newest_globals(self._store)
        if found is None:
            if any(generation > 0 for generation, _ in by_generation(self._store.objects(GLOBALS))):
                raise ValueError(f"{self._store.url} has global weights, but none that are whole")
            found = GlobalWeights(0, self._initial)
            write_globals(self._store, found)
        else:
            mismatch = describe_mismatch(found.tensors, self._initial)
            if mismatch is not None:
                raise ValueError(f"{self._store.url} holds the weights of another model: {mismatch}")
            self._warn(f"diloco: going on from generation {found.generation} in {self._store.url}")
        self._optimizer = self._make_optimizer(found.tensors)
        self._load_momentum(found)
        self._included = found.included
        for labels in found.included.values():
            self._inbox.settle(labels)
        self._finished_before = self._store.names(FINISHED)
        self._open_round(found.generation)

    def _make_optimizer(self, weights: Tensors) -> OuterOptimizer:
        settings = self._settings
        return OuterOptimizer(weights, lr=settings.outer_lr, momentum=settings.outer_momentum)

    def _load_momentum(self, weights: GlobalWeights) -> None:
        for found in self._store.objects(OUTER_STATES):
            if found.name == weights.outer_state:
                try:
                    momentum, _ = decode(self._store.read(found))
                except ValueError as error:
                    raise StoreError(f"the outer state {found.name}: {error}") from error
                self._optimizer.load_momentum(momentum)
                return
        if weights.outer_state:
            self._warn(f"diloco: {weights.outer_state} is gone: the outer momentum begins anew")

    def _open_round(self, generation: int) -> None:
        self.generation = generation
        self._round = Round(generation, self._initial)
        self._round_since_s = None

    # ---- The outer step ----

    def _make_outer_step(self) -> None:
        began_s, closed, generation = self._clock(), self._round, self.generation + 1
        self._optimizer.step(closed.mean())
        self._included = {**self._included, **closed.included}
        if not self._persist(lambda: self._publish(generation)):
            return  # stopped: the deltas are still there, and the next start makes this step again
        self._inbox.settle(closed.labels)
        self._open_round(generation)
        self._emit(
            "outer_step",
            {
                "outer_step": generation,
                "deltas_found": closed.found,
                "deltas_included": closed.deltas_included,
                "deltas_rejected": closed.rejected,
                "duration_s": self._clock() - began_s,
            },
        )
        self._prune()

    def _publish(self, generation: int) -> None:
        # The momentum first: who finds the global weights of a step finds the momentum that belongs to it.
        momentum = encode(self._optimizer.momentum())
        state = self._store.write(OUTER_STATES, generation_label(generation), momentum)
        weights = self._optimizer.weights()
        write_globals(self._store, GlobalWeights(generation, weights, self._included, state.name))

    def _prune(self) -> None:
        oldest = self.generation - self._settings.keep_generations + 1
        for folder in (GLOBALS, OUTER_STATES):
            for generation, found in by_generation(self._store.objects(folder)):
                if generation < oldest:
                    self._store.remove(found.folder, found.name)
