"""A resumed run goes on exactly as if it had never stopped."""

import pytest
import torch
from torch import nn

from trainer.attempts import AttemptLog, begin_attempt, read_record
from trainer.checkpoint import CheckpointError, CheckpointManager
from trainer.schedule import make_scheduler


def _losses(heard):
    return [(step["step"], step["loss"], step["lr"], step["samples"]) for step in heard.of("train_step")]


def _warm(optimizer):
    return make_scheduler(optimizer, warmup_steps=3, decay_steps=20)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accumulation_steps": 4},
        {"workers": 2},
        {"scheduler": _warm},
        {"scheduler": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=20)},
        {"precision": "fp16", "accumulation_steps": 2},
        {"precision": "bf16", "optimizer": torch.optim.Adagrad},
    ],
    ids=["plain", "accumulation", "workers", "warmup", "onecycle", "fp16", "bf16"],
)
@pytest.mark.parametrize("stop", [5, 6])  # in the middle of an epoch of 6 batches, and at its end
def test_losses_equal_those_of_an_uninterrupted_run(make_run, quiet_logger, heard, tmp_path, options, stop):
    whole = make_run(logger=quiet_logger, max_steps=13, **options)
    whole.fit()
    expected = _losses(heard)
    heard.events.clear()

    manager = CheckpointManager(tmp_path)
    make_run(logger=quiet_logger, max_steps=stop, checkpoints=manager, **options).fit()
    torch.rand(17)  # another process has drawn other numbers
    resumed = make_run(logger=quiet_logger, max_steps=13, checkpoints=manager, resume=True, **options)
    resumed.fit()
    assert _losses(heard) == expected
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name])


def test_events_of_a_resumed_run(make_run, quiet_logger, heard, tmp_path):
    manager, record = CheckpointManager(tmp_path / "c"), tmp_path / "run.json"

    def attempt(**options):
        log = AttemptLog(record, begin_attempt(read_record(record), environ={}))
        return make_run(logger=quiet_logger, checkpoints=manager, attempts=log, **options).fit()

    class Die:
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if trainer.step == 7:
                raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        attempt(max_steps=9, checkpoint_every_steps=5, callbacks=[Die()])
    first = heard.of("train_end")[0]
    assert heard.names[5:9] == ["train_step", "checkpoint", "train_step", "train_step"]
    saved = heard.of("checkpoint")[0]
    assert saved["path"].endswith("step_000000000005.pt")
    assert saved["size_bytes"] > 0
    kept_s = sum(step["step_s"] for step in heard.of("train_step")[:5])
    run_id = heard.of("train_start")[0]["run_id"]

    heard.events.clear()
    result = attempt(max_steps=9, checkpoint_every_steps=5, resume=True)
    assert heard.names[:3] == ["checkpoint_restore", "train_start", "train_step"]
    assert heard.of("checkpoint_restore")[0]["step"] == 5
    (start,) = heard.of("train_start")
    assert (start["run_id"], start["attempt"]) == (run_id, 1)
    assert (start["start_step"], start["samples"], start["last_step_reached"]) == (5, 20, 7)
    assert start["prior_elapsed_s"] == pytest.approx(first["elapsed_s"], rel=0.2)
    assert start["prior_kept_s"] == pytest.approx(kept_s, rel=0.3)
    assert [step["step"] for step in heard.of("train_step")] == [6, 7, 8, 9]
    assert [step["samples"] for step in heard.of("train_step")] == [24, 28, 32, 36]
    assert (result.start_step, result.steps, result.attempt) == (5, 9, 1)
    assert heard.names[-2:] == ["checkpoint", "train_end"]
    assert heard.of("train_end")[0]["steps"] == 9
    assert read_record(record).last_step_reached == 9


def test_a_torn_checkpoint_falls_back_to_the_one_before(make_run, quiet_logger, heard, tmp_path):
    manager = CheckpointManager(tmp_path)
    make_run(logger=quiet_logger, max_steps=4, checkpoint_every_steps=2, checkpoints=manager).fit()
    torn = manager.path_of(4)
    torn.write_bytes(torn.read_bytes()[:100])
    expected = _losses(heard)
    heard.events.clear()
    make_run(logger=quiet_logger, max_steps=4, checkpoints=manager, resume=True).fit()
    assert _losses(heard) == expected[2:]
    assert heard.of("checkpoint_restore")[0]["step"] == 2


def test_resuming_a_finished_run_does_nothing(make_run, quiet_logger, heard, tmp_path):
    manager = CheckpointManager(tmp_path)
    make_run(logger=quiet_logger, max_steps=2, checkpoints=manager).fit()
    heard.events.clear()
    result = make_run(logger=quiet_logger, max_steps=2, checkpoints=manager, resume=True).fit()
    assert heard.names == ["checkpoint_restore", "train_start", "train_end"]
    assert (result.outcome, result.steps, result.loss) == ("completed", 2, None)


def test_nothing_to_resume_starts_over_with_a_warning(make_run, quiet_logger, heard, tmp_path):
    make_run(logger=quiet_logger, max_steps=1, checkpoints=CheckpointManager(tmp_path), resume=True).fit()
    assert heard.of("train_start")[0]["start_step"] == 0


def test_a_checkpoint_of_another_model_is_told_in_one_line(make_run, quiet_logger, heard, tmp_path):
    manager = CheckpointManager(tmp_path)
    make_run(logger=False, max_steps=1, checkpoints=manager).fit()
    other = make_run(logger=quiet_logger, max_steps=2, checkpoints=manager, resume=True)
    other.model.add_module("3", nn.Linear(1, 1))
    with pytest.raises(CheckpointError, match="does not fit") as caught:
        other.fit()
    assert "\n" not in str(caught.value)
    assert heard.names == ["train_end"]


def test_a_checkpoint_of_more_ranks_is_told_with_both_numbers(make_run, tmp_path):
    manager = CheckpointManager(tmp_path)
    make_run(logger=False, max_steps=1, checkpoints=manager).fit()
    state = manager.load(manager.path_of(1))
    manager.save(1, {**state, "ranks": state["ranks"] * 2})
    with pytest.raises(CheckpointError, match="2 ranks have written it and 1 want to read it; accepted: 2"):
        make_run(logger=False, max_steps=2, checkpoints=manager, resume=True).fit()
