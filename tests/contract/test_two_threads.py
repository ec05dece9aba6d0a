"""Two threads emit through one log and one hook: no line is torn, and no count is lost."""

import io
import sys
import threading

import orjson
import pytest

from trainer.metrics import MetricLogger

EVENTS_PER_THREAD = 50_000


@pytest.fixture
def frequent_switches():
    """Lets threads take turns as often as the interpreter can."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before_s)


@pytest.mark.timeout(120)  # 100 000 events, on a machine that may be busy
def test_a_hundred_thousand_events_from_two_threads(tmp_path, telemetry_capture, frequent_switches):
    path = tmp_path / "metrics.jsonl"
    logger = MetricLogger(level="ERROR", json_file=path, stream=io.StringIO(), hooks=[telemetry_capture.hook])
    logger.emit("train_start", {"start_step": 0, "target_step": EVENTS_PER_THREAD})

    def train():
        for step in range(1, EVENTS_PER_THREAD + 1):
            logger.emit("train_step", {"step": step, "loss": 1.0, "lr": 0.1, "tokens": 7 * step})

    def make_outer_steps():
        for number in range(1, EVENTS_PER_THREAD + 1):
            payload = {"outer_step": number, "deltas_found": 2, "deltas_included": 2, "deltas_rejected": 1}
            logger.emit("outer_step", payload)

    threads = [threading.Thread(target=each) for each in (train, make_outer_steps)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    steps = [line["step"] for line in lines if line["event"] == "train_step"]
    outer_steps = [line["outer_step"] for line in lines if line["event"] == "outer_step"]
    assert steps == outer_steps == list(range(1, EVENTS_PER_THREAD + 1))
    assert len(lines) == 2 * EVENTS_PER_THREAD + 1
    assert logger.hook_failure_counts == {}
    value = telemetry_capture.value
    assert value("training.steps") == EVENTS_PER_THREAD
    assert value("training.tokens") == 7 * EVENTS_PER_THREAD
    assert value("training.outer.steps") == EVENTS_PER_THREAD
    assert value("training.outer.deltas", training_delta_disposition="included") == 2 * EVENTS_PER_THREAD
    assert value("training.outer.deltas", training_delta_disposition="rejected") == EVENTS_PER_THREAD
    assert value("training.bridge.events", training_event_name="outer_step") == EVENTS_PER_THREAD
    assert value("training.bridge.events", training_event_name="train_step") == EVENTS_PER_THREAD
    logger.close()
