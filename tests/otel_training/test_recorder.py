"""Each event of the catalog, and what it leaves in the state."""

import logging
import math

import pytest
import torch

from otel_training import catalog
from otel_training.clock import Moment
from otel_training.identity import Identity
from otel_training.recorder import Recorder
from otel_training.state import State

METRICS = {metric.name.removeprefix("training."): metric for metric in catalog.METRICS}

START = {
    "start_step": 0, "target_step": 100, "device": "cuda:1", "precision": "bf16", "accumulation_steps": 4,
    "parameters": 1234, "samples": 0, "tokens": 0,
}  # fmt: skip
STEP = {"step": 1, "loss": 2.5, "lr": 0.001, "samples": 8, "tokens": 80, "micro_batches": 4}


class Bench:
    """A recorder under a clock that the test moves."""

    def __init__(self, clock, **identity):
        self.clock = clock
        self.state = State()
        self.recorder = Recorder(
            self.state, Identity(run_id="run-1", run_name="run-1", **identity), clock.now()
        )

    def send(self, event, payload=None, after_s=0.0, **fields):
        self.recorder.record(event, {**(payload or {}), **fields}, self.clock.advance(after_s))

    def start(self, after_s=0.0, **fields):
        self.send("train_start", START, after_s, **fields)

    def steps(self, first, last, every_s=1.0, **fields):
        for step in range(first, last + 1):
            self.send("train_step", STEP, every_s, **{"step": step, **fields})

    def get(self, name, *labels):
        return self.state.get(METRICS[name], *labels)

    def series(self, name):
        return self.state.values_of(METRICS[name])

    def count(self, name):
        return sum(sum(each.counts) for each in self.state.histograms_of(METRICS[name]).values())

    def sum(self, name):
        return sum(sum(each.sums) for each in self.state.histograms_of(METRICS[name]).values())

    def times(self):
        return {labels[0]: value for labels, value in self.series("time").items()}


@pytest.fixture
def bench(clock):
    return Bench(clock)


def test_every_event_of_the_catalog_is_handled(bench):
    for event in catalog.EVENTS:
        bench.send(event)
    assert set(bench.series("bridge.events")) == {(event, "handled") for event in catalog.EVENTS}


