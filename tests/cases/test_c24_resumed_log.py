"""C24, wandb/wandb#9449: after a resume at an earlier step nothing is lost and no counter falls."""

import json

import pytest

from otel_training.testing import TelemetryCapture
from trainer import MetricLogger


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


def run(path, clock, steps, **start):
    """One process of a run: its own telemetry, the same log."""
    capture = TelemetryCapture(clock=clock, run_id="run-1")
    with MetricLogger(file=path.with_suffix(".log"), json_file=path, hooks=[capture.hook]) as logger:
        logger.emit("train_start", {"run_id": "run-1", **start})
        for step in steps:
            clock.advance(1.0)
            logger.emit("train_step", {"step": step, "tokens": 10 * step})
            if step == 3:
                logger.emit("checkpoint", {"step": 3, "path": "p"})
        seen = {
            name: capture.value(f"training.{name}")
            for name in ("steps", "step.current", "step.replays", "tokens", "restarts")
        }
    capture.close()
    return seen


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps(path):
    return [line["step"] for line in lines(path) if line["event"] == "train_step"]


def test_repeated_steps_are_added_and_counted_as_what_they_are(path, clock):
    first = run(path, clock, range(1, 6), start_step=0, attempt=0)
    second = run(path, clock, range(4, 7), start_step=3, attempt=1, tokens=30, last_step_reached=5)
    assert steps(path) == [1, 2, 3, 4, 5, 4, 5, 6]
    assert [line["attempt"] for line in lines(path) if line["event"] == "train_start"] == [0, 1]
    assert first == {"steps": 5, "step.current": 5, "step.replays": None, "tokens": 50, "restarts": 0}
    assert second == {"steps": 3, "step.current": 6, "step.replays": 2, "tokens": 30, "restarts": 1}


def test_a_step_lower_than_the_last_one_is_written_and_takes_nothing_away(path, capture):
    seen = []
    with MetricLogger(file=path.with_suffix(".log"), json_file=path, hooks=[capture.hook]) as logger:
        for step in (1, 5, 2, 3, 1, 6):
            logger.emit("train_step", {"step": step, "tokens": 10 * step})
            seen.append([capture.value(name) or 0 for name in ("training.steps", "training.tokens")])
    assert steps(path) == [1, 5, 2, 3, 1, 6]
    assert seen == sorted(seen)
    assert capture.value("training.bridge.events", training_event_outcome="failed") is None


def test_a_log_whose_last_line_was_cut_in_half_goes_on(path, clock):
    run(path, clock, range(1, 6), start_step=0)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    run(path, clock, range(4, 7), start_step=3)
    parsed = []
    for line in path.read_text().splitlines():
        try:
            parsed.append(json.loads(line))
        except json.JSONDecodeError:
            parsed.append(None)
    assert parsed.count(None) == 1
    after = parsed[parsed.index(None) + 1 :]
    assert [line["step"] for line in after if line["event"] == "train_step"] == [4, 5, 6]
