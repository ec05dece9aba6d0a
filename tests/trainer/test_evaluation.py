"""A pass over held-out data."""

import pytest
import torch
from torch import nn

from trainer.evaluation import evaluate


def test_each_sample_weighs_the_same(make_run, quiet_logger, heard):
    trainer = make_run(logger=quiet_logger, max_steps=1)
    nn.init.zeros_(trainer.model[2].weight)
    nn.init.zeros_(trainer.model[2].bias)
    batches = [(torch.zeros(3, 4), torch.full((3, 1), 1.0)), (torch.zeros(1, 4), torch.full((1, 1), 3.0))]
    assert evaluate(trainer, batches, "test") == pytest.approx((3 * 1 + 1 * 9) / 4)
    assert heard.names == ["validation_start", "validation_end"]
    end = heard.of("validation_end")[0]
    assert (end["stage"], end["batches"], end["loss"]) == ("test", 2, pytest.approx(3.0))


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_put_back_also_after_an_error(make_run, training):
    class Fail:
        def on_validation_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx):
            assert not pl_module.training
            raise RuntimeError("stop")

    trainer = make_run(logger=False, max_steps=1, callbacks=[Fail()])
    trainer.model.train(training)
    with pytest.raises(RuntimeError, match="stop"):
        evaluate(trainer, [(torch.zeros(1, 4), torch.zeros(1, 1))], "validation")
    assert trainer.model.training == training


def test_no_batch_is_an_error(make_run):
    with pytest.raises(ValueError, match="the test data loader gave no batch"):
        evaluate(make_run(logger=False, max_steps=1), [], "test")