CASES = [
    # event, payload, {metric or (metric, *labels): value}
    ("train_start", START, {
        ("run.info", "bf16", "cuda", "4", "pytorch"): 1, "run.active": 1, "run.ranks": 1, "restarts": 0,
        "model.parameters": 1234, "step.current": 0, "step.target": 100,
    }),
    ("train_start", {**START, "framework": "speedtronic", "device": torch.device("cpu")}, {
        ("run.info", "bf16", "cpu", "4", "speedtronic"): 1,
    }),
    ("train_start", {"world_size": 8, "attempt": 2}, {
        ("run.info", None, None, None, "pytorch"): 1, "run.ranks": 8, "restarts": 2, "run.active": 1,
    }),
    ("train_start", {**START, "shape_alignment": 64, "shape_warning_count": 3, "ooo_backprop": {
        "enabled": True, "reason": "", "streams": 2, "stages": ["a"]}}, {
        "shape.alignment": 64, ("shape.warnings", "other"): 3, "ooo_backprop.enabled": 1,
        "ooo_backprop.streams": 2,
    }),
    ("train_step", STEP, {
        "steps": 1, "step.current": 1, "step.last_time": 1_800_000_000.0, "loss": 2.5, "learning_rate": 0.001,
        "samples": 8, "tokens": 80, "micro_batches": 4,
    }),
    ("train_step", {"step": 1, "microbatches": 4, "grad_norm": 0.5}, {
        "micro_batches": 4, "gradient.norm": 0.5,
    }),
    ("train_step", {"step": 1, "memory_bytes": 4096}, {"device.memory.usage": 4096}),
    ("train_end", {"steps": 7, "elapsed_s": 3.0, "loss": 1.5}, {
        ("runs", "completed", None): 1, "run.active": 0, "loss": 1.5, "steps": None, "step.current": None,
    }),
    ("train_end", {"outcome": "failed", "error": "ValueError: no"}, {("runs", "failed", "ValueError"): 1}),
    ("train_end", {"outcome": "failed", "error": "it broke"}, {("runs", "failed", "_OTHER"): 1}),
    ("train_end", {"outcome": "interrupted", "error": None}, {("runs", "interrupted", None): 1}),
    ("train_end", {"outcome": "melted"}, {("runs", "other", None): 1}),
    ("checkpoint", {"step": 5, "path": "p", "duration_s": 0.5, "size_bytes": 100}, {
        ("checkpoints", None): 1, "checkpoint.size": 100, "checkpoint.last_step": 5,
        "checkpoint.last_time": 1_800_000_000.0,
    }),
    ("checkpoint", {"step": 5, "path": "p", "error": "OSError: full"}, {
        ("checkpoints", "OSError"): 1, ("checkpoints", None): None, "checkpoint.last_step": None,
        "checkpoint.last_time": None,
    }),
    ("checkpoint_restore", {"step": 5, "path": "p", "duration_s": 0.5}, {
        "checkpoint.last_step": 5, ("checkpoints", None): None, "checkpoint.last_time": None,
    }),
    ("compile", {"enabled": True}, {("compile.attempts", "true"): 1}),
    ("compile", {"enabled": False, "reason": "no"}, {("compile.attempts", "false"): 1}),
    ("compile", {"enabled": torch.tensor(True)}, {("compile.attempts", "true"): 1}),
    ("optimizer_step_skipped", {"step": 1, "reason": "overflow"}, {
        ("step.skips", "overflow"): 1, "steps": None,
    }),
    ("optimizer_step_skipped", {"step": 1}, {("step.skips", None): 1}),
    ("validation_start", {"step": 1, "stage": "validation"}, {"bridge.drops": None}),
    ("validation_end", {"step": 1, "stage": "test", "loss": 1.5, "batches": 2}, {
        ("validation.loss", "test"): 1.5,
    }),
    ("validation_end", {"loss": 1.5}, {("validation.loss", "validation"): 1.5}),
    ("shape_profile", {"device_type": "cpu", "alignment": 8, "warning_count": 1}, {
        "shape.alignment": 8, "shape.warnings": None,
    }),
    ("shape_warning", {"field": "d_model", "value": 30, "suggested": 32, "alignment": 8}, {
        ("shape.warnings", "d_model"): 1, "shape.alignment": 8,
    }),
    ("ooo_backprop", {"enabled": False, "reason": "cpu", "streams": 0, "stages": []}, {
        "ooo_backprop.enabled": 0, "ooo_backprop.streams": 0,
    }),
    ("hook_failed", {"hook": "MyHook", "failed_event": "train_step", "error": "E", "count": 1}, {
        ("hook.failures", "MyHook"): 1,
    }),
    ("outer_step", {"outer_step": 3, "deltas_found": 4, "deltas_included": 2}, {
        "outer.steps": 1, "outer.step.current": 3, "outer.candidates": 4, ("outer.deltas", "included"): 2,
        ("outer.deltas", "rejected"): None,
    }),
    ("outer_sync", {"step": 5, "generation": 2, "adopted": True, "duration_s": 0.5}, {"outer.steps": None}),
    ("delta_upload_queued", {"step": 5, "base_outer_step": 1}, {"delta.active_uploads": 1}),
    ("delta_uploaded", {"step": 5}, {("delta.uploads", "uploaded", None): 1, "delta.active_uploads": 0}),
    ("delta_upload_failed", {"step": 5, "error": "E"}, {("delta.uploads", "failed", None): 1}),
    ("delta_upload_skipped", {"step": 5, "reason": "queue_full"}, {
        ("delta.uploads", "skipped", "queue_full"): 1, "delta.active_uploads": None,
    }),
    ("delta_upload_stale", {"step": 5, "generation": 2}, {"delta.stale": 1}),
    ("my_event", {"speed": 3, "elapsed_s": 9.0, "memory_bytes": 7, "name": "n"}, {
        ("custom", "my_event", "speed"): 3, ("bridge.events", "my_event", "ignored"): 1,
        "device.memory.usage": 7, ("custom", "my_event", "elapsed_s"): None, ("bridge.drops", "type"): 1,
    }),
]  # fmt: skip


@pytest.mark.parametrize(
    ("event", "payload", "expected"), CASES, ids=lambda each: each if isinstance(each, str) else ""
)
def test_what_an_event_leaves(bench, event, payload, expected):
    bench.send(event, payload)
    found = {key: bench.get(*((key,) if isinstance(key, str) else key)) for key in expected}
    assert found == expected


TESTED_WITH_THE_DEVICES = {"device_stats"}


