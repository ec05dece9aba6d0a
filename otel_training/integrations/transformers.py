"""``OTelCallback`` for the Trainer of Hugging Face transformers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from otel_training.integrations.relay import Relay, guarded, trained_parameters

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ModuleNotFoundError as error:
    raise ImportError(
        "this OTelCallback needs transformers: pip install 'otel-training[transformers,accelerate]'"
    ) from error

_FIELDS = {"learning_rate": "lr", "num_input_tokens_seen": "tokens"}
"""What the framework calls the fields of train_step."""


class OTelCallback(TrainerCallback):
    """Tells what a Trainer does, at the cadence of its log (``logging_steps``).

    The Trainer does not tell its callbacks of an exception. A run that one ended is told as failed when the
    process ends, or by ``Telemetry.close(error)``; until then it counts as active.

    Args:
        target: Takes the events: a ``Telemetry``, an ``OTelHook``, or a log with ``emit(event, payload)``.
            None starts telemetry of the callback's own and closes it as training ends.
        clock: Returns seconds that never go back.
        **start_arguments: Arguments of ``otel_training.start`` when there is no target.

    Raises:
        TypeError: The target cannot take events, or there are arguments beside it.
        ValueError: ``start`` does not accept an argument's value.
    """

    def __init__(
        self,
        target: object = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        **start_arguments: Any,
    ) -> None:
        self.relay = Relay(target, start_arguments)
        self._clock = clock
        self._logged_step = 0
        self._told_s: float | None = None

    @guarded
    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Emit train_start."""
        self._logged_step = state.global_step
        self.relay.train_start(
            {
                "start_step": state.global_step,
                "target_step": state.max_steps,
                "device": str(args.device),
                "precision": "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
                "accumulation_steps": args.gradient_accumulation_steps,
                "parameters": trained_parameters(kwargs.get("model")),
                "world_size": args.world_size,
                "framework": "transformers",
            }
        )

    @guarded
    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Emit train_step before a validation or a save that no log precedes, so that neither is its time."""
        self._before_pause(state, control)

    @guarded
    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Do the same at the end of an epoch."""
        self._before_pause(state, control)

    @guarded
    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Emit train_step, unless the log is the summary of a whole training or evaluation."""
        if logs and not any(key.startswith("eval_") or key.endswith("_runtime") for key in logs):
            fields = {_FIELDS.get(key, key): value for key, value in logs.items()}
            if "tokens" in fields:
                # The framework counts those of all ranks; a train_step tells its own rank's part.
                fields["tokens"] //= max(1, getattr(args, "world_size", 1))
            self._step(state.global_step, fields)
        self._told_s = self._clock()

    @guarded
    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Emit validation_end, with the metrics under their own names."""
        further = dict(metrics or {})
        loss, duration_s = further.pop("eval_loss", None), further.pop("eval_runtime", None)
        known = {"step": state.global_step, "stage": "validation", "loss": loss, "duration_s": duration_s}
        self.relay.emit("validation_end", {**further, **known})
        self._told_s = self._clock()

    @guarded
    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Emit checkpoint."""
        now_s = self._clock()
        duration_s = None if self._told_s is None else now_s - self._told_s
        # The folder's name is the Trainer's convention, which it hands to no callback.
        path = str(Path(args.output_dir or ".", f"checkpoint-{state.global_step}"))
        self.relay.emit("checkpoint", {"step": state.global_step, "path": path, "duration_s": duration_s})
        self._told_s = now_s

    @guarded
    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Emit the steps since the last log, then train_end."""
        if state.global_step > self._logged_step:
            self._step(state.global_step, {})
        self.relay.train_end(state.global_step)

    def _before_pause(self, state: TrainerState, control: TrainerControl) -> None:
        pauses = control.should_evaluate or control.should_save
        if pauses and not control.should_log and state.global_step > self._logged_step:
            self._step(state.global_step, {})
        self._told_s = self._clock()

    def _step(self, step: int, fields: Mapping[str, Any]) -> None:
        self._logged_step = step
        self.relay.emit("train_step", {**fields, "step": step})
