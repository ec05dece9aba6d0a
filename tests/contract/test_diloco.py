"""Real DiLoCo runs: their events in JSON, in OpenTelemetry and on the page, whatever deltas run into."""

import io
import json

import fsspec
import pytest
import torch
from fsspec.implementations.local import LocalFileSystem
from prometheus_client.parser import text_string_to_metric_families

from otel_training.catalog import spans
from otel_training.prometheus import RunCollector, render
from trainer.config import load_config
from trainer.diloco.objects import GlobalWeights, read_newest_globals, read_parameters, write_globals
from trainer.diloco.store import Store
from trainer.events import EVENTS
from trainer.runtime import build_logger, build_model, build_runtime, open_run

INNER_STEPS = 4


class Refusing(LocalFileSystem):
    """Takes every delta but that of step 8."""

    protocol = "refusing"

    def pipe_file(self, path, value, **kwargs):
        if ".s000000000008." in path:
            raise ConnectionError("planted")
        super().pipe_file(path, value, **kwargs)


class Overtaking(LocalFileSystem):
    """At the first delta other workers have just made an outer step, and the upload fails."""

    protocol = "overtaking"

    def pipe_file(self, path, value, **kwargs):
        if ".s000000000004." in path:
            store = Store(f"file://{path.partition('/deltas/')[0]}")
            newest = read_newest_globals(store)
            if newest.generation == 0:
                write_globals(store, GlobalWeights(1, newest.tensors))
            raise ConnectionError("planted")
        super().pipe_file(path, value, **kwargs)


@pytest.fixture
def configure(tmp_path):
    """Makes the configuration of a tiny run of 12 steps, with a delta due every 4."""
    torch.set_num_threads(1)  # a tiny model: a second thread only waits
    (tmp_path / "text.txt").write_bytes(b"the quick brown fox jumps over the lazy dog. " * 80)
    for file_system in (Refusing, Overtaking):
        fsspec.register_implementation(file_system.protocol, file_system, clobber=True)

    def make(protocol, **diloco):
        settings = {
            "store": f"{protocol}://{tmp_path}/store",
            "inner_steps": INNER_STEPS,
            "poll_s": 0.01,
            "upload_backoff_s": 0.01,
            **diloco,
        }
        return load_config(
            None,
            {
                "model": {"layers": 1, "width": 16, "heads": 2, "context": 8},
                "data": {"paths": [str(tmp_path / "text.txt")], "batch_size": 4},
                "train.max_steps": 3 * INNER_STEPS,
                "run.directory": str(tmp_path / "run"),
                "diloco": settings,
            },
        )

    return make


@pytest.fixture
def train(telemetry_capture, tmp_path):
    """Trains as configured; returns the events of the JSON lines by name, and the page at the end."""
    loggers = []

    def run(config):
        opened = open_run(config)
        logger = build_logger(config, run=opened, stream=io.StringIO())
        loggers.append(logger)
        logger.hooks.append(telemetry_capture.hook)
        trainer, _ = build_runtime(config, run=opened, logger=logger)
        trainer.fit()
        page, _ = render(RunCollector(telemetry_capture.hook._to.run.state, ("r", "r", "0")), None)
        events = {}
        for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
            event = json.loads(line)
            events.setdefault(event["event"], []).append(event)
        return events, page.decode()

    yield run
    for logger in loggers:
        logger.close()


def _on_page(page, name, **labels):
    samples = [
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return sum(samples) if samples else None


def _assert_telemetry_agrees(events, page, capture):
    """Hold both roads to what the JSON lines say."""
    for name, told in events.items():
        assert EVENTS[name].required <= set(told[0]), name
        assert capture.value("training.bridge.events", training_event_name=name) == len(told)
    for outcome in ("uploaded", "failed", "skipped"):
        event = "delta_uploaded" if outcome == "uploaded" else f"delta_upload_{outcome}"
        count = len(events.get(event, [])) or None
        assert capture.value("training.delta.uploads", training_delta_outcome=outcome) == count
        assert _on_page(page, "training_delta_uploads_total", training_delta_outcome=outcome) == count
    stale = len(events.get("delta_upload_stale", [])) or None
    assert capture.value("training.delta.stale") == stale
    assert _on_page(page, "training_delta_stale_total") == stale
    queued = [event["step"] for event in events["delta_upload_queued"]]
    assert capture.value("training.delta.active_uploads") == 0
    assert capture.value("training.delta.upload.duration") == len(queued)
    paused_s = sum(event["duration_s"] for event in events["outer_sync"])
    assert capture.value("training.time", training_state="outer_sync") == pytest.approx(paused_s)
    assert _on_page(page, "training_time_seconds_total", training_state="outer_sync") == pytest.approx(
        paused_s
    )
    (run,) = capture.spans("training.run")
    uploads = capture.spans("training.delta.upload")
    assert sorted(span.attributes[spans.STEP.name] for span in uploads) == sorted(queued)
    for span in uploads + capture.spans("training.outer_step"):
        assert span.parent.span_id == run.context.span_id


def test_a_worker_and_its_master_in_one_process(configure, train, telemetry_capture):
    events, page = train(configure("refusing", role="single", overlap=False, upload_attempts=2))
    assert [event["step"] for event in events["delta_upload_queued"]] == [4, 8, 12]
    assert [event["step"] for event in events["delta_uploaded"]] == [4, 12]
    assert [event["step"] for event in events["delta_upload_failed"]] == [8]
    assert [event["outer_step"] for event in events["outer_step"]] == [1, 2]
    _assert_telemetry_agrees(events, page, telemetry_capture)
    assert telemetry_capture.value("training.outer.steps") == 2
    assert _on_page(page, "training_outer_steps_total") == 2
    assert telemetry_capture.value("training.outer.step.current") == 2
    assert telemetry_capture.value("training.outer.deltas", training_delta_disposition="included") == 2
    assert telemetry_capture.value("training.outer.step.duration") == 2
    assert len(telemetry_capture.spans("training.outer_step")) == 2


def test_a_worker_that_is_overtaken_and_then_left_alone(configure, train, telemetry_capture, tmp_path):
    config = configure(
        "overtaking",
        role="worker",
        worker="a",
        overflow="skip",
        upload_attempts=1000,
        round_timeout_s=0.1,
        final_timeout_s=0.2,
    )
    weights = read_parameters(build_model(config))
    write_globals(Store(f"file://{tmp_path}/store"), GlobalWeights(0, weights))
    events, page = train(config)
    assert events["delta_upload_stale"][0]["generation"] == 0
    assert {event["reason"] for event in events["delta_upload_skipped"]} == {"upload_in_flight"}
    assert events["delta_uploaded"]
    assert events["outer_sync"][-1]["generation"] == 1
    _assert_telemetry_agrees(events, page, telemetry_capture)
