"""Checkpoints are whole or absent."""

import errno
import io

import pytest
import torch

from trainer.checkpoint import CheckpointError, CheckpointManager


class FullDisk(io.FileIO):
    """A file on a disk that has room for 100 bytes."""

    def __init__(self, path):
        super().__init__(path, "w")

    def write(self, data):
        if self.tell() + len(data) > 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


STATE = {"weights": torch.arange(1000.0), "n": 3}


def test_what_was_saved_is_loaded(tmp_path):
    manager = CheckpointManager(tmp_path / "deep" / "er")
    saved = manager.save(5, STATE)
    assert saved.path.name == "step_000000000005.pt"
    assert saved.size_bytes == saved.path.stat().st_size
    path, state = manager.load_latest(pytest.fail)
    assert path == saved.path
    assert torch.equal(state["weights"], STATE["weights"])


def test_the_last_ones_are_kept(tmp_path):
    manager = CheckpointManager(tmp_path, keep_last=2)
    (tmp_path / "step_notes.txt").write_text("mine")
    for step in (5, 10, 15, 20):
        manager.save(step, {"n": step})
    assert [path.name[-6:] for path in manager.paths()] == ["015.pt", "020.pt"]
    assert (tmp_path / "step_notes.txt").exists()


def test_all_are_kept_on_request(tmp_path):
    manager = CheckpointManager(tmp_path, keep_last=None)
    for step in range(5):
        manager.save(step, {})
    assert len(manager.paths()) == 5


def test_a_later_file_does_not_push_out_the_one_just_written(tmp_path):
    manager = CheckpointManager(tmp_path, keep_last=1)
    manager.save(9, {"n": 9})
    written = manager.save(4, {"n": 4})
    assert written.path.exists()


def flip_a_bit_of_a_weight(path):
    content = bytearray(path.read_bytes())
    content[content.index(STATE["weights"].numpy().tobytes()) + 400] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-200]),
        flip_a_bit_of_a_weight,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"not a checkpoint at all"),
        lambda path: torch.save({"someone": "else's"}, path),
        lambda path: torch.save([1], path),
        lambda path: torch.save({"code": io.BytesIO}, path),
    ],
    ids=["torn", "bit", "empty", "text", "foreign", "list", "code"],
)
def test_torn_and_foreign_files_are_passed_over_with_a_warning(tmp_path, spoil):
    manager = CheckpointManager(tmp_path)
    good = manager.save(1, STATE).path
    spoil(manager.save(2, STATE).path)
    warnings = []
    path, _ = manager.load_latest(warnings.append)
    assert path == good
    assert len(warnings) == 1
    assert "step_000000000002.pt" in warnings[0]
    assert "\n" not in warnings[0]


def test_only_unreadable_files_are_no_reason_to_start_over(tmp_path):
    manager = CheckpointManager(tmp_path)
    manager.save(1, STATE).path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="none of the 1 checkpoints"):
        manager.load_latest(lambda _: None)


def test_nothing_there_is_none(tmp_path):
    assert CheckpointManager(tmp_path / "absent").load_latest(pytest.fail) is None


def test_a_full_disk_leaves_the_former_checkpoint_and_no_leftover(tmp_path):
    former = CheckpointManager(tmp_path).save(1, STATE)
    with pytest.raises(CheckpointError, match=r"cannot write checkpoint.*000002"):
        CheckpointManager(tmp_path, open_file=FullDisk).save(2, STATE)
    assert list(tmp_path.iterdir()) == [former.path]


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    (tmp_path / "step_000000000003.pt.tmp-12345").write_bytes(b"half")
    saved = CheckpointManager(tmp_path).save(4, {})
    assert list(tmp_path.iterdir()) == [saved.path]


def test_clear_removes_checkpoints_only(tmp_path):
    manager = CheckpointManager(tmp_path)
    manager.save(1, {})
    (tmp_path / "notes").touch()
    manager.clear()
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_keep_last_must_be_positive(tmp_path):
    with pytest.raises(ValueError, match="keep_last must be at least 1 or null"):
        CheckpointManager(tmp_path, keep_last=0)
