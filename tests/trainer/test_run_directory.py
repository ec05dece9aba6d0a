"""Folders of runs."""

from pathlib import Path

import pytest

from trainer.attempts import RunRecord, write_record
from trainer.problems import ConfigError
from trainer.run_directory import RunDirectory, check_run_directory, open_run_directory


def _new(template):
    return open_run_directory(template, resume=False, overwrite=False)


def _hold_run(directory, step=5):
    write_record(directory.record_path, RunRecord("abc", last_step_reached=step))


def test_each_new_run_gets_the_next_number(tmp_path):
    template = tmp_path / "runs" / "demo-{n}"
    assert [_new(template).path.name for _ in range(3)] == ["demo-1", "demo-2", "demo-3"]
    (tmp_path / "runs" / "demo-9").mkdir()
    assert _new(template).path.name == "demo-10"


def test_resume_takes_the_latest_that_holds_a_run(tmp_path):
    template = tmp_path / "demo-{n}"
    for _ in range(10):
        _hold_run(_new(template))
    _new(template)  # claimed, but never begun
    assert open_run_directory(template, resume=True, overwrite=False).path.name == "demo-10"


@pytest.mark.parametrize("name", ["run", "run-{n}"])
def test_nothing_to_resume(tmp_path, name):
    with pytest.raises(ConfigError, match="nothing to resume"):
        open_run_directory(tmp_path / name, resume=True, overwrite=False)


def test_a_run_is_not_mixed_with_another(tmp_path):
    _hold_run(_new(tmp_path / "run"), step=42)
    with pytest.raises(ConfigError, match=r"already holds a run \(run abc, step 42\).*--resume.*--overwrite"):
        _new(tmp_path / "run")
    assert open_run_directory(tmp_path / "run", resume=False, overwrite=True).path == tmp_path / "run"
    assert open_run_directory(tmp_path / "run", resume=True, overwrite=False).record().run_id == "abc"


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").touch()
    for name in ("file", "file/run", "file/run-{n}"):
        with pytest.raises(ConfigError, match=r"run\.directory: cannot write to"):
            _new(tmp_path / name)


def test_a_null_byte_in_the_name_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"run\.directory: .* null byte"):
        _new(tmp_path / "a\0b")


def test_abandoning_removes_only_what_was_just_made(tmp_path):
    made = _new(tmp_path / "run")
    (made.path / "metrics.jsonl").touch()
    made.abandon()
    assert not made.path.exists()
    made.path.mkdir()
    _new(made.path).abandon()
    assert made.path.exists()


def test_a_damaged_record_is_told(tmp_path):
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ConfigError, match="not a run record"):
        RunDirectory(tmp_path).record()


def test_files_lie_in_the_folder_unless_they_are_absolute(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    assert directory.file(None) is None
    assert directory.file(tmp_path / "else.log") == tmp_path / "else.log"
    assert directory.file(Path("x.log")) == tmp_path / "run" / "x.log"


def test_checking_says_the_same_and_changes_nothing(tmp_path):
    def check(name, resume=False, overwrite=False):
        return check_run_directory(tmp_path / name, resume=resume, overwrite=overwrite)

    assert check("new/run-{n}") == tmp_path / "new" / "run-{n}"
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="nothing to resume"):
        check("run-{n}", resume=True)
    _hold_run(_new(tmp_path / "run-1"))
    assert check("run-{n}", resume=True) == tmp_path / "run-1"
    assert check("run-1", overwrite=True) == tmp_path / "run-1"
    with pytest.raises(ConfigError, match="already holds a run"):
        check("run-1")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write to"):
        check("file/run")
