"""C05 through the callbacks of Hugging Face and Lightning: a target that raises does not end training."""

import logging

import pytest

from otel_training.integrations import lightning, transformers

# Lightning 2.6 asks PyTorch in a way that newer PyTorch is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")

STEPS = 5


class Down:
    """A target that raises at each event."""

    def __init__(self):
        self.events = []

    def on_event(self, event, payload):
        self.events.append(event)
        raise RuntimeError("down")


def warnings_of_ours(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "otel_training"]


def test_transformers_trains_to_the_end(transformers_trainer, caplog):
    down = Down()
    trainer = transformers_trainer(transformers.OTelCallback(down), max_steps=STEPS)
    assert trainer.train().global_step == STEPS
    assert down.events == ["train_start", *["train_step"] * STEPS, "train_end"]
    told = warnings_of_ours(caplog)
    assert "on_log failed, training goes on: RuntimeError: down" in told
    assert len(told) <= 10


def test_lightning_trains_to_the_end(lightning_trainer, caplog):
    down = Down()
    trainer, fit = lightning_trainer(lightning.OTelCallback(down), max_steps=STEPS)
    with caplog.at_level(logging.WARNING):
        fit()
    assert trainer.global_step == STEPS
    assert down.events == ["train_start", *["train_step"] * STEPS, "train_end"]
    told = warnings_of_ours(caplog)
    assert "on_train_batch_end failed, training goes on: RuntimeError: down" in told
    assert len(told) <= 10
