"""The loop and the events it emits."""

import os
import signal

import pytest
import torch
from torch import nn

from trainer.callbacks import Callback
from trainer.events import EVENTS
from trainer.trainer import Trainer

NAN = float("nan")


def test_a_whole_run(make_run, quiet_logger, heard):
    result = make_run(logger=quiet_logger, max_steps=3).fit()
    assert heard.names == ["train_start", "train_step", "train_step", "train_step", "train_end"]
    (start,) = heard.of("train_start")
    expected = {
        "start_step": 0,
        "target_step": 3,
        "device": "cpu",
        "precision": "fp32",
        "accumulation_steps": 1,
        "parameters": 49,
        "samples": 0,
        "tokens": 0,
        "shape_warning_count": 0,
        "ooo_backprop": None,
        "run_id": result.run_id,
        "attempt": 0,
        "world_size": 1,
        "prior_elapsed_s": 0.0,
        "prior_kept_s": 0.0,
        "last_step_reached": 0,
    }
    assert {key: start[key] for key in expected} == expected
    steps = heard.of("train_step")
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert [step["samples"] for step in steps] == [4, 8, 12]
    assert [step["micro_batches"] for step in steps] == [1, 2, 3]
    (end,) = heard.of("train_end")
    assert (end["steps"], end["outcome"], end["loss"]) == (3, "completed", steps[-1]["loss"])
    assert "error" not in end
    assert (result.outcome, result.steps, result.loss) == ("completed", 3, end["loss"])
    assert result.first_loss == steps[0]["loss"]


def test_fields_are_those_of_the_catalog(make_run, quiet_logger, heard, tmp_path):
    from trainer.checkpoint import CheckpointManager

    run = {"logger": quiet_logger, "checkpoints": CheckpointManager(tmp_path), "validation_dataloader": DATA}
    make_run(
        max_steps=2,
        validate_every_steps=1,
        checkpoint_every_steps=1,
        compile=True,
        compile_backend="eager",
        **run,
    ).fit()
    make_run(max_steps=3, resume=True, **run).fit()
    assert set(heard.names) >= {"compile", "checkpoint_restore", "checkpoint", "validation_end"}
    for event, payload in heard.events:
        fields = {field.name: field for field in EVENTS[event].fields.values()}
        unknown = set(payload) - set(fields) - {"elapsed_s", "memory_bytes"}
        assert not unknown, (event, unknown)
        missing = {name for name, field in fields.items() if field.required} - set(payload)
        assert not missing, (event, missing)


DATA = [(torch.ones(2, 4), torch.ones(2, 1)), (torch.zeros(1, 4), torch.zeros(1, 1))]


def test_accumulated_micro_batches_equal_one_large_batch(quiet_logger, heard):
    inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    targets = inputs.sum(dim=1, keepdim=True)
    whole = [(inputs, targets)]
    parts = [(inputs[i : i + 2], targets[i : i + 2]) for i in range(0, 8, 2)]
    weights = []
    for loader, accumulation_steps in ((whole, 1), (parts, 4)):
        model = nn.Linear(3, 1)
        nn.init.ones_(model.weight)
        nn.init.zeros_(model.bias)
        Trainer(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            loader,
            device="cpu",
            logger=quiet_logger,
            loss_fn=nn.functional.mse_loss,
            accumulation_steps=accumulation_steps,
            max_steps=5,
        ).fit()
        weights.append(model.weight.detach())
    assert torch.allclose(*weights, atol=1e-6)
    one, four = heard.of("train_step")[:5], heard.of("train_step")[5:]
    assert [step["loss"] for step in one] == pytest.approx([step["loss"] for step in four])
    assert [step["grad_norm"] for step in one] == pytest.approx([step["grad_norm"] for step in four])
    assert four[-1]["micro_batches"] == 20
    assert four[-1]["samples"] == one[-1]["samples"] == 40


def test_loss_and_norm_are_read_at_the_logs_cadence_and_on_the_last_step(make_run, quiet_logger, heard):
    quiet_logger.every_steps = 3
    make_run(logger=quiet_logger, max_steps=7).fit()
    steps = heard.of("train_step")
    assert [step["step"] for step in steps] == list(range(1, 8))
    assert [step["step"] for step in steps if "loss" in step] == [3, 6, 7]
    assert [step["step"] for step in steps if "grad_norm" in step] == [3, 6, 7]
    assert all(step["step_s"] > 0 and step["data_wait_s"] >= 0 for step in steps)


