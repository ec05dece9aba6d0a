"""What a run remembers beside its checkpoints."""

import json

import pytest

from trainer.attempts import Attempt, AttemptLog, RunRecord, begin_attempt, read_record, write_record

RECORD = RunRecord("abc", attempt=2, elapsed_s=60.0, last_step_reached=70)


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def test_a_record_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "run.json"
    assert read_record(path) is None
    write_record(path, RECORD)
    assert read_record(path) == RECORD
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"other": 1}'])
def test_a_damaged_record_is_an_error_that_names_it(tmp_path, text):
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"run\.json is not a run record"):
        read_record(path)


@pytest.mark.parametrize(
    ("record", "run_id", "environ", "expected"),
    [
        (None, "mine", {}, Attempt("mine")),
        (None, None, {"SLURM_JOB_ID": "7"}, Attempt("7")),
        (None, None, {"SLURM_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}, Attempt("7_3")),
        (None, None, {"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "7"}, Attempt("7")),
        (None, None, {"TORCHELASTIC_RUN_ID": "el", "SLURM_JOB_ID": "7"}, Attempt("el")),
        (None, None, {"OTEL_TRAINING_RUN_ID": "ot", "TORCHELASTIC_RUN_ID": "el"}, Attempt("ot")),
        (None, "mine", {"TORCHELASTIC_RESTART_COUNT": "4"}, Attempt("mine", 4)),
        (RECORD, None, {"SLURM_JOB_ID": "7"}, Attempt("abc", 3, 60.0, 70)),
        (RECORD, "mine", {}, Attempt("mine", 3, 60.0, 70)),
        (RECORD, None, {"SLURM_RESTART_COUNT": "9"}, Attempt("abc", 9, 60.0, 70)),
        (RECORD, None, {"SLURM_RESTART_COUNT": "x"}, Attempt("abc", 3, 60.0, 70)),
    ],
)
def test_the_next_attempt(record, run_id, environ, expected):
    assert begin_attempt(record, run_id, environ) == expected


def test_a_new_run_without_a_name_gets_one_of_its_own():
    assert begin_attempt(None, None, {}).run_id != begin_attempt(None, None, {}).run_id


def test_progress_is_written_now_and_then(tmp_path):
    path, clock = tmp_path / "run.json", Clock()
    log = AttemptLog(path, Attempt("abc", 3, 60.0, 70), clock)
    log.note(71, 1.0)
    assert not path.exists()
    clock.now_s = 5.0
    log.note(72, 2.0)
    assert json.loads(path.read_text()) == {
        "run_id": "abc",
        "attempt": 3,
        "elapsed_s": 62.0,
        "last_step_reached": 72,
    }
    log.note(80, 9.0)
    assert read_record(path).last_step_reached == 72
    log.note(80, 9.0, now=True)
    assert read_record(path).last_step_reached == 80


def test_the_highest_step_is_kept_after_a_step_back(tmp_path):
    log = AttemptLog(tmp_path / "run.json", Attempt("abc", 1, 0.0, 70))
    log.note(50, 1.0, now=True)
    assert read_record(tmp_path / "run.json").last_step_reached == 70


def test_a_note_that_cannot_be_written_costs_nothing_else(tmp_path, caplog):
    AttemptLog(tmp_path / "gone" / "run.json", Attempt("abc")).note(1, 1.0, now=True)
    assert "cannot write" in caplog.text
