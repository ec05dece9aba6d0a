"""How the model is run in training: eager, compiled, with its stages on streams, or over several ranks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn

from trainer.batch import LossFunction, compute_loss
from trainer.compile import CompiledForward
from trainer.ooo import OooReport, StageScheduler, plan_ooo
from trainer.precision import Precision
from trainer.ranks import Ranks
from trainer.stopwatch import Stopwatch


class Forward:
    """Turns batches into losses.

    Args:
        model: The model, on its device.
        precision: Number format of the forward pass.
        ranks: Ranks that train the model together.
        loss_fn: As for :func:`trainer.batch.compute_loss`.
        compile_backend: Backend of ``torch.compile``; None = eager.
        ooo_streams: Streams of out-of-order backprop; None = it was not asked for.
        emit: Takes events.

    Attributes:
        ooo: What became of out-of-order backprop; None = it was not asked for, or training has not begun.
    """

    def __init__(
        self,
        model: nn.Module,
        precision: Precision,
        ranks: Ranks,
        *,
        loss_fn: LossFunction | None,
        compile_backend: str | Callable[..., Any] | None,
        ooo_streams: int | None,
        emit: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.ooo: OooReport | None = None
        self._model = model
        self._precision = precision
        self._ranks = ranks
        self._loss_fn = loss_fn
        self._compile_backend = compile_backend
        self._ooo_streams = ooo_streams
        self._emit = emit
        self._wrapped = ranks.wrap(model)
        self._call: Callable[..., Any] = self._wrapped
        self._scheduler: StageScheduler | None = None

    def prepare(self, first_batch: Callable[[], Any], watch: Stopwatch) -> None:
        """Compile and spread over streams where that is asked for, and tell what came of it.

        Args:
            first_batch: Returns the batch that training begins with, on the device.
            watch: Compiling is booked here.
        """
        if self._compile_backend is not None:
            self._compile(self._compile_backend, first_batch, watch)
        if self._ooo_streams is not None:
            self._spread(self._ooo_streams)

    def loss(self, batch: Any) -> Tensor:
        """Return the scalar loss of a batch that is on the model's device."""
        # In evaluation ranks may have different numbers of batches: none may wait for the others.
        training = self._model.training
        model = self._call if training or self._ranks.is_alone else self._model
        spread = training and self._scheduler is not None
        with self._precision.autocast(), self._scheduler.scheduled([batch]) if spread else nullcontext():  # type: ignore[union-attr]
            return compute_loss(model, batch, self._loss_fn)

    def accumulating(self, *, is_last: bool) -> AbstractContextManager[None]:
        """Return the block of a micro-batch: ranks average gradients only in a step's last one."""
        return nullcontext() if is_last else self._ranks.without_sync(self._wrapped)

    def _compile(
        self, backend: str | Callable[..., Any], first_batch: Callable[[], Any], watch: Stopwatch
    ) -> None:
        batch = first_batch()
        with watch.during("compile") as lap:
            compiled = CompiledForward(self._wrapped, backend=backend, on_fallback=self._tell_fallback)
            self._call = compiled
            reason = compiled.warm_up(lambda: self.loss(batch))
        payload: dict[str, Any] = {"enabled": reason is None, "duration_s": lap.duration_s}
        self._emit("compile", payload if reason is None else {**payload, "reason": reason})

    def _tell_fallback(self, reason: str) -> None:
        self._emit("compile", {"enabled": False, "reason": reason})

    def _spread(self, count: int) -> None:
        if self._scheduler is None:  # the hooks of an earlier fit are still on the stages
            self.ooo, self._scheduler = plan_ooo(
                self._model,
                next(self._model.parameters()).device,
                count,
                compiled=self._compile_backend is not None,
                ranks=self._ranks.size,
            )
        assert self.ooo is not None
        self._emit("ooo_backprop", self.ooo.payload())