def test_times_of_steps_and_states_add_up(make_run, quiet_logger, heard):
    result = make_run(logger=quiet_logger, max_steps=5).fit()
    assert sum(result.time_by_state_s.values()) == pytest.approx(result.elapsed_s)
    steps = heard.of("train_step")
    assert sum(step["step_s"] for step in steps) <= result.time_by_state_s["step"]
    assert sum(step["data_wait_s"] for step in steps) == pytest.approx(result.time_by_state_s["data_wait"])
    assert result.step_p50_s <= result.step_p99_s


def test_tokens_are_counted_for_token_data(quiet_logger, heard):
    model = nn.Embedding(5, 1)
    data = [torch.zeros(2, 8, dtype=torch.long)] * 3

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, tokens):
            return self.model(tokens).mean()

    wrapped = Loss()
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    result = Trainer(wrapped, optimizer, data, device="cpu", logger=quiet_logger).fit()
    assert [step["tokens"] for step in heard.of("train_step")] == [16, 32, 48]
    assert result.tokens == 48
    assert result.tokens_per_sec > 0


def test_callbacks_are_called_with_the_documented_arguments(make_run):
    calls = []

    class Spy:
        def __getattr__(self, name):
            if name == "setup" or name.startswith("on_"):
                return lambda *args: calls.append((name, args))
            raise AttributeError(name)

    trainer = make_run(
        logger=False,
        callbacks=[Spy(), Callback(), object()],
        max_steps=1,
        accumulation_steps=2,
        validation_dataloader=DATA,
        test_dataloader=DATA[:1],
    )
    trainer.fit()
    trainer.validate()
    trainer.test()
    assert [name for name, _ in calls] == [
        "setup",
        *["on_train_batch_start", "on_train_batch_end"] * 2,
        "setup",
        *["on_validation_batch_start", "on_validation_batch_end"] * 2,
        "setup",
        *["on_test_batch_start", "on_test_batch_end"],
    ]
    assert [args[2] for name, args in calls if name == "setup"] == ["fit", "validate", "test"]
    assert all(args[:2] == (trainer, trainer.model) for _, args in calls)
    train_ends = [args for name, args in calls if name == "on_train_batch_end"]
    assert [args[4] for args in train_ends] == [0, 1]
    validation_ends = [args for name, args in calls if name == "on_validation_batch_end"]
    assert [args[4:] for args in validation_ends] == [(0, 0), (1, 0)]


def test_a_callbacks_loss_is_divided_by_the_accumulation_steps(make_run, quiet_logger, heard):
    seen = []

    class Keep:
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            seen.append((trainer.step, outputs["loss"].item()))

    make_run(logger=quiet_logger, callbacks=[Keep()], max_steps=1, accumulation_steps=3).fit()
    assert [step for step, _ in seen] == [0, 0, 0]
    assert sum(loss for _, loss in seen) == pytest.approx(heard.of("train_step")[0]["loss"])


def test_a_failing_model_ends_the_run_as_failed(quiet_logger, heard):
    class Failing(nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            if self.calls == 3:
                raise self.error
            return super().forward(x)

    model = Failing(4, 1)
    model.error = RuntimeError("out of memory")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    trainer = Trainer(
        model, optimizer, DATA, device="cpu", logger=quiet_logger, loss_fn=nn.functional.mse_loss, max_steps=9
    )
    with pytest.raises(RuntimeError) as caught:
        trainer.fit()
    assert caught.value is model.error
    assert [step["step"] for step in heard.of("train_step")] == [1, 2]
    assert heard.names[-1] == "train_end"
    (end,) = heard.of("train_end")
    assert (end["steps"], end["outcome"], end["error"]) == (2, "failed", "RuntimeError: out of memory")
    assert end["loss"] == heard.of("train_step")[-1]["loss"]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(ValueError("mine"), "failed"), (KeyboardInterrupt(), "interrupted"), (SystemExit(3), "interrupted")],
)
def test_a_callbacks_exception_goes_up(make_run, quiet_logger, heard, error, outcome):
    class Raising:
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            raise error

    with pytest.raises(type(error)) as caught:
        make_run(logger=quiet_logger, callbacks=[Raising()], max_steps=2).fit()
    assert caught.value is error
    assert heard.of("train_end")[0]["outcome"] == outcome


