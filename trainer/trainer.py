"""The trainer: what it is made of, and what it can be asked to do."""

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
from trainer.batch import LossFunction
from trainer.callbacks import call_each
from trainer.checkpoint import CheckpointManager
from trainer.checkpointing import Checkpointing
from trainer.device import pick_device
from trainer.evaluation import HeldOut
from trainer.feed import BatchFeed
from trainer.forward import Forward
from trainer.loop import Loop, Parts
from trainer.metrics import MetricLogger
from trainer.precision import Precision
from trainer.ranks import Ranks, present_ranks
from trainer.result import TrainResult
from trainer.resume import ResumableState
from trainer.shapes import ShapeCheck
from trainer.signals import DEFAULT_STOP_SIGNALS
from trainer.totals import Totals
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
        ooo_streams: Streams of out-of-order backprop, 1 to 8, where it can be had; None = not wanted.
        shapes: Sizes to compare with what the device likes; None = none.
        peak_flops_per_s: Peak of one device in this precision, FLOP/s, > 0: with it, and with a model that
            has ``flops_per_token()``, readers of ``train_start`` can tell the model FLOPs utilization.
        checkpoints: Where checkpoints go, one at the end of each fit included; None = none are written.
        checkpoint_every_steps: Cadence of checkpoints, >= 1; None = at the end only.
        resume: Continue from the newest whole checkpoint, if there is one.
        validate_every_steps: Cadence of validation, >= 1; None = never.
        validation_batches: Batches of one validation or test, >= 1; None = all.
        stop_signals: Signals that end training at the next step, with a checkpoint.
        diloco: This process's part in DiLoCo; None = it trains alone.
        attempts: Run id, number of the attempt and what came before; None = a new run that is not remembered.
        ranks: Ranks that train the model together, each with its own share of the data; None = those of the
            process group there is, or this process alone. The model is given as it is, not wrapped.
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
        ooo_streams: int | None = None,
        shapes: ShapeCheck | None = None,
        peak_flops_per_s: float | None = None,
        checkpoints: CheckpointManager | None = None,
        checkpoint_every_steps: int | None = None,
        resume: bool = False,
        validate_every_steps: int | None = None,
        validation_batches: int | None = None,
        stop_signals: Iterable[signal.Signals] = DEFAULT_STOP_SIGNALS,
        diloco: DiLoCo | None = None,
        attempts: AttemptLog | None = None,
        ranks: Ranks | None = None,
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
            peak_flops_per_s=peak_flops_per_s,
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
        self.ranks = present_ranks() if ranks is None else ranks
        self.shapes = None if shapes is None else shapes.profile(self.device, self.precision.name)
        self.peak_flops_per_s = peak_flops_per_s

        self.forward = Forward(
            self.model,
            self.precision,
            self.ranks,
            loss_fn=loss_fn,
            compile_backend=compile_backend if compile else None,
            ooo_streams=ooo_streams,
            emit=self.emit,
        )
        self._held_out = HeldOut(
            {"validation": validation_dataloader, "test": test_dataloader},
            max_batches=validation_batches,
            every_steps=validate_every_steps,
            clock=clock,
        )
        feed = BatchFeed(dataloader)
        looking_is_free = self.device.type == "cpu" or self.precision.name == "fp16"
        self._parts = Parts(
            feed=feed,
            update=Update(self.model, optimizer, self.precision, scheduler, clip_norm),
            checkpointing=Checkpointing(
                checkpoints,
                ResumableState(self.model, optimizer, scheduler, self.precision.scaler, feed),
                self.ranks,
                every_steps=checkpoint_every_steps,
                emit=self.emit,
                warn=self.warn,
            ),
            held_out=self._held_out,
            diloco=diloco,
            resume=resume,
            max_time_s=max_time_s,
            stop_signals=tuple(stop_signals),
            check_each_step=nonfinite_check == "always" or looking_is_free,
            clock=clock,
        )

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
        return Loop(self, self._parts).run()

    def validate(self) -> float:
        """Return the mean loss over the validation data.

        Raises:
            ValueError: The trainer has no validation data, or it is empty.
        """
        call_each(self.callbacks, "setup", self, self.model, "validate")
        return self._held_out.evaluate(self, "validation")

    def test(self) -> float:
        """Return the mean loss over the test data.

        Raises:
            ValueError: The trainer has no test data, or it is empty.
        """
        call_each(self.callbacks, "setup", self, self.model, "test")
        return self._held_out.evaluate(self, "test")

    def compute_loss(self, batch: Any) -> Tensor:
        """Return the loss of a batch that is on this trainer's device, in this trainer's precision."""
        return self.forward.loss(batch)

    def emit(self, event: str, payload: dict[str, Any]) -> None:
        """Emit an event through each logger."""
        for logger in self.loggers:
            logger.emit(event, payload)

    def warn(self, message: str) -> None:
        """Write a warning to each log."""
        for logger in self.loggers:
            logger.warning(message)

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