def test_the_cases_cover_the_catalog():
    assert {event for event, _, _ in CASES} >= set(catalog.EVENTS) - TESTED_WITH_THE_DEVICES


# ---------------------------------------------------------------------------------------------- the run


def test_rank_facts_come_from_the_identity_unless_the_trainer_knows_better(clock):
    bench = Bench(clock, world_size=4, attempt=1)
    bench.start()
    assert (bench.get("run.ranks"), bench.get("restarts")) == (4, 1)
    bench.start(world_size=8, attempt=3)
    assert (bench.get("run.ranks"), bench.get("restarts")) == (8, 3)
    bench.start(attempt=0)
    assert bench.get("restarts") == 3, "counters never fall"


def test_facts_of_a_later_run_replace_those_of_the_one_before(bench):
    bench.start()
    bench.send("train_end")
    bench.start(precision="fp32")
    assert [labels[0] for labels in bench.series("run.info")] == ["fp32"]


def test_an_end_told_twice_is_one_end(bench):
    bench.start()
    bench.send("train_end", outcome="failed")
    bench.send("train_end", outcome="completed")
    assert bench.series("runs") == {("failed", None): 1}


def test_a_start_without_an_end_says_that_the_run_before_was_broken_off(bench):
    bench.start()
    bench.start()
    assert bench.series("runs") == {("interrupted", None): 1}
    assert bench.get("run.active") == 1


def test_another_run_id_is_told_once_and_changes_nothing(bench, caplog):
    for run_id in ("run-1", None, "other", "other"):
        bench.start(run_id=run_id)
    assert [record.getMessage() for record in caplog.records] == [
        "the trainer calls this run 'other'; telemetry keeps 'run-1'"
    ]


def test_shape_warnings_before_the_hook_was_attached_are_counted_once(bench):
    bench.send("shape_warning", field="d_model")
    bench.start(shape_warning_count=3)
    bench.send("train_end")
    bench.start(shape_warning_count=3)
    assert bench.series("shape.warnings") == {("d_model",): 1, ("other",): 2}


@pytest.mark.parametrize(
    ("counts", "failures"),
    [([1, 10, 100, 137], 137), ([None, None], 2), ([5, 5], 5), ([10, 1, 10], 20), (["x", math.nan], 2)],
    ids=str,
)
def test_failures_of_hooks_follow_the_logs_own_count(bench, counts, failures):
    for count in counts:
        bench.send("hook_failed", hook="MyHook", count=count)
    assert bench.get("hook.failures", "MyHook") == failures


def test_a_hook_without_a_name_is_counted_all_the_same(bench):
    bench.send("hook_failed", count=1)
    assert bench.series("hook.failures") == {("other",): 1}


# ---------------------------------------------------------------------------------------------- steps


def test_steps_count_by_their_numbers_whatever_the_cadence(bench):
    bench.start()
    for step in (5, 10, 13):
        bench.send("train_step", after_s=1.0, step=step)
    assert (bench.get("steps"), bench.get("step.current"), bench.count("step.duration")) == (13, 13, 13)


def test_a_resume_counts_its_own_steps_and_its_replays(bench):
    bench.start(start_step=3, samples=24, tokens=240, last_step_reached=5)
    for step in (4, 5, 6):
        bench.send("train_step", after_s=1.0, step=step, samples=8 * step, tokens=80 * step)
    assert bench.get("steps") == 3
    assert bench.get("step.replays") == 2
    assert (bench.get("samples"), bench.get("tokens")) == (24, 240)


def test_a_skipped_step_is_no_step(bench):
    bench.start()
    bench.send("optimizer_step_skipped", step=1, reason="overflow")
    bench.send("train_step", after_s=1.0, step=1)
    assert bench.get("steps") == 1
    assert bench.get("step.skips", "overflow") == 1


def test_totals_of_a_run_joined_in_the_middle_count_from_where_they_are_seen(bench):
    bench.send("train_step", step=1000, tokens=80_000)
    bench.send("train_step", after_s=1.0, step=1001, tokens=80_080)
    assert (bench.get("steps"), bench.get("tokens")) == (2, 80)


def test_a_trainer_that_announces_nothing_is_counted_from_its_first_step(bench):
    bench.steps(1, 1)
    assert (bench.get("steps"), bench.get("tokens")) == (1, 80)
    assert bench.count("step.duration") == 0, "nothing says when the step began"


