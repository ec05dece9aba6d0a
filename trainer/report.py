"""What one attempt says about itself: the numbers in its events and in its result."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trainer.attempts import Attempt
from trainer.result import StepTimes, TrainResult, goodput_of
from trainer.stopwatch import Stopwatch
from trainer.throughput import Throughput
from trainer.totals import Totals

if TYPE_CHECKING:
    from trainer.trainer import Trainer


@dataclass(frozen=True)
class StepTime:
    """Where the time of one step went, in seconds."""

    step_s: float
    data_wait_s: float


class AttemptReport:
    """Measures one call of ``fit``.

    Args:
        attempt: Which attempt this is.
        clock: Monotonic clock in seconds.
    """

    def __init__(self, attempt: Attempt, clock: Callable[[], float] = time.perf_counter) -> None:
        self.watch = Stopwatch("startup", clock)
        self._first_loss: torch.Tensor | None = None
        self._last_loss: torch.Tensor | None = None
        self._last_read_loss: float | None = None
        self.checkpoint: Path | None = None
        self.checkpoint_error: str | None = None
        self._prior_kept_s = 0.0
        self._attempt = attempt
        self._clock = clock
        self._start = Totals()
        self._target_step: int | None = None
        self._throughput = Throughput(0, 0, 0, clock)
        self._step_times = StepTimes()
        self._reported_s = {"step": 0.0, "data_wait": 0.0}

    def start_payload(self, trainer: Trainer, prior_kept_s: float) -> dict[str, Any]:
        """Return the payload of ``train_start``.

        Args:
            trainer: The trainer, about to take its first step.
            prior_kept_s: Step time of earlier attempts that the restored checkpoint kept.
        """
        self._prior_kept_s = prior_kept_s
        self._target_step = trainer.target_step
        totals, shapes, ooo = trainer.totals, trainer.shapes, trainer.forward.ooo
        payload = {
            "start_step": totals.step,
            "target_step": trainer.target_step,
            "device": str(trainer.device),
            "precision": trainer.precision.name,
            "accumulation_steps": trainer.accumulation_steps,
            "parameters": sum(each.numel() for each in trainer.model.parameters() if each.requires_grad),
            "samples": totals.samples,
            "tokens": totals.tokens,
            "micro_batches": totals.micro_batches,
            "shape_alignment": None if shapes is None else shapes.alignment,
            "shape_warning_count": 0 if shapes is None else len(shapes.warnings),
            "ooo_backprop": None if ooo is None else ooo.payload(),
            "run_id": self._attempt.run_id,
            "attempt": self._attempt.number,
            "world_size": trainer.ranks.size,
            "time_unix_s": time.time(),
            "prior_elapsed_s": self._attempt.prior_elapsed_s,
            "prior_kept_s": prior_kept_s,
            "last_step_reached": max(self._attempt.last_step_reached, totals.step),
        }
        flops_per_token = getattr(trainer.model, "flops_per_token", None)
        if flops_per_token is not None:
            payload["flops_per_token"] = flops_per_token()
        if trainer.peak_flops_per_s is not None:
            payload["peak_flops_per_s"] = trainer.peak_flops_per_s
        return payload

    def begin_steps(self, totals: Totals) -> None:
        """Start measuring steps, from the given totals on."""
        self._start = replace(totals)
        self._throughput = Throughput(totals.step, totals.samples, totals.tokens, self._clock)
        self.watch.switch("step")

    def note_loss(self, loss: torch.Tensor) -> None:
        """Keep the loss of a step as it is, on its device; it is read at the end, if at all."""
        self._first_loss = loss if self._first_loss is None else self._first_loss
        self._last_loss = loss

    def end_step(self) -> StepTime:
        """Return the time since the end of the step before, other states than these two left out."""
        total_s = self.watch.totals_s()
        time_s = StepTime(
            step_s=total_s["step"] - self._reported_s["step"],
            data_wait_s=total_s["data_wait"] - self._reported_s["data_wait"],
        )
        self._reported_s = total_s
        return time_s

    def step_payload(
        self, totals: Totals, lr: float, read: dict[str, float], *, logged: bool
    ) -> dict[str, Any]:
        """Return the payload of ``train_step``.

        Args:
            totals: Totals with this step.
            lr: Learning rate this step was made with.
            read: ``loss`` and ``grad_norm``, when they were read from the device.
            logged: Whether the step is at the log's cadence, so that the next rates count from here.
        """
        time_s = self.end_step()
        self._step_times.add(time_s.step_s)
        self._last_read_loss = read.get("loss", self._last_read_loss)
        return {
            "step": totals.step,
            **read,
            "lr": lr,
            **self._throughput.rates(totals.step, totals.samples, totals.tokens, mark=logged),
            "samples": totals.samples,
            "tokens": totals.tokens,
            "micro_batches": totals.micro_batches,
            "data_wait_s": time_s.data_wait_s,
            "step_s": time_s.step_s,
        }

    def end_payload(self, totals: Totals, outcome: str, error: BaseException | None) -> dict[str, Any]:
        """Return the payload of ``train_end``."""
        payload: dict[str, Any] = {"steps": totals.step, "elapsed_s": self.watch.elapsed_s()}
        # sync: training is over. After an error the device may not answer: then the last loss that was read.
        loss = self._last_read_loss if error is not None else _read(self._last_loss)
        if loss is not None:
            payload["loss"] = loss
        payload["outcome"] = outcome
        if error is not None:
            payload["error"] = f"{type(error).__name__}: {error}"
        payload["time_unix_s"] = time.time()
        return payload

    def result(self, totals: Totals, outcome: str, received: signal.Signals | None) -> TrainResult:
        """Return the result of ``fit``."""
        time_by_state_s = self.watch.totals_s()
        training_s = time_by_state_s["step"] + time_by_state_s["data_wait"]
        tokens = totals.tokens - self._start.tokens
        elapsed_s = sum(time_by_state_s.values())
        return TrainResult(
            outcome=outcome,
            start_step=self._start.step,
            steps=totals.step,
            # sync: training is over.
            first_loss=_read(self._first_loss),
            loss=_read(self._last_loss),
            elapsed_s=elapsed_s,
            samples=totals.samples,
            tokens=totals.tokens,
            micro_batches=totals.micro_batches,
            tokens_per_sec=tokens / training_s if tokens and training_s else None,
            step_p50_s=self._step_times.quantile_s(0.50),
            step_p99_s=self._step_times.quantile_s(0.99),
            run_id=self._attempt.run_id,
            attempt=self._attempt.number,
            target_step=self._target_step,
            time_by_state_s=time_by_state_s,
            goodput=goodput_of(
                self._prior_kept_s + time_by_state_s["step"], self._attempt.prior_elapsed_s + elapsed_s
            ),
            checkpoint=self.checkpoint,
            checkpoint_error=self.checkpoint_error,
            signal=received,
        )


def _read(loss: torch.Tensor | None) -> float | None:
    return None if loss is None else float(loss)
