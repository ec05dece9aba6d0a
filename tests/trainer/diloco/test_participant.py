"""DiLoCo inside the real trainer: a worker and its master in one process."""

import pytest
import torch

from trainer.checkpoint import CheckpointManager
from trainer.diloco.objects import read_newest_globals, read_parameters
from trainer.diloco.participant import DiLoCo
from trainer.diloco.store import Store


@pytest.fixture
def train(make_run, quiet_logger, settings, url):
    def train(max_steps=12, **values):
        diloco = DiLoCo(settings(inner_steps=4, **values), url)
        trainer = make_run(logger=quiet_logger, max_steps=max_steps, diloco=diloco)
        return trainer, trainer.fit()

    return train


def test_a_run_makes_outer_steps_and_ends_with_the_global_weights(train, heard, url):
    trainer, result = train()
    assert result.outcome == "completed"
    assert [payload["outer_step"] for payload in heard.of("outer_step")] == [1, 2, 3]
    assert [payload["step"] for payload in heard.of("delta_uploaded")] == [4, 8, 12]
    newest = read_newest_globals(Store(url))
    for name, parameter in read_parameters(trainer.model).items():
        assert torch.equal(parameter, newest.tensors[name])
    assert heard.names[-1] == "train_end"
    assert result.time_by_state_s["outer_sync"] == pytest.approx(
        sum(payload["duration_s"] for payload in heard.of("outer_sync")), rel=0.05
    )
    assert sum(result.time_by_state_s.values()) == pytest.approx(result.elapsed_s)


def test_the_last_checkpoint_holds_the_weights_adopted_at_the_end(
    make_run, quiet_logger, settings, url, tmp_path
):
    manager = CheckpointManager(tmp_path / "checkpoints")
    trainer = make_run(
        logger=quiet_logger,
        max_steps=8,
        diloco=DiLoCo(settings(inner_steps=4), url),
        checkpoints=manager,
        checkpoint_every_steps=4,
    )
    trainer.fit()
    saved = manager.load(manager.path_of(8))["model"]
    for name, parameter in read_parameters(trainer.model).items():
        assert torch.equal(saved[name], parameter)


def test_one_worker_with_outer_lr_1_and_no_momentum_is_plain_training(train, make_run, quiet_logger):
    plain = make_run(logger=quiet_logger, max_steps=12)
    plain.fit()
    trainer, _ = train(outer_lr=1.0, outer_momentum=0.0, overlap=False)
    for name, parameter in read_parameters(plain.model).items():
        torch.testing.assert_close(read_parameters(trainer.model)[name], parameter, rtol=1e-4, atol=1e-6)


def test_two_fits_go_on_in_one_store(train, heard):
    train(max_steps=8)
    train(max_steps=8)
    assert [payload["outer_step"] for payload in heard.of("outer_step")] == [1, 2, 3, 4]


def test_every_queued_delta_is_answered_when_training_fails(make_run, quiet_logger, settings, url, heard):
    class Broken:
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if trainer.step == 9:
                raise RuntimeError("planted")

    diloco = DiLoCo(settings(inner_steps=4), url)
    trainer = make_run(logger=quiet_logger, max_steps=12, diloco=diloco, callbacks=[Broken()])
    with pytest.raises(RuntimeError, match="planted"):
        trainer.fit()
    answers = ("delta_uploaded", "delta_upload_failed", "delta_upload_stale")
    assert sum(len(heard.of(event)) for event in answers) == len(heard.of("delta_upload_queued"))
    assert heard.names[-1] == "train_end"


def test_a_worker_without_a_master_ends_the_run_with_a_reason(train, heard):
    with pytest.raises(RuntimeError, match="is the master running"):
        train(role="worker", worker="a", store="/shared", join_timeout_s=0.05)
    assert heard.of("train_end")[0]["outcome"] == "failed"


def test_only_who_trains_takes_part(settings):
    with pytest.raises(ValueError, match="'master' does not train; accepted: single, worker"):
        DiLoCo(settings(role="master", store="/s"), "/s")
    with pytest.raises(ValueError, match="cannot be opened"):
        DiLoCo(settings(), "nosuch://x")
