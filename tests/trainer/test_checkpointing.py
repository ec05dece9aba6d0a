"""When a run saves, and what becomes of a save that fails."""

import errno
import io

import pytest

from trainer.checkpoint import CheckpointManager


class FullDisk(io.FileIO):
    """A file on a disk without room, for checkpoints of the steps given."""

    def __init__(self, path, full_steps):
        super().__init__(path, "w")
        self.full = any(f"step_{step:012d}" in path.name for step in full_steps)

    def write(self, data):
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


def _manager(tmp_path, full_steps):
    return CheckpointManager(tmp_path, open_file=lambda path: FullDisk(path, full_steps))


def test_a_failed_save_costs_only_itself(make_run, quiet_logger, heard, tmp_path):
    manager = _manager(tmp_path, [2])
    result = make_run(logger=quiet_logger, max_steps=6, checkpoint_every_steps=2, checkpoints=manager).fit()
    saves = heard.of("checkpoint")
    assert [save["step"] for save in saves] == [2, 4, 6]
    assert [save.get("error") for save in saves] == ["OSError", None, None]
    assert "size_bytes" not in saves[0]
    assert all(save["duration_s"] > 0 for save in saves)
    assert (result.outcome, result.checkpoint_error) == ("completed", None)
    assert result.checkpoint == manager.path_of(6)


def test_a_failed_last_save_is_in_the_result(make_run, quiet_logger, heard, tmp_path):
    manager = _manager(tmp_path, [3])
    result = make_run(logger=quiet_logger, max_steps=3, checkpoints=manager).fit()
    assert "No space left" in result.checkpoint_error
    assert result.checkpoint is None
    assert heard.of("train_end")[0]["outcome"] == "completed"


def test_a_failed_save_at_the_last_step_is_tried_again(make_run, quiet_logger, heard, tmp_path):
    manager = _manager(tmp_path, [2])
    result = make_run(logger=quiet_logger, max_steps=2, checkpoint_every_steps=2, checkpoints=manager).fit()
    assert [save["error"] for save in heard.of("checkpoint")] == ["OSError", "OSError"]
    assert result.checkpoint_error is not None


def test_the_last_step_is_saved_once(make_run, quiet_logger, heard, tmp_path):
    manager = CheckpointManager(tmp_path)
    result = make_run(logger=quiet_logger, max_steps=4, checkpoint_every_steps=2, checkpoints=manager).fit()
    assert [save["step"] for save in heard.of("checkpoint")] == [2, 4]
    saved_s = sum(save["duration_s"] for save in heard.of("checkpoint"))
    assert saved_s == pytest.approx(result.time_by_state_s["checkpoint_save"])
