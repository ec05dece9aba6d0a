"""A stream of all events gives exactly the catalog's metrics, the same on both roads."""

import io
import math
from itertools import accumulate

import pytest
from prometheus_client.parser import text_fd_to_metric_families

from otel_training import catalog
from otel_training.prometheus import RunCollector, render
from trainer.events import EVENTS

NOT_OF_THE_TRAINER = {"device_stats"}  # what DeviceStatsMonitor emits has tests of its own

STREAM = [
    ("shape_profile", {"device_type": "cuda", "precision": "bf16", "alignment": 8, "warning_count": 1}),
    ("shape_warning", {
        "field": "d_model", "value": 30, "suggested": 32, "alignment": 8, "code": "c", "reason": "r",
    }),
    ("compile", {"enabled": False, "duration_s": 0.25, "reason": "no compiler"}),
    ("ooo_backprop", {"enabled": True, "reason": "", "streams": 2, "stages": ["a", "b"]}),
    ("checkpoint_restore", {"step": 3, "path": "p", "duration_s": 0.1}),
    ("train_start", {
        "start_step": 3, "target_step": 10, "device": "cuda:0", "precision": "bf16", "accumulation_steps": 2,
        "parameters": 1000, "samples": 12, "tokens": 120, "micro_batches": 6, "shape_alignment": 8,
        "shape_warning_count": 1, "ooo_backprop": {"enabled": True, "reason": "", "streams": 2, "stages": []},
        "run_id": "run-1", "attempt": 1, "world_size": 2, "time_unix_s": 1.8e9, "prior_elapsed_s": 10.0,
        "prior_kept_s": 5.0, "last_step_reached": 4, "flops_per_token": 1e9, "peak_flops_per_s": 1e12,
    }),
    *[
        ("train_step", {
            "step": step, "loss": 4.0 / step, "grad_norm": 0.5, "lr": 0.001, "steps_per_sec": 1.0,
            "samples_per_sec": 4.0, "tokens_per_sec": 40.0, "samples": 4 * step, "tokens": 40 * step,
            "micro_batches": 2 * step, "data_wait_s": 0.05, "step_s": 0.5, "memory_bytes": 4096,
            "accuracy": 0.75,
        })
        for step in (4, 5, 6)
    ],
    ("optimizer_step_skipped", {"step": 7, "reason": "overflow"}),
    ("train_step", {"step": 7, "loss": math.nan, "grad_norm": math.inf}),
    ("train_step", {"step": 8, "loss": 0.5, "grad_norm": 0.5}),
    ("validation_start", {"step": 8, "stage": "validation"}),
    ("validation_end", {"step": 8, "stage": "validation", "loss": 0.6, "batches": 3, "duration_s": 0.3}),
    ("checkpoint", {"step": 8, "path": "p", "duration_s": 0.2, "size_bytes": 5000}),
    ("checkpoint", {"step": 8, "path": "p", "duration_s": 0.2, "error": "OSError: full"}),
    ("outer_step", {
        "outer_step": 1, "deltas_found": 3, "deltas_included": 2, "deltas_rejected": 1, "duration_s": 1.5,
    }),
    ("outer_sync", {"step": 8, "generation": 1, "adopted": True, "duration_s": 0.25}),
    ("delta_upload_queued", {"step": 8, "base_outer_step": 1}),
    ("delta_uploaded", {"step": 8, "duration_s": 0.5, "size_bytes": 100}),
    ("delta_upload_queued", {"step": 9, "base_outer_step": 1}),
    ("delta_upload_failed", {"step": 9, "error": "OSError: gone"}),
    ("delta_upload_skipped", {"step": 9, "reason": "queue_full"}),
    ("delta_upload_queued", {"step": 10, "base_outer_step": 1}),
    ("delta_upload_stale", {"step": 10, "generation": 2}),
    ("delta_upload_queued", {"step": 11, "base_outer_step": 1}),
    ("hook_failed", {"hook": "WandbHook", "failed_event": "train_step", "error": "E: e", "count": 1}),
    ("my_event", {"speed": 3.5, "note": "text"}),
    ("train_end", {
        "steps": 8, "elapsed_s": 9.0, "loss": 0.5, "outcome": "failed", "error": "RuntimeError: broke",
        "time_unix_s": 1.8e9,
    }),
]  # fmt: skip


