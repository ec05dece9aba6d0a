import pytest
import torch

from otel_training.integrations.lightning import OTelCallback

# Lightning 2.6 asks PyTorch in a way that newer PyTorch is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")


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


def test_a_real_run_is_told_from_start_to_end(log, lightning_trainer):
    _, fit = lightning_trainer(OTelCallback(log), max_steps=4, limit_val_batches=1, val_check_interval=2)
    fit()
    names = [event for event, _ in log.events]
    # The sanity check before the training is no validation of it.
    assert names == [
        "train_start", "train_step", "train_step", "validation_start", "validation_end",
        "train_step", "train_step", "validation_start", "validation_end", "train_end",
    ]  # fmt: skip
    (start,) = log.payloads("train_start")
    assert start == {
        "start_step": 0, "target_step": 4, "device": "cpu", "precision": "fp32", "accumulation_steps": 1,
        "parameters": 1, "world_size": 1, "framework": "lightning",
    }  # fmt: skip
    steps = log.payloads("train_step")
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    # With the gradient 1, and a learning rate that is halved after each step.
    assert [step["lr"] for step in steps] == [0.1, 0.05, 0.025, 0.0125]
    assert [step["loss"] for step in steps] == pytest.approx([1.0, 0.9, 0.85, 0.825])
    assert log.payloads("validation_end")[0] == {"step": 2, "stage": "validation", "loss": 0.25}
    (end,) = log.payloads("train_end")
    assert (end["steps"], end["outcome"]) == (4, "completed")


def test_micro_batches_are_no_steps_and_the_loss_is_whole(log, lightning_trainer):
    _, fit = lightning_trainer(OTelCallback(log), max_steps=2, accumulate_grad_batches=3)
    fit()
    steps = log.payloads("train_step")
    assert [step["step"] for step in steps] == [1, 2]
    assert [step["loss"] for step in steps] == pytest.approx([1.0, 0.9])
    assert log.payloads("train_start")[0]["accumulation_steps"] == 3


class StoppingLog(Log):
    """Stops the training after its first step."""

    trainer = None

    def emit(self, event, payload):
        super().emit(event, payload)
        self.trainer.should_stop = event == "train_step"


def test_a_run_that_goes_on_for_ever_has_no_target(lightning_trainer):
    log = StoppingLog()
    log.trainer, fit = lightning_trainer(OTelCallback(log), max_steps=-1, max_epochs=-1)
    fit()
    assert "target_step" not in log.payloads("train_start")[0]
    assert log.payloads("train_end")[0]["outcome"] == "completed"


def test_a_hook_has_the_numbers(capture, lightning_trainer):
    _, fit = lightning_trainer(OTelCallback(capture.hook), max_steps=3)
    fit()
    assert capture.value("training.steps") == 3
    assert capture.value("training.runs", training_run_outcome="completed") == 1
    assert capture.value("training.loss") == pytest.approx(0.85)


class OnDevice:
    """The parts of a Lightning Trainer and module that a step asks, in a run on an accelerator."""

    log_every_n_steps = 2
    accumulate_grad_batches = 1
    automatic_optimization = True
    global_step = 0


def test_a_loss_on_an_accelerator_is_not_read_at_each_step(log):
    callback, run = OTelCallback(log), OnDevice()
    run.global_step = 1
    # Nothing can be read from a meta tensor: an attempt to would raise, and there would be no event.
    callback.on_train_batch_end(run, run, {"loss": torch.ones((), device="meta")}, None, 0)
    assert log.payloads("train_step") == [{"step": 1}]


@pytest.mark.parametrize(
    ("fault", "outcome", "error"),
    [
        (RuntimeError("boom"), "failed", "RuntimeError: boom"),
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt"),
    ],
)
def test_what_ended_training_is_told(log, fault, outcome, error):
    trainer = OnDevice()
    trainer.global_step = 2
    OTelCallback(log).on_exception(trainer, trainer, fault)
    (end,) = log.payloads("train_end")
    assert (end["steps"], end["outcome"], end["error"]) == (2, outcome, error)
