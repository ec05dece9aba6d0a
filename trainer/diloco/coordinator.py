"""A worker's side of DiLoCo: when a delta is due, when weights are adopted, and what waits for what."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from trainer.diloco.ledger import Ledger
from trainer.diloco.objects import (
    DELTAS,
    FINISHED,
    GlobalWeights,
    Tensors,
    decode,
    delta_label,
    describe_mismatch,
    parse_delta_label,
    read_parameters,
)
from trainer.diloco.settings import DiLoCoSection
from trainer.diloco.store import Store, StoreError
from trainer.diloco.uploader import Delta, Uploader
from trainer.diloco.watch import GlobalWatch
from trainer.stopwatch import Stopwatch

_GLANCE_S = 0.05
"""How soon a waiting training thread notices a stop signal."""

_FINAL_DELTAS = 3
"""Most deltas handed over at the end: the last one, and what was taken back of it."""


class JoinError(RuntimeError):
    """A worker cannot take part: there are no global weights, or they are those of another model."""


class Coordinator:
    """Hands over deltas and adopts global weights, between two steps of the training thread.

    Args:
        settings: The schedule.
        worker: This worker's name.
        store: Where workers and master meet.
        model: The model that is trained; its parameters take part, its buffers stay its own.
        emit: Takes events, from the training thread and from the uploader's.
        warn: Takes warnings for the log.
        watch: The training thread's stopwatch; all that happens here is booked as ``outer_sync``.
        is_stopping: Whether a signal asks training to end: then nothing waits for the master any more.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        settings: DiLoCoSection,
        worker: str,
        store: Store,
        model: nn.Module,
        *,
        emit: Callable[[str, dict[str, Any]], None],
        warn: Callable[[str], None],
        watch: Stopwatch,
        is_stopping: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._worker = worker
        self._store = store
        self._model = model
        self._emit = emit
        self._warn = warn
        self._watch = watch
        self._is_stopping = is_stopping
        self._clock = clock
        self._nonce = uuid.uuid4().hex[:8]
        self._globals = GlobalWatch(store, poll_s=settings.poll_s, warn=warn)
        self._uploader = Uploader(
            store,
            emit=emit,
            is_stale=lambda generation: self._globals.newer_than(generation) is not None,
            queue_size=settings.queue_size,
            attempts=settings.upload_attempts,
            backoff_s=settings.upload_backoff_s,
            clock=clock,
        )
        self._ledger = Ledger(GlobalWeights(-1, {}), 0)
        self._step = 0
        self._due_step = settings.inner_steps

    @property
    def generation(self) -> int:
        """Generation of the global weights adopted last; -1 before the first."""
        return self._ledger.generation

    # ---- What the training loop calls ----

    def begin(self, step: int) -> None:
        """Start from what is published: the newest global weights and this worker's own deltas since.

        That holds for the first start, a late one and a restart alike. What an earlier start of this worker
        trained and did not get published is lost.

        Args:
            step: The step that training starts from.

        Raises:
            JoinError: No global weights came within ``join_timeout_s``, or they do not fit the model.
        """
        self._step, self._due_step = step, step + self._settings.inner_steps
        with self._watch.during("outer_sync") as lap:
            self._globals.start()
            self._uploader.start()
            adopted = self._first_globals()
            if adopted is None:
                return
            mismatch = describe_mismatch(adopted.tensors, read_parameters(self._model))
            if mismatch is not None:
                raise JoinError(
                    f"the global weights in {self._store.url} are those of another model: {mismatch}"
                )
            self._ledger = Ledger(adopted, step)
            self._take_over_published()
            self._assign(self._ledger.baseline)
            self._announce(finished=False)
        self._tell(lap.duration_s, adopted=True)

    def sync(self, step: int) -> None:
        """Do what is due after ``step``: adopt newer global weights, hand over a delta.

        Global weights are adopted here only, between two steps, and local work that they lack is put on top.
        """
        if self.generation < 0:
            return  # training is to stop before there were any global weights
        self._step = step
        self._take_back()
        if step < self._due_step and self._globals.newer_than(self.generation) is None:
            return
        generation = self.generation
        with self._watch.during("outer_sync") as lap:
            self._adopt_newer()
            if step >= self._due_step:
                self._due_step = step + self._settings.inner_steps
                deadline_s = self._clock() + self._settings.wait_timeout_s
                if self._hand_over(deadline_s) and not self._settings.overlap:
                    self._wait(lambda: self._ledger.in_flight == 0, deadline_s)
        self._tell(lap.duration_s, adopted=self.generation != generation)

    def finish(self, step: int, *, is_complete: bool) -> bool:
        """Hand over the rest, wait a bounded time for the outer step that includes it, and adopt that.

        Args:
            step: The last step.
            is_complete: Whether training is over, not only interrupted: then other workers' outer steps will
                not wait for this one any more.

        Returns:
            Whether global weights were adopted.
        """
        self._step = step
        generation = self.generation
        if generation < 0:
            return False
        with self._watch.during("outer_sync") as lap:
            deadline_s = self._clock() + self._settings.final_timeout_s
            for _ in range(_FINAL_DELTAS):
                self._take_back()
                self._adopt_newer()
                if self._ledger.has_untold(step):
                    self._hand_over(deadline_s)
                self._uploader.drain(self._settings.shutdown_timeout_s)
                self._wait(lambda: self._ledger.in_flight == 0, deadline_s)
                is_told = not self._ledger.has_untold(step)
                if is_told or self._ledger.in_flight or self._is_stopping() or self._clock() >= deadline_s:
                    break
            if self._ledger.in_flight and not self._is_stopping():
                waited_s = self._settings.final_timeout_s
                self._warn(
                    f"diloco: no outer step within {waited_s:g} s took the last delta of {self._worker}"
                )
            if is_complete:
                self._announce(finished=True)
        adopted = self.generation != generation
        self._tell(lap.duration_s, adopted=adopted)
        return adopted

    def close(self) -> None:
        """Stop both threads; deltas without an answer get one."""
        self._uploader.close()
        self._globals.close()

    # ---- Starting ----

    def _first_globals(self) -> GlobalWeights | None:
        """Return the newest global weights; None when training is to stop before there are any."""
        timeout_s = self._settings.join_timeout_s
        deadline_s = self._clock() + timeout_s
        while (found := self._globals.wait_newer(-1, _GLANCE_S)) is None and not self._is_stopping():
            if self._clock() >= deadline_s:
                raise JoinError(
                    f"no global weights in {self._store.url} within {timeout_s:g} s (diloco.join_timeout_s): "
                    "is the master running?"
                )
        return found

    def _take_over_published(self) -> None:
        """Take deltas of an earlier start that an outer step may still take as handed over: they count."""
        try:
            for found in self._store.objects(DELTAS):
                name = parse_delta_label(found.label)
                if name is None or not found.is_whole:
                    continue
                if (name.worker, name.base_generation) == (self._worker, self.generation):
                    tensors, _ = decode(self._store.read(found))
                    if describe_mismatch(tensors, self._ledger.baseline) is None:
                        self._ledger.take_over(found.label, tensors)
        except (StoreError, ValueError) as error:
            self._warn(f"diloco: deltas of an earlier start are not looked at: {error}")

    def _announce(self, *, finished: bool) -> None:
        try:
            if finished:
                self._store.mark(FINISHED, self._worker)
            else:
                self._store.remove(FINISHED, self._worker)
        except StoreError as error:
            self._warn(f"diloco: the master does not learn that {self._worker} {finished=}: {error}")

    # ---- Handing over, adopting, waiting ----

    def _hand_over(self, deadline_s: float) -> bool:
        """Hand a delta to the uploader; without room until the deadline, leave it for the next one."""
        if self._settings.overflow == "wait":
            self._wait(lambda: self._overflow() is None, deadline_s)
        reason = self._overflow()
        if reason is not None:
            self._emit("delta_upload_skipped", {"step": self._step, "reason": reason})
            return False
        # sync: the one copy of the weights to the host in inner_steps.
        weights = read_parameters(self._model)
        delta = self._ledger.delta(weights)
        label = delta_label(self.generation, self._step, self._worker, self._nonce)
        name = parse_delta_label(label)
        assert name is not None
        self._ledger.hand_over(label, delta, weights, self._step)
        # Told before the uploader can answer.
        self._emit("delta_upload_queued", {"step": self._step, "base_outer_step": self.generation})
        self._uploader.offer(Delta(name, delta))
        return True

    def _overflow(self) -> str | None:
        if self._ledger.in_flight >= self._settings.max_in_flight:
            return "upload_in_flight"
        return None if self._uploader.has_room else "queue_full"

    def _take_back(self) -> None:
        for label in self._uploader.not_uploaded():
            self._ledger.take_back(label)

    def _adopt_newer(self) -> None:
        newest = self._globals.newer_than(self.generation)
        if newest is None:
            return
        is_exact = not self._ledger.has_untold(self._step)
        shift, missed = self._ledger.adopt(newest, self._worker)
        if is_exact and not missed:
            self._assign(newest.tensors)  # not by adding, which would round
        else:
            self._add(shift)

    def _wait(self, is_done: Callable[[], bool], deadline_s: float) -> None:
        """Adopt what comes until it is done, the deadline has passed or training is to stop."""
        while not is_done() and self._clock() < deadline_s and not self._is_stopping():
            self._globals.wait_newer(self.generation, _GLANCE_S)
            self._take_back()
            self._adopt_newer()

    @torch.no_grad()
    def _assign(self, tensors: Tensors) -> None:
        for name, parameter in self._model.named_parameters():
            parameter.copy_(tensors[name])

    @torch.no_grad()
    def _add(self, tensors: Tensors) -> None:
        for name, parameter in self._model.named_parameters():
            parameter.add_(tensors[name].to(parameter.device, parameter.dtype))

    def _tell(self, duration_s: float, *, adopted: bool) -> None:
        payload = {"step": self._step, "generation": self.generation, "adopted": adopted}
        self._emit("outer_sync", {**payload, "duration_s": duration_s})
