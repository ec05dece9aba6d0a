import math
import subprocess
import sys
from types import SimpleNamespace

import pytest

from otel_training.integrations.transformers import OTelCallback


class Log:
    def __init__(self):
        self.events = []

    def emit(self, event, payload):
        self.events.append((event, payload))

    def payloads(self, event):
        return [payload for name, payload in self.events if name == event]


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def state():
    return SimpleNamespace(global_step=4)


def test_a_real_run_is_told_from_start_to_end(log, transformers_trainer):
    trainer = transformers_trainer(
        OTelCallback(log),
        logging_steps=2,
        save_strategy="steps",
        save_steps=2,
        eval_strategy="steps",
        eval_steps=4,
    )
    trainer.train()
    assert [event for event, _ in log.events] == [
        "train_start", "train_step", "checkpoint", "train_step", "validation_end", "checkpoint",
        "train_step", "validation_end", "checkpoint", "train_end",
    ]  # fmt: skip
    (start,) = log.payloads("train_start")
    assert start == {
        "start_step": 0, "target_step": 5, "device": "cpu", "precision": "fp32", "accumulation_steps": 1,
        "parameters": 1, "world_size": 1, "framework": "transformers",
    }  # fmt: skip
    first, second, last = log.payloads("train_step")
    assert (first["step"], second["step"]) == (2, 4)
    assert first["loss"] == pytest.approx((1.0 + 0.9) / 2)
    assert first["lr"] == 0.1
    assert first["grad_norm"] == 1.0
    assert last == {"step": 5}  # the log's cadence left it out
    validation = log.payloads("validation_end")[0]
    assert (validation["step"], validation["stage"]) == (4, "validation")
    assert validation["loss"] == pytest.approx(0.6)
    assert validation["duration_s"] > 0
    checkpoint = log.payloads("checkpoint")[0]
    assert (checkpoint["step"], checkpoint["path"]) == (2, f"{trainer.args.output_dir}/checkpoint-2")
    (end,) = log.payloads("train_end")
    assert (end["steps"], end["outcome"]) == (5, "completed")


def test_a_hook_has_the_numbers(capture, transformers_trainer):
    transformers_trainer(OTelCallback(capture.hook), max_steps=3).train()
    assert capture.value("training.steps") == 3
    assert capture.value("training.runs", training_run_outcome="completed") == 1
    assert capture.value("training.loss") == pytest.approx(0.8)


def test_a_checkpoint_took_the_time_since_the_log_or_the_step(log, state):
    times_s = iter([10.0, 12.5, 20.0, 21.0])
    callback = OTelCallback(log, clock=lambda: next(times_s))
    args = SimpleNamespace(output_dir="out")
    control = SimpleNamespace(should_log=False, should_evaluate=False, should_save=True)
    callback.on_step_end(args, state, control)
    callback.on_save(args, state, control)
    callback.on_log(args, state, control, logs={"loss": 1.0})
    callback.on_save(args, state, control)
    assert [payload["duration_s"] for payload in log.payloads("checkpoint")] == [2.5, 1.0]
    # The save's step is told before it.
    assert [event for event, _ in log.events] == ["train_step", "checkpoint"] * 2


@pytest.mark.parametrize(
    ("due", "told"),
    [
        ({}, []),
        ({"should_evaluate": True}, [{"step": 4}]),
        ({"should_save": True}, [{"step": 4}]),
        ({"should_save": True, "should_log": True}, []),  # on_log is about to tell it
    ],
)
def test_a_step_is_told_before_what_is_not_its_time(log, state, due, told):
    control = SimpleNamespace(**{"should_log": False, "should_evaluate": False, "should_save": False, **due})
    callback = OTelCallback(log)
    callback.on_step_end(None, state, control)
    callback.on_epoch_end(None, state, control)  # the same step is told once
    assert log.payloads("train_step") == told


@pytest.mark.parametrize(
    "logs", [None, {}, {"train_runtime": 1.0, "train_loss": 0.5}, {"eval_loss": 0.5}, {"test_runtime": 1.0}]
)
def test_a_summary_is_no_step(log, state, logs):
    OTelCallback(log).on_log(None, state, None, logs=logs)
    assert log.events == []


def test_unknown_values_go_on_under_their_names(log, state):
    OTelCallback(log).on_log(None, state, None, logs={"loss": math.inf, "reward": 2.0, "epoch": 0.5})
    assert log.events == [("train_step", {"loss": math.inf, "reward": 2.0, "epoch": 0.5, "step": 4})]


def test_tokens_are_the_ranks_own_part(log, state):
    logs = {"num_input_tokens_seen": 4096}
    OTelCallback(log).on_log(SimpleNamespace(world_size=4), state, None, logs=logs)
    assert log.payloads("train_step") == [{"tokens": 1024, "step": 4}]


@pytest.mark.parametrize(
    ("framework", "module"), [("transformers", "transformers"), ("lightning", "lightning")]
)
def test_without_the_framework_one_line_names_the_extra(framework, module):
    code = f"import sys; sys.modules[{framework!r}] = None; import otel_training.integrations.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: this OTelCallback needs")
    assert f"otel-training[{framework}" in last
