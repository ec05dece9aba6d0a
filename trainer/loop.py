"""The training loop, from top to bottom."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trainer.batch import count_batch, move_batch
from trainer.callbacks import call_each
from trainer.checkpointing import Checkpointing
from trainer.evaluation import HeldOut
from trainer.feed import BatchFeed
from trainer.report import AttemptReport
from trainer.result import TrainResult
from trainer.signals import StopSignals
from trainer.stopping import StopCondition
from trainer.totals import StepSize, Totals
from trainer.update import Update

if TYPE_CHECKING:
    from trainer.diloco.participant import DiLoCo
    from trainer.trainer import Trainer


@dataclass(frozen=True)
class Parts:
    """What only the loop uses of its trainer; the arguments of :class:`Trainer` explain it."""

    feed: BatchFeed
    update: Update
    checkpointing: Checkpointing
    held_out: HeldOut
    diloco: DiLoCo | None
    resume: bool
    max_time_s: float | None
    stop_signals: tuple[signal.Signals, ...]
    check_each_step: bool
    clock: Callable[[], float]


class Loop:
    """One call of ``fit``.

    With several ranks each runs this loop and all make the same turns: what decides a turn is either the same
    everywhere (step, averaged gradients) or agreed on (the end of training).

    Args:
        trainer: Whose model is trained, and whose ``totals`` count.
        parts: Its parts.
    """

    def __init__(self, trainer: Trainer, parts: Parts) -> None:
        self._trainer = trainer
        self._parts = parts
        self._report = AttemptReport(trainer.attempts.attempt, parts.clock)
        self._signals = StopSignals(parts.stop_signals)
        self._stop = StopCondition(
            trainer.target_step, parts.max_time_s, self._signals, trainer.ranks, self._report.watch.elapsed_s
        )
        # Where gradients are looked at must not depend on what a rank logs.
        self._cadences = trainer.ranks.from_first(lambda: [logger.every_steps for logger in trainer.loggers])
        self._start_at(trainer.totals)

    def run(self) -> TrainResult:
        """Train; ``train_end`` is emitted on every way out, and an exception goes up as it is."""
        with self._signals:
            try:
                self._begin()
                self._train()
                self._finish()
            except BaseException as error:
                asked_for = isinstance(error, KeyboardInterrupt | SystemExit)
                self._end("interrupted" if asked_for else "failed", error)
                raise
            outcome = "completed" if self._stop.signal is None else "interrupted"
            self._end(outcome)
            received = self._stop.signal or self._signals.received
            return self._report.result(self._trainer.totals, outcome, received)

    # ---- Before the first step ----

    def _start_at(self, totals: Totals) -> None:
        self._trainer.totals = totals
        self._start_step = totals.step
        self._parts.held_out.begin(totals.step)
        self._parts.checkpointing.begin(totals)

    def _begin(self) -> None:
        trainer, parts, watch = self._trainer, self._parts, self._report.watch
        trainer.model.train()
        call_each(trainer.callbacks, "setup", trainer, trainer.model, "fit")
        if parts.resume and (restored := parts.checkpointing.restore(self._report)) is not None:
            self._start_at(restored)
        if parts.diloco is not None:
            parts.diloco.begin(
                trainer.model,
                trainer.step,
                emit=trainer.emit,
                warn=trainer.warn,
                watch=watch,
                is_stopping=lambda: self._signals.received is not None,
            )
        self._tell_shapes()
        trainer.forward.prepare(lambda: move_batch(parts.feed.peek(), trainer.device), watch)
        self._remember(now=True)
        trainer.emit("train_start", self._report.start_payload(trainer, parts.checkpointing.prior_kept_s))
        self._report.begin_steps(trainer.totals)

    def _tell_shapes(self) -> None:
        shapes = self._trainer.shapes
        if shapes is not None:
            self._trainer.emit("shape_profile", shapes.payload())
            for warning in shapes.warnings:
                self._trainer.emit("shape_warning", warning.payload())

    # ---- The steps ----

    def _train(self) -> None:
        trainer, parts = self._trainer, self._parts
        while True:
            # The one stop condition, agreed on by all ranks.
            reason = self._stop.agree(trainer.step)

            # Once in a while, between two steps.
            if parts.diloco is not None:
                parts.diloco.sync(trainer.step)
            if parts.checkpointing.save_if_due(trainer.totals, self._report):
                self._remember(now=True)
            if reason != "signal" and parts.held_out.is_due(trainer.step):
                self._validate()
            if reason is not None:
                return

            # The step: the gradients of all micro-batches, then the optimizer.
            loss, size = self._accumulate_gradients()
            grad_norm = parts.update.clip()
            if not self._are_finite(grad_norm):
                self._skip_step()
                continue
            parts.update.apply()
            size.apply_to(trainer.totals)
            self._log_step(loss, grad_norm)

    def _validate(self) -> None:
        with self._report.watch.during("validation"):
            loss = self._parts.held_out.evaluate(self._trainer, "validation")
        self._parts.update.tell_validation_loss(loss)

    def _accumulate_gradients(self) -> tuple[Tensor, StepSize]:
        """Return the mean loss of the micro-batches, a detached scalar on the device, and their size."""
        trainer, feed, size = self._trainer, self._parts.feed, StepSize()
        total = torch.zeros((), device=trainer.device)
        for number in range(1, trainer.accumulation_steps + 1):
            with self._report.watch.during("data_wait"):
                host_batch = feed.next_batch()
            batch, batch_idx = move_batch(host_batch, trainer.device), feed.batch - 1
            call_each(trainer.callbacks, "on_train_batch_start", trainer, trainer.model, batch, batch_idx)
            with trainer.forward.accumulating(is_last=number == trainer.accumulation_steps):
                loss = trainer.compute_loss(batch) / trainer.accumulation_steps
                trainer.precision.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            outputs = {"loss": loss.detach()}
            call_each(
                trainer.callbacks, "on_train_batch_end", trainer, trainer.model, outputs, batch, batch_idx
            )
            total += loss.detach()
            size.add(*count_batch(batch))
        return total, size

    def _are_finite(self, grad_norm: Tensor) -> bool:
        """Return whether the step may be applied: the same on all ranks, as the averaged gradients are."""
        step = self._trainer.step + 1
        if not self._parts.check_each_step and not any(step % every == 0 for every in self._cadences):
            return True
        # sync: the host waits for the backward pass (not on the CPU; in fp16 the scaler would wait next).
        return bool(torch.isfinite(grad_norm))

    def _skip_step(self) -> None:
        """Drop the gradients: the step's number stays, the data goes on."""
        reason = self._parts.update.skip()
        self._report.end_step()
        self._trainer.emit("optimizer_step_skipped", {"step": self._trainer.step + 1, "reason": reason})

    def _log_step(self, loss: Tensor, grad_norm: Tensor) -> None:
        trainer, read = self._trainer, {}
        logged = any(trainer.step % logger.every_steps == 0 for logger in trainer.loggers)
        self._report.note_loss(loss)
        if logged or self._stop.is_near(trainer.step):
            # sync: one transfer for both, at the log's cadence and on the last step.
            values = torch.stack((loss, grad_norm.to(loss))).tolist()
            read = dict(zip(("loss", "grad_norm"), values, strict=True))
        lr = self._parts.update.lr
        trainer.emit("train_step", self._report.step_payload(trainer.totals, lr, read, logged=logged))
        self._remember()

    # ---- After the last step ----

    def _finish(self) -> None:
        parts, trainer = self._parts, self._trainer
        self._report.watch.switch("idle")
        adopted = parts.diloco is not None and parts.diloco.finish(
            trainer.step, is_complete=self._stop.signal is None
        )
        if trainer.step > self._start_step or adopted:
            parts.checkpointing.save_last(trainer.totals, self._report, again=adopted)

    def _end(self, outcome: str, error: BaseException | None = None) -> None:
        # Nothing here may wait for another rank: after an error there may be none.
        if self._parts.diloco is not None:
            self._parts.diloco.close()
        self._remember(now=True)
        self._trainer.emit("train_end", self._report.end_payload(self._trainer.totals, outcome, error))
        self._parts.feed.close()

    def _remember(self, *, now: bool = False) -> None:
        self._trainer.attempts.note(self._trainer.step, self._report.watch.elapsed_s(), now=now)