@pytest.mark.parametrize(
    ("readings", "expected"),
    [([4, 8, 12], 12), ([4, 4, 4], 12)],
    ids=["running total", "count of one step"],
)
def test_micro_batches_are_a_running_total_or_the_count_of_one_step(bench, readings, expected):
    bench.start()
    for step, reading in enumerate(readings, start=1):
        bench.send("train_step", after_s=1.0, step=step, micro_batches=reading)
    assert bench.get("micro_batches") == expected


def test_the_duration_of_a_step_leaves_out_validation_and_checkpoints(bench):
    bench.start()
    bench.send("train_step", after_s=2.0, step=1)
    bench.send("checkpoint", after_s=3.0, step=1)
    bench.send("validation_start", after_s=0.0)
    bench.send("validation_end", after_s=5.0)
    bench.send("train_step", after_s=2.5, step=2)
    assert bench.count("step.duration") == 2
    assert bench.sum("step.duration") == pytest.approx(4.5)


def test_a_step_number_that_leaps_does_not_keep_readers_busy(bench):
    bench.start()
    bench.send("train_step", after_s=1.0, step=10**15)
    assert bench.get("steps") == 10**15
    assert bench.count("step.duration") == 10_000


def test_rates_are_over_a_window_that_has_its_first_steps_time(bench):
    bench.start(tokens=0)
    for step in (1, 2, 3):
        bench.send("train_step", after_s=1.0, step=step, samples=10 * step, tokens=100 * step)
        assert bench.get("throughput.tokens") == 100.0
    assert bench.get("throughput.steps") == 1.0
    assert bench.get("throughput.samples") == 10.0


def test_what_a_trainer_does_not_count_has_no_rate(bench):
    bench.start()
    bench.send("train_step", after_s=1.0, step=1)
    assert bench.get("throughput.steps") == 1.0
    assert (bench.get("throughput.tokens"), bench.get("flops.utilization")) == (None, None)


def test_the_trainers_own_rates_are_known_and_left_alone(bench):
    bench.send("train_step", step=1, steps_per_sec=5.0, samples_per_sec=6.0, tokens_per_sec=7.0)
    assert bench.series("custom") == {}


def test_flops_utilization_is_tokens_per_second_by_what_the_device_can(bench):
    bench.start(flops_per_token=1e9, peak_flops_per_s=1e12)
    bench.send("train_step", after_s=1.0, step=1, tokens=400)
    assert bench.get("flops.utilization") == pytest.approx(0.4)


def test_a_gauge_of_a_diverged_run_is_withdrawn_and_comes_back(bench):
    bench.start()
    bench.send("train_step", step=1, loss=2.0, grad_norm=1.0)
    bench.send("train_step", step=2, loss=math.nan, grad_norm=math.inf)
    assert (bench.get("loss"), bench.get("gradient.norm")) == (None, None)
    bench.send("train_step", step=3, loss=math.nan)
    bench.send("train_step", step=4, loss=1.0)
    assert bench.get("loss") == 1.0
    assert bench.series("nonfinite.values") == {("loss", "nan"): 2, ("grad_norm", "positive_infinity"): 1}


def test_a_step_without_loss_keeps_the_last_one(bench):
    bench.send("train_step", step=1, loss=2.0)
    bench.send("train_step", step=2)
    assert bench.get("loss") == 2.0


@pytest.mark.parametrize("field", sorted(catalog.EVENTS["train_step"]))
@pytest.mark.parametrize(
    "bad",
    ["text", math.nan, -math.inf, [1], torch.zeros(3), torch.empty((), device="meta"), 10**400],
    ids=repr,
)
def test_a_bad_value_costs_itself_alone(clock, field, bad):
    good = {**STEP, "grad_norm": 0.5, "data_wait_s": 0.1, "step_s": 0.5, "memory_bytes": 7}
    expected, found = Bench(clock), Bench(clock)
    without = {name: value for name, value in good.items() if name != field}
    for bench, payload in ((expected, without), (found, {**good, field: bad})):
        bench.recorder.record("train_start", START, Moment(1000.0, 0.0))
        bench.recorder.record("train_step", payload, Moment(1001.0, 1.0))

    def numbers(bench):
        told = (catalog.BRIDGE_DROPS, catalog.NONFINITE_VALUES)
        return {key: value for key, value in bench.state.snapshot().values.items() if key[0] not in told}

    assert numbers(found) == numbers(expected)


# ---------------------------------------------------------------------------------------------- time