def test_a_step_with_non_finite_gradients_is_skipped(quiet_logger, heard):
    good, bad = (torch.ones(2, 4), torch.ones(2, 1)), (torch.full((2, 4), NAN), torch.ones(2, 1))
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    result = Trainer(
        model,
        optimizer,
        [good, bad, good],
        device="cpu",
        logger=quiet_logger,
        loss_fn=nn.functional.mse_loss,
        max_steps=4,
    ).fit()
    assert heard.names[1:-1] == [
        *["train_step", "optimizer_step_skipped", "train_step", "train_step"],
        *["optimizer_step_skipped", "train_step"],
    ]
    assert [skip["step"] for skip in heard.of("optimizer_step_skipped")] == [2, 4]
    assert heard.of("optimizer_step_skipped")[0]["reason"] == "nonfinite_gradient"
    assert [step["samples"] for step in heard.of("train_step")] == [2, 4, 6, 8]
    assert torch.isfinite(model.weight).all()
    assert result.steps == 4


def test_gradients_that_stay_non_finite_end_the_run(quiet_logger, heard):
    model = nn.Linear(4, 1)
    bad = [(torch.full((2, 4), NAN), torch.ones(2, 1))]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(
        model, optimizer, bad, device="cpu", logger=quiet_logger, loss_fn=nn.functional.mse_loss, max_steps=2
    )
    with pytest.raises(FloatingPointError, match="200 times in a row"):
        trainer.fit()
    assert heard.of("train_end")[0]["outcome"] == "failed"


def test_clipping_limits_the_step_and_the_norm_is_that_before(make_run, quiet_logger, heard):
    trainer = make_run(logger=quiet_logger, max_steps=1, clip_norm=1e-3, optimizer=torch.optim.SGD)
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    trainer.fit()
    moved = torch.sqrt(
        sum(((new - old) ** 2).sum() for new, old in zip(trainer.model.parameters(), before, strict=True))
    )
    assert heard.of("train_step")[0]["grad_norm"] > 0.1
    assert moved.item() == pytest.approx(0.01 * 1e-3, rel=1e-2)


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32", "auto"])
def test_each_precision_trains_on_the_cpu(make_run, quiet_logger, heard, precision):
    result = make_run(logger=quiet_logger, max_steps=4, precision=precision).fit()
    assert heard.of("train_start")[0]["precision"] == {"auto": "fp32"}.get(precision, precision)
    assert result.steps == 4
    assert all(isinstance(step["loss"], float) for step in heard.of("train_step"))


def test_an_fp16_overflow_is_skipped_and_the_scale_lowered(quiet_logger, heard):
    model = nn.Linear(4, 1)
    data = [(torch.full((2, 4), 30.0), torch.full((2, 1), -30.0))]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    trainer = Trainer(
        model, optimizer, data, device="cpu", logger=quiet_logger, precision="fp16", max_steps=1,
        loss_fn=lambda output, target: nn.functional.mse_loss(output, target.half()),
    )  # fmt: skip
    trainer.fit()
    skips = heard.of("optimizer_step_skipped")
    assert {skip["reason"] for skip in skips} == {"fp16_overflow"}
    assert trainer.precision.scaler.get_scale() == 2.0**16 / 2 ** len(skips)


def test_validation_between_steps(make_run, quiet_logger, heard):
    trainer = make_run(
        logger=quiet_logger,
        max_steps=4,
        validate_every_steps=2,
        validation_dataloader=DATA,
        validation_batches=1,
    )
    result = trainer.fit()
    assert heard.names[1:-1] == [
        *["train_step"] * 2,
        *["validation_start", "validation_end"],
        *["train_step"] * 2,
        *["validation_start", "validation_end"],
    ]
    end = heard.of("validation_end")[0]
    assert (end["step"], end["stage"], end["batches"]) == (2, "validation", 1)
    assert (
        0 < sum(e["duration_s"] for e in heard.of("validation_end")) <= result.time_by_state_s["validation"]
    )
    assert trainer.model.training