@pytest.fixture
def streamed(capture, clock):
    clock.advance(0.5)
    for event, payload in STREAM:
        capture.hook.on_event(event, payload)
        clock.advance(0.75)
    return capture


def on_the_page(capture):
    """Every sample as {(name, labels without the identity): value}."""
    body, _ = render(RunCollector(capture.hook._to.run.state, ("run-1", "run-1", "0")), None)
    identity = {attribute.label for attribute in catalog.IDENTITY}
    return {
        (
            sample.name,
            frozenset((k, v) for k, v in sample.labels.items() if k not in identity and v),
        ): sample.value
        for family in text_fd_to_metric_families(io.StringIO(body.decode()))
        for sample in family.samples
    }


def from_otel(capture):
    """Every point in the page's spelling."""
    metrics = {metric.name: metric for metric in catalog.METRICS}
    found = {}
    for (name, attributes), point in capture.points().items():
        page_name = catalog.prometheus_name(metrics[name])
        labels = frozenset((key.replace(".", "_"), str(value)) for key, value in attributes)
        if metrics[name].kind != "histogram":
            found[page_name, labels] = point.value
            continue
        bounds = [*map(str, point.explicit_bounds), "+Inf"]
        for bound, count in zip(bounds, accumulate(point.bucket_counts), strict=True):
            found[page_name + "_bucket", labels | {("le", bound)}] = count
        found[page_name + "_count", labels] = point.count
        found[page_name + "_sum", labels] = point.sum
    return found


def test_the_stream_has_every_event_and_field_of_the_trainer():
    sent = {}
    for event, payload in STREAM:
        sent.setdefault(event, set()).update(payload)
    assert set(EVENTS) - set(sent) == NOT_OF_THE_TRAINER
    missing = {name: set(event.fields) - sent.get(name, set()) for name, event in EVENTS.items()}
    assert {
        name: fields for name, fields in missing.items() if fields and name not in NOT_OF_THE_TRAINER
    } == {}


def test_the_stream_gives_exactly_the_metrics_that_its_events_feed(streamed):
    events = {event for event, _ in STREAM}
    expected = {metric.name for metric in catalog.METRICS if events & set(metric.events)}
    expected.add(catalog.BRIDGE_DROPS.name)  # the note of my_event
    assert {name for name, _ in streamed.points()} == expected


def test_both_roads_say_the_same(streamed):
    otel, page = from_otel(streamed), on_the_page(streamed)
    assert otel.keys() == page.keys()
    assert {
        key: (otel[key], page[key]) for key in otel if otel[key] != pytest.approx(page[key], rel=1e-9)
    } == {}


def test_the_numbers_of_the_stream(streamed):
    value = streamed.value
    assert value("training.steps") == 5
    assert value("training.step.replays") == 1
    assert value("training.samples") == 12
    assert value("training.tokens") == 120
    assert value("training.micro_batches") == 6
    assert value("training.step.skips") == 1
    assert value("training.shape.warnings") == 1
    assert value("training.nonfinite.values") == 2
    assert value("training.restarts") == 1
    assert value("training.checkpoints") == 2
    assert value("training.checkpoints", error_type="OSError") == 1
    assert value("training.runs", training_run_outcome="failed", error_type="RuntimeError") == 1
    assert value("training.delta.active_uploads") == 1
    assert value("training.bridge.events") == len(STREAM)
    assert value("training.bridge.events", training_event_outcome="ignored") == 1
    assert value("training.time", training_state="outer_sync") == 0.25
    assert value("training.time") == pytest.approx(0.5 + 0.75 * (len(STREAM) - 1))
