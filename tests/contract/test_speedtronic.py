"""The events of speedtronic 2.0.0: what a real run wrote, and the live package."""

import json
from pathlib import Path

import pytest

from otel_training.testing import TelemetryCapture
from trainer import MetricLogger

RECORDED = Path(__file__).parents[1] / "data" / "speedtronic-2.0.0-cpu.jsonl"


def recorded_events():
    for line in RECORDED.read_text(encoding="utf-8").splitlines():
        payload = json.loads(line)
        yield payload.pop("event"), payload


def replay(deliver, clock):
    """Deliver what was recorded, at the moments at which it was."""
    elapsed_s = 0.0
    for event, payload in recorded_events():
        if event != "train_end":  # whose elapsed_s is fit's own
            clock.advance(payload["elapsed_s"] - elapsed_s)
            elapsed_s = payload["elapsed_s"]
        deliver(event, payload)


def assert_the_recorded_run_reads_right(capture):
    value = capture.value
    assert value("training.steps") == 12
    assert value("training.step.current") == 12
    assert value("training.step.duration") == 12
    assert value("training.samples") == 48
    assert value("training.tokens") == 768
    assert value("training.micro_batches") == 24
    assert value("training.checkpoints") == 3
    assert value("training.checkpoint.last_step") == 12
    assert value("training.model.parameters") == 26912
    assert value("training.shape.alignment") == 24
    assert value("training.ooo_backprop.enabled") == 0
    assert value("training.runs", training_run_outcome="completed") == 1
    assert value("training.run.active") == 0
    assert value("training.custom") is None
    assert value("training.bridge.drops") is None
    assert value("training.bridge.events", training_event_outcome="handled") == len(list(recorded_events()))


def test_a_recorded_run_through_the_hook(capture, clock):
    replay(capture.hook.on_event, clock)
    assert_the_recorded_run_reads_right(capture)
    events = list(recorded_events())
    wall_s = max(payload["elapsed_s"] for event, payload in events if event != "train_end")
    assert capture.value("training.time") == pytest.approx(wall_s)
    # Their rates are means since the start; ours is over the same 0.9 s here, and so must come out alike.
    last = [payload for event, payload in events if event == "train_step"][-1]
    assert capture.value("training.throughput.tokens") == pytest.approx(last["tokens_per_sec"], rel=0.05)


def test_a_recorded_run_through_our_log(capture, clock, tmp_path):
    path = tmp_path / "run.jsonl"
    with MetricLogger(file=tmp_path / "run.log", json_file=path, hooks=[capture.hook]) as logger:
        replay(logger.emit, clock)
        assert_the_recorded_run_reads_right(capture)
    written = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert written == [{"event": event, **payload} for event, payload in recorded_events()]


# ------------------------------------------------------------------------------------------ the live package


def config(tmp_path, **sections):
    return {
        "run": {"max_steps": 6, "device": "cpu", "output_dir": str(tmp_path)},
        "model": {"vocab_size": 64, "max_seq_len": 16, "n_layer": 1, "n_head": 2, "d_model": 16},
        "data": {
            "num_tokens": 4000, "block_size": 8, "micro_batch_size": 2, "target_batch_size": 4,
        },
        "checkpoint": {"every_steps": 4},
        "shape_validation": {"alignment": 24, "warn_on_cpu": True},
        **sections,
    }  # fmt: skip


@pytest.fixture
def capture_now():
    """A capture under the machine's own clock."""
    capture = TelemetryCapture(run_id="run-1")
    yield capture
    capture.close()


@pytest.fixture
def build(tmp_path):
    runtime = pytest.importorskip("speedtronic.runtime")

    def build(hook, resume=False, **sections):
        trainer, _ = runtime.build_runtime(config(tmp_path, **sections), resume=resume)
        trainer.logger.hooks.append(hook)
        return trainer

    return build


def test_a_live_run(build, capture_now):
    value = capture_now.value
    result = build(capture_now.hook).fit()
    assert result.steps == value("training.steps") == value("training.step.duration") == 6
    assert value("training.samples") == result.samples
    assert value("training.tokens") == result.tokens
    assert value("training.micro_batches") == 12
    assert value("training.loss") == pytest.approx(result.final_loss)
    assert value("training.runs", training_run_outcome="completed") == 1
    assert value("training.bridge.events", training_event_outcome="failed") is None
    assert {span.name for span in capture_now.spans()} >= {"training.run", "training.window"}


def test_a_live_run_whose_log_skips_steps(build, capture_now):
    build(capture_now.hook, logging={"every_steps": 2}).fit()
    assert capture_now.value("training.steps") == 6
    assert capture_now.value("training.micro_batches") == 12


def test_a_live_run_that_is_resumed(build, capture_now):
    build(lambda event, payload: None).fit(max_steps=4)
    result = build(capture_now.hook, resume=True).fit()
    assert result.steps == 6
    assert capture_now.value("training.steps") == 2
    assert capture_now.value("training.step.current") == 6
    # What the checkpoint held is not told, so counting begins with the first total seen.
    assert capture_now.value("training.samples") == 4
    assert capture_now.value("training.micro_batches") == 4


def test_a_live_run_that_fails_is_ended_by_the_close(build, clock):
    capture = TelemetryCapture(run_id="run-1")

    def fail(event, payload):
        if payload.get("step") == 3:
            raise KeyboardInterrupt  # their log catches every Exception of a hook

    trainer = build(capture.hook)
    trainer.logger.hooks.append(fail)
    with pytest.raises(KeyboardInterrupt) as error:
        trainer.fit()
    assert capture.value("training.run.active") == 1
    capture.hook.close(error.value)
    (run,) = capture.spans("training.run")
    assert run.attributes["training.step.final"] == 3
    assert run.attributes["training.run.outcome"] in ("failed", "interrupted")
    capture.close()