def test_validation_changes_nothing_about_training(make_run, quiet_logger, heard):
    make_run(logger=quiet_logger, max_steps=6).fit()
    make_run(logger=quiet_logger, max_steps=6, validate_every_steps=1, validation_dataloader=DATA).fit()
    losses = [step["loss"] for step in heard.of("train_step")]
    assert losses[:6] == losses[6:]


def test_a_plateau_scheduler_follows_the_validation_loss(make_run):
    def plateau(optimizer):
        return torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, patience=0, threshold=10.0, threshold_mode="abs", factor=0.5
        )

    trainer = make_run(
        logger=False, scheduler=plateau, max_steps=3, validate_every_steps=1, validation_dataloader=DATA
    )
    trainer.fit()
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.01 / 4)


def test_the_time_limit_ends_a_run_as_completed(make_run, quiet_logger, heard):
    class Clock:
        now_s = 0.0

        def __call__(self):
            return self.now_s

    clock = Clock()

    class Tick:
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            clock.now_s += 1.0

    result = make_run(
        logger=quiet_logger, callbacks=[Tick()], max_steps=99, max_time_s=2.5, clock=clock
    ).fit()
    assert (result.outcome, result.steps, result.target_step) == ("completed", 3, 99)
    steps = heard.of("train_step")
    assert [step["steps_per_sec"] for step in steps] == [1.0, 1.0, 1.0]
    assert [step["step_s"] for step in steps] == [1.0, 1.0, 1.0]


def test_a_stop_signal_ends_the_run_at_the_next_step(make_run, quiet_logger, heard, tmp_path):
    from trainer.checkpoint import CheckpointManager

    class Send:
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if trainer.step == 2:
                os.kill(os.getpid(), signal.SIGUSR1)

    former = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        result = make_run(
            logger=quiet_logger,
            callbacks=[Send()],
            max_steps=99,
            stop_signals=[signal.SIGUSR1],
            checkpoints=CheckpointManager(tmp_path),
        ).fit()
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert (result.outcome, result.signal, result.steps) == ("interrupted", signal.SIGUSR1, 3)
    assert heard.names[-2:] == ["checkpoint", "train_end"]
    assert heard.of("train_end")[0]["outcome"] == "interrupted"
    assert result.checkpoint == tmp_path / "step_000000000003.pt"


def test_loggers(make_run, quiet_logger):
    from trainer.metrics import MetricLogger

    other = MetricLogger()
    trainer = make_run(logger=[quiet_logger, other], max_steps=1)
    assert (trainer.logger, trainer.loggers) == (quiet_logger, [quiet_logger, other])
    assert other.device == torch.device("cpu")
    silent = make_run(logger=False, max_steps=1)
    assert (silent.logger, silent.loggers) == (None, [])
    assert silent.fit().steps == 1
    with make_run(max_steps=1) as default:
        assert isinstance(default.logger, MetricLogger)
        closed = []
        default.logger.hooks.append(lambda event, payload: closed.append(event))
    default.logger.emit("late", {})
    assert closed == []


def test_one_pass_is_the_default_length(make_run):
    assert make_run(logger=False, samples=24, accumulation_steps=2).fit().steps == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accumulation_steps": 0}, "accumulation_steps must be greater than 0, got 0"),
        ({"max_steps": -1}, "max_steps must be greater than 0, got -1"),
        ({"clip_norm": 0.0}, "clip_norm must be greater than 0"),
        ({"precision": "fp8"}, "accepted: auto, bf16, fp16, fp32"),
        ({"device": "tpu9"}, "accepted: auto, cpu"),
        ({"device": "cuda:77"}, "cannot be used"),
        ({"nonfinite_check": "never"}, "accepted: auto, always"),
        ({"logger": True}, "logger=True"),
    ],
)
def test_bad_arguments_are_refused(make_run, options, message):
    with pytest.raises(ValueError, match=message):
        make_run(**{"logger": False, **options})


def test_a_loader_of_unknown_length_needs_max_steps():
    model = nn.Linear(1, 1)
    with pytest.raises(ValueError, match="max_steps must be given"):
        Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), iter([]), logger=False)


def test_no_held_out_data(make_run):
    trainer = make_run(logger=False)
    with pytest.raises(ValueError, match="give it a validation_dataloader"):
        trainer.validate()
    with pytest.raises(ValueError, match="give it a test_dataloader"):
        trainer.test()
