"""The table at the end."""

import io
import signal
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from trainer.result import TrainResult
from trainer.summary import summary_table

RESULT = TrainResult(
    outcome="interrupted", start_step=100, steps=350, first_loss=2.5, loss=1.25, elapsed_s=61.0, samples=10,
    tokens=1_234_567, micro_batches=9, tokens_per_sec=9876.5, step_p50_s=0.1234, step_p99_s=1.5, run_id="abc",
    attempt=2, time_by_state_s={"step": 60.0, "data_wait": 1.0, "compile": 0.0}, checkpoint=Path("c/step.pt"),
    signal=signal.SIGTERM,
)  # fmt: skip


def _text(result, files=()):
    stream = io.StringIO()
    Console(file=stream, width=120).print(summary_table(result, files))
    return stream.getvalue()


def test_what_a_reader_wants_to_know(tmp_path):
    written = tmp_path / "log.jsonl"
    written.touch()
    text = _text(RESULT, [written, tmp_path / "absent"])
    for part in (
        *["run abc, attempt 2", "interrupted by SIGTERM", "350 (250 in this attempt)", "1,234,567", "9,876"],
        *["2.500 -> 1.250", "p50 123.4 ms, p99 1.5 s", "61.0 s = step 60.0 s, data_wait 1.0 s", "c/step.pt"],
        "log.jsonl",
    ):
        assert part in text
    assert "absent" not in text
    assert "compile" not in text


def test_a_run_whose_time_was_up_says_so():
    at_target = replace(RESULT, outcome="completed", signal=None, target_step=350)
    assert "time was up" not in _text(at_target)
    short = _text(replace(at_target, target_step=1000))
    assert "completed: its time was up" in short
    assert "350 of 1,000 (250 in this attempt)" in short


def test_a_checkpoint_that_was_not_written_is_said():
    result = TrainResult(**{**RESULT.__dict__, "checkpoint_error": "OSError: [Errno 28] No space left"})
    assert "not written: OSError: [Errno 28] No space left" in _text(result)
