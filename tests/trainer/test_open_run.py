"""A run before it is built."""

import pytest
import torch

from trainer.attempts import RunRecord, write_record
from trainer.config import load_config
from trainer.open_run import OpenRun, open_run, pick_run_device
from trainer.problems import ConfigError
from trainer.ranks import Ranks
from trainer.run_directory import RunDirectory


@pytest.fixture
def config(tmp_path):
    def make(name="run", **run):
        values = {f"run.{key}": value for key, value in run.items()}
        return load_config(None, {"run.directory": str(tmp_path / name), "run.device": "cpu", **values})

    return make


def _leave_run(folder, **fields):
    folder.mkdir(parents=True, exist_ok=True)
    write_record(folder / "run.json", RunRecord("before", **fields))


def test_a_new_run(config, tmp_path):
    run = open_run(config())
    assert (run.directory.path, run.resumes, run.ranks) == (tmp_path / "run", False, Ranks())
    assert run.attempt.number == 0


@pytest.mark.parametrize("name", ["run", "run-{n}"])
@pytest.mark.parametrize("asked_for", [{}, {"overwrite": True}, {"resume": True}])
@pytest.mark.parametrize("launcher", ["TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"])
def test_a_restarted_attempt_goes_on_with_its_run(config, tmp_path, monkeypatch, name, asked_for, launcher):
    folder = tmp_path / name.replace("{n}", "4")
    _leave_run(folder, attempt=0, elapsed_s=3.0, last_step_reached=7)
    monkeypatch.setenv(launcher, "1")
    run = open_run(config(name, **asked_for))
    assert (run.directory.path, run.resumes) == (folder, True)
    assert (run.attempt.run_id, run.attempt.number, run.attempt.last_step_reached) == ("before", 1, 7)
    assert (folder / "run.json").exists()


def test_a_restarted_attempt_that_had_not_begun_begins(config, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    run = open_run(config("run-{n}"))
    assert (run.directory.path, run.resumes, run.attempt.number) == (tmp_path / "run-1", False, 2)


def test_a_first_attempt_is_no_restart(config, tmp_path, monkeypatch):
    _leave_run(tmp_path / "run")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    with pytest.raises(ConfigError, match="already holds a run"):
        open_run(config())


def test_overwriting_removes_the_logs_of_all_ranks(config, tmp_path):
    _leave_run(tmp_path / "run")
    for name in ("metrics.jsonl", "metrics.rank1.jsonl", "metrics.rank12.jsonl", "notes.txt"):
        (tmp_path / "run" / name).write_text("old")
    open_run(config(overwrite=True))
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]


def test_each_rank_has_a_log_of_its_own(config, tmp_path):
    attempt = open_run(config()).attempt
    names = [
        OpenRun(RunDirectory(tmp_path), attempt, ranks=Ranks(rank, 3)).json_file("metrics.jsonl").name
        for rank in range(3)
    ]
    assert names == ["metrics.jsonl", "metrics.rank1.jsonl", "metrics.rank2.jsonl"]
    assert OpenRun(RunDirectory(tmp_path), attempt, ranks=Ranks(1, 3)).json_file(None) is None


def test_the_device_of_a_rank(config):
    assert pick_run_device(config(), Ranks(1, 2, 1)) == torch.device("cpu")
    with pytest.raises(ConfigError, match=r"run\.device: 'cuda:1' is one device for 2 ranks"):
        pick_run_device(config(device="cuda:1"), Ranks(1, 2, 1))