def test_where_the_time_of_a_run_went(bench):
    bench.send("compile", after_s=6.0, enabled=True, duration_s=4.0)
    bench.start(after_s=1.0)
    bench.send("train_step", after_s=5.0, step=1, data_wait_s=1.0, step_s=3.0)
    bench.send("train_step", after_s=2.0, step=2, data_wait_s=0.5)
    bench.send("checkpoint", after_s=3.0, step=2, duration_s=2.0)
    bench.send("validation_start", after_s=0.5)
    bench.send("validation_end", after_s=4.0)
    bench.send("optimizer_step_skipped", after_s=1.0)
    bench.send("train_end", after_s=0.25)
    assert bench.times() == {
        "compile": 4.0,
        "startup": 3.0,
        "data_wait": 1.5,
        "step": 3.0 + 1.5 + 1.0,
        "checkpoint_save": 2.0,
        "validation": 4.0,
        "idle": 1.0 + 1.0 + 0.5 + 0.25,
    }
    assert sum(bench.times().values()) == 22.75


def test_durations_longer_than_the_time_there_was_are_clamped(bench):
    bench.start()
    bench.send("train_step", after_s=1.0, step=1, data_wait_s=50.0, step_s=60.0)
    bench.send("checkpoint", after_s=1.0, duration_s=99.0)
    assert bench.times() == {"data_wait": 1.0, "checkpoint_save": 1.0}


def test_a_checkpoint_without_a_duration_took_what_there_was(bench):
    bench.start()
    bench.send("train_step", after_s=1.0, step=1)
    bench.send("checkpoint", after_s=2.0, step=1)
    bench.send("checkpoint_restore", after_s=3.0, step=1)
    bench.send("outer_sync", after_s=4.0, step=1)
    assert bench.times() == {
        "step": 1.0, "checkpoint_save": 2.0, "checkpoint_restore": 3.0, "outer_sync": 4.0,
    }  # fmt: skip


def test_events_of_other_threads_split_no_time(bench):
    bench.start()
    for event in ("outer_step", "delta_uploaded", "hook_failed", "shape_warning", "my_event"):
        bench.send(event, after_s=1.0)
    assert bench.times() == {}
    bench.send("train_step", after_s=1.0, step=1)
    assert bench.times() == {"step": 6.0}


def test_goodput_after_a_failure_is_what_checkpoints_hold(bench):
    bench.start()
    bench.steps(1, 4)
    bench.send("checkpoint", step=4)
    bench.steps(5, 8)
    assert bench.get("goodput.utilization") == 1.0
    bench.send("train_end", outcome="failed", error="E: e")
    assert bench.get("goodput.utilization") == 0.5


def test_a_checkpoint_that_failed_holds_nothing(bench):
    bench.start()
    bench.steps(1, 4)
    bench.send("checkpoint", step=4, error="OSError: full")
    bench.send("train_end", outcome="failed", error="E: e")
    assert bench.get("goodput.utilization") == 0.0


def test_goodput_goes_on_from_earlier_attempts(bench):
    bench.start(prior_elapsed_s=100.0, prior_kept_s=50.0)
    bench.steps(1, 10, every_s=10.0)
    assert bench.get("goodput.utilization") == 0.75


# ---------------------------------------------------------------------------------------------- bounds


def test_event_names_and_fields_are_capped(bench):
    for position in range(300):
        bench.send(f"event{position}", {"value": position})
    names = {labels[0] for labels in bench.series("bridge.events")}
    assert len(names) == 51
    assert len(bench.series("custom")) <= catalog.MAX_CUSTOM_FIELDS + 1
    assert bench.get("bridge.drops", "cardinality") > 0
    assert sum(bench.series("bridge.events").values()) == 300


def test_hook_names_are_capped(bench):
    for position in range(50):
        bench.send("hook_failed", hook=f"hook{position}", count=1)
    assert len(bench.series("hook.failures")) == 21
    assert sum(bench.series("hook.failures").values()) == 50


def test_nothing_is_logged_in_a_healthy_run(bench, caplog):
    caplog.set_level(logging.DEBUG)
    bench.start()
    bench.steps(1, 5)
    bench.send("checkpoint", step=5, path="p", duration_s=0.1, size_bytes=10)
    bench.send("train_end", steps=5, elapsed_s=5.0, loss=1.0, outcome="completed")
    assert caplog.records == []
    assert bench.series("bridge.drops") == {}
