"""The training loop, from top to bottom."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trainer.arguments import as_loggers, require_positive, steps_of_one_pass
from trainer.attempts import AttemptLog, begin_attempt
from trainer.batch import LossFunction, compute_loss, count_batch, move_batch
from trainer.callbacks import call_each
from trainer.checkpoint import CheckpointManager
from trainer.checkpointing import Checkpointing
from trainer.compile import CompiledForward
from trainer.device import pick_device
from trainer.evaluation import evaluate
from trainer.feed import BatchFeed
from trainer.metrics import MetricLogger
from trainer.precision import Precision
from trainer.report import AttemptReport
from trainer.result import TrainResult
from trainer.resume import ResumableState
from trainer.signals import DEFAULT_STOP_SIGNALS, StopSignals
from trainer.totals import StepSize, Totals
from trainer.update import Update

if TYPE_CHECKING:
    from trainer.diloco.participant import DiLoCo


class Trainer:
    """Trains any ``nn.Module`` and tells each thing that happens as an event.

    A context manager: leaving the block closes the loggers.

    Args:
        model: The model; how its loss is found: :func:`trainer.batch.compute_loss`.
        optimizer: Optimizer of the model's parameters.
        dataloader: Micro-batches; any iterable that can be iterated again. Its order is resumed exactly.
        device: Where to train, the model is moved there; None = CUDA, else MPS, else the CPU.
        logger: Where events go, or several of them; None = a default :class:`MetricLogger`, False = nowhere.
        callbacks: Objects with any methods of :class:`trainer.callbacks.Callback`.
        loss_fn: ``loss_fn(output, target)`` for models that do not compute their loss.
        scheduler: Any torch scheduler, stepped at each applied step (on a plateau: at each validation).
        validation_dataloader: Batches for :meth:`validate`; likewise ``test_dataloader``.
        max_steps: Step to train up to, absolute; None = one pass over a dataloader of known length.
        max_time_s: Stop after so many seconds of ``fit``, > 0.
        accumulation_steps: Micro-batches of one optimizer step, >= 1; the step's loss is the mean of theirs.
        precision: ``auto``, ``bf16``, ``fp16`` or ``fp32``.
        clip_norm: Longest gradient norm, > 0; None = no clipping.
        nonfinite_check: Where a step with non-finite gradients is skipped: ``always``, or ``auto`` = where
            looking costs no sync of its own (on the CPU, in fp16, and elsewhere at the log's cadence).
        compile: Try ``torch.compile`` before the first step; eager when it fails.
        compile_backend: Backend of ``torch.compile``.
        checkpoints: Where checkpoints go, one at the end of each fit included; None = none are written.
        checkpoint_every_steps: Cadence of checkpoints, >= 1; None = at the end only.
        resume: Continue from the newest whole checkpoint, if there is one.
        validate_every_steps: Cadence of validation, >= 1; None = never.
        validation_batches: Batches of one validation or test, >= 1; None = all.
        stop_signals: Signals that end training at the next step, with a checkpoint.
        diloco: This process's part in DiLoCo; None = it trains alone.
        attempts: Run id, number of the attempt and what came before; None = a new run that is not remembered.
        clock: Monotonic clock in seconds.

    Attributes:
        totals: Steps, samples, tokens and micro-batches so far, over all attempts.

    Raises:
        ValueError: An argument is out of its range.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        dataloader: Iterable[Any],
        *,
        device: str | torch.device | None = None,
        logger: MetricLogger | Iterable[MetricLogger] | Literal[False] | None = None,
        callbacks: Iterable[object] = (),
        loss_fn: LossFunction | None = None,
        scheduler: LRScheduler | None = None,
        validation_dataloader: Iterable[Any] | None = None,
        test_dataloader: Iterable[Any] | None = None,
        max_steps: int | None = None,
        max_time_s: float | None = None,
        accumulation_steps: int = 1,
        precision: str = "auto",
        clip_norm: float | None = None,
        nonfinite_check: str = "auto",
        compile: bool = False,  # noqa: A002 - the word its users know
        compile_backend: str | Callable[..., Any] = "inductor",
        checkpoints: CheckpointManager | None = None,
        checkpoint_every_steps: int | None = None,
        resume: bool = False,
        validate_every_steps: int | None = None,
        validation_batches: int | None = None,
        stop_signals: Iterable[signal.Signals] = DEFAULT_STOP_SIGNALS,
        diloco: DiLoCo | None = None,
        attempts: AttemptLog | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        require_positive(
            accumulation_steps=accumulation_steps,
            max_steps=max_steps,
            max_time_s=max_time_s,
            clip_norm=clip_norm,
            checkpoint_every_steps=checkpoint_every_steps,
            validate_every_steps=validate_every_steps,
            validation_batches=validation_batches,
        )
        if nonfinite_check not in ("auto", "always"):
            raise ValueError(f"nonfinite_check: {nonfinite_check!r} is unknown; accepted: auto, always")
        self.device = pick_device(device)
        self.model = model.to(self.device)
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.loggers = as_loggers(logger)
        for each in self.loggers:
            each.device = self.device
        self.callbacks = list(callbacks)
        self.accumulation_steps = accumulation_steps
        self.target_step = max_steps or steps_of_one_pass(dataloader, accumulation_steps)
        self.totals = Totals()
        self.attempts = attempts or AttemptLog(None, begin_attempt(None))
        self.precision = Precision(precision, self.device)

        self._loss_fn = loss_fn
        self._update = Update(self.model, optimizer, self.precision, scheduler, clip_norm)
        looking_is_free = self.device.type == "cpu" or self.precision.name == "fp16"
        self._check_each_step = nonfinite_check == "always" or looking_is_free
        self._compile_backend = compile_backend if compile else None
        self._forward: Callable[..., Any] = self.model
        self._feed = BatchFeed(dataloader)
        self._checkpointing = Checkpointing(
            checkpoints,
            ResumableState(self.model, optimizer, scheduler, self.precision.scaler, self._feed),
            every_steps=checkpoint_every_steps,
            emit=self.emit,
            warn=self._warn,
        )
        self._held_out = {"validation": validation_dataloader, "test": test_dataloader}
        self._validation_batches = validation_batches
        self._validate_every_steps = validate_every_steps
        self._diloco = diloco
        self._resume = resume
        self._max_time_s = max_time_s
        self._stop_signals = tuple(stop_signals)
        self._clock = clock
        self._reset()

    @property
    def logger(self) -> MetricLogger | None:
        """The first logger, or None."""
        return self.loggers[0] if self.loggers else None

    @property
    def step(self) -> int:
        """The last applied step; a training batch callback is called within the one after it."""
        return self.totals.step

    def fit(self) -> TrainResult:
        """Train up to the target step, the time limit or a stop signal.

        ``train_end`` is emitted on every way out, and an exception goes up as it is.

        Raises:
            CheckpointError: Resuming was asked for and no checkpoint can be used.
            FloatingPointError: The gradients stayed non-finite for 200 attempts in a row.
        """
        self._reset()
        with self._signals:
            try:
                self._begin()
                self._train()
                self._finish()
            except BaseException as error:
                asked_for = isinstance(error, KeyboardInterrupt | SystemExit)
                self._end("interrupted" if asked_for else "failed", error)
                raise
            outcome = "interrupted" if self._stop_reason() == "signal" else "completed"
            self._end(outcome)
            return self._report.result(self.totals, outcome, self._signals.received)

    def validate(self) -> float:
        """Return the mean loss over the validation data.

        Raises:
            ValueError: The trainer has no validation data, or it is empty.
        """
        call_each(self.callbacks, "setup", self, self.model, "validate")
        return self._evaluate("validation")

    def test(self) -> float:
        """Return the mean loss over the test data.

        Raises:
            ValueError: The trainer has no test data, or it is empty.
        """
        call_each(self.callbacks, "setup", self, self.model, "test")
        return self._evaluate("test")

    def compute_loss(self, batch: Any) -> Tensor:
        """Return the loss of a batch that is on this trainer's device, in this trainer's precision."""
        with self.precision.autocast():
            return compute_loss(self._forward, batch, self._loss_fn)

    def emit(self, event: str, payload: dict[str, Any]) -> None:
        """Emit an event through each logger."""
        for logger in self.loggers:
            logger.emit(event, payload)

    def close(self) -> None:
        """Close the loggers."""
        for logger in self.loggers:
            logger.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- The loop ----

    def _train(self) -> None:
        while True:
            # Once in a while, before the next step.
            if self._diloco is not None:
                self._diloco.sync(self.step)
            if self._checkpointing.save_if_due(self.totals, self._report):
                self._remember(now=True)
            if self._validation_is_due():
                self._validate_between_steps()

            # The one stop condition.
            if self._stop_reason() is not None:
                return

            # The step: the gradients of all micro-batches, then the optimizer.
            loss = self._accumulate_gradients()
            grad_norm = self._update.clip()
            if not self._are_finite(grad_norm):
                self._skip_step()
                continue
            self._update.apply()
            self._size.apply_to(self.totals)
            self._log_step(loss, grad_norm)

    def _stop_reason(self) -> Literal["target", "signal", "time"] | None:
        if self.step >= self.target_step:
            return "target"
        if self._signals.received is not None:
            return "signal"
        if self._max_time_s is not None and self._report.watch.elapsed_s() >= self._max_time_s:
            return "time"
        return None

    def _accumulate_gradients(self) -> Tensor:
        """Return the mean loss of the step's micro-batches, a detached scalar on the device."""
        self._size = StepSize()
        total = torch.zeros((), device=self.device)
        for _ in range(self.accumulation_steps):
            with self._report.watch.during("data_wait"):
                host_batch = self._feed.next_batch()
            batch, batch_idx = move_batch(host_batch, self.device), self._feed.batch - 1
            call_each(self.callbacks, "on_train_batch_start", self, self.model, batch, batch_idx)
            loss = self.compute_loss(batch) / self.accumulation_steps
            self.precision.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            outputs = {"loss": loss.detach()}
            call_each(self.callbacks, "on_train_batch_end", self, self.model, outputs, batch, batch_idx)
            total += loss.detach()
            self._size.add(*count_batch(batch))
        return total

    def _are_finite(self, grad_norm: Tensor) -> bool:
        if not self._check_each_step and not self._is_logged(self.step + 1):
            return True
        # sync: the host waits for the backward pass (not on the CPU; in fp16 the scaler would wait next).
        return bool(torch.isfinite(grad_norm))

    def _skip_step(self) -> None:
        """Drop the gradients: the step's number stays, the data goes on."""
        reason = self._update.skip()
        self._report.end_step()
        self.emit("optimizer_step_skipped", {"step": self.step + 1, "reason": reason})

    def _log_step(self, loss: Tensor, grad_norm: Tensor) -> None:
        logged, read = self._is_logged(self.step), {}
        self._report.note_loss(loss)
        if logged or self._stop_reason() is not None:
            # sync: one transfer for both, at the log's cadence and on the last step.
            values = torch.stack((loss, grad_norm.to(loss))).tolist()
            read = dict(zip(("loss", "grad_norm"), values, strict=True))
        self.emit("train_step", self._report.step_payload(self.totals, self._update.lr, read, logged=logged))
        self._remember()

    # ---- Before, between and after the steps ----

    def _reset(self) -> None:
        self._report = AttemptReport(self.attempts.attempt, self._clock)
        self._signals = StopSignals(self._stop_signals)
        self._mark_start(self.totals)

    def _mark_start(self, totals: Totals) -> None:
        self.totals = totals
        self._start_step = self._validated_step = totals.step
        self._checkpointing.begin(totals)

    def _begin(self) -> None:
        self.model.train()
        call_each(self.callbacks, "setup", self, self.model, "fit")
        if self._resume and (restored := self._checkpointing.restore(self._report)) is not None:
            self._mark_start(restored)
        if self._compile_backend is not None:
            self._compile(self._compile_backend)
        if self._diloco is not None:
            self._join(self._diloco)
        self._remember(now=True)
        self.emit("train_start", self._report.start_payload(self, self._checkpointing.prior_kept_s))
        self._report.begin_steps(self.totals)

    def _join(self, diloco: DiLoCo) -> None:
        diloco.begin(
            self.model,
            self.step,
            emit=self.emit,
            warn=self._warn,
            watch=self._report.watch,
            is_stopping=lambda: self._signals.received is not None,
        )

    def _compile(self, backend: str | Callable[..., Any]) -> None:
        first_batch = move_batch(self._feed.peek(), self.device)
        with self._report.watch.during("compile") as lap:
            compiled = CompiledForward(self.model, backend=backend, on_fallback=self._tell_fallback)
            self._forward = compiled
            reason = compiled.warm_up(lambda: self.compute_loss(first_batch))
        payload: dict[str, Any] = {"enabled": reason is None, "duration_s": lap.duration_s}
        self.emit("compile", payload if reason is None else {**payload, "reason": reason})

    def _tell_fallback(self, reason: str) -> None:
        self.emit("compile", {"enabled": False, "reason": reason})

    def _validation_is_due(self) -> bool:
        due = self._validate_every_steps is not None and self.step % self._validate_every_steps == 0
        return due and self.step != self._validated_step and self._signals.received is None

    def _validate_between_steps(self) -> None:
        self._validated_step = self.step
        with self._report.watch.during("validation"):
            loss = self._evaluate("validation")
        self._update.tell_validation_loss(loss)

    def _evaluate(self, stage: str) -> float:
        loader = self._held_out[stage]
        if loader is None:
            raise ValueError(f"the trainer has no {stage} data: give it a {stage}_dataloader")
        return evaluate(self, loader, stage, max_batches=self._validation_batches, clock=self._clock)

    def _finish(self) -> None:
        self._report.watch.switch("idle")
        if self._diloco is not None:
            self._diloco.finish(self.step, is_complete=self._stop_reason() != "signal")
        if self.step > self._start_step:
            self._checkpointing.save_last(self.totals, self._report)

    def _end(self, outcome: str, error: BaseException | None = None) -> None:
        if self._diloco is not None:
            self._diloco.close()
        self._remember(now=True)
        self.emit("train_end", self._report.end_payload(self.totals, outcome, error))
        self._feed.close()

    def _is_logged(self, step: int) -> bool:
        return any(step % logger.every_steps == 0 for logger in self.loggers)

    def _remember(self, *, now: bool = False) -> None:
        self.attempts.note(self.step, self._report.watch.elapsed_s(), now=now)

    def _warn(self, message: str) -> None:
        for logger in self.loggers:
            logger.warning(message)
