"""A run's events become spans: every row of the catalog, and correct spans whatever comes in what order."""

import threading

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NoOpTracerProvider, StatusCode

from otel_training import catalog
from otel_training.testing import TelemetryCapture
from otel_training.tracing import Tracing, TracingOptions

IDENTITY = {"training.run.id": "r1", "training.run.name": "name", "training.rank": 0}
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
S = 10**9


class Events:
    """Sends events to a tracing on a clock that stands still between them."""

    def __init__(self, span_box, set_clock, *, rank=0, environ=None, tracer=None, on_start=None, **options):
        self._clock = set_clock
        self._step = 0
        self.tracing = Tracing(
            tracer or span_box.tracer,
            {**IDENTITY, "training.rank": rank},
            rank,
            TracingOptions(**options),
            environ or {},
            set_clock.now(),
            on_start or (lambda: None),
        )

    def __call__(self, event, after=0.0, **payload):
        self.tracing.record(event, payload, self._clock.after(after))

    def step(self, after=1.0, **payload):
        self._step += 1
        now = self._clock.after(after)
        self.tracing.step({"step": self._step, **payload}, now, after, 1)

    def close(self):
        self.tracing.close(self._clock.now())


@pytest.fixture
def events(span_box, set_clock):
    return Events(span_box, set_clock)


def start(events, **more):
    events("train_start", start_step=0, target_step=10, **more)


# --- the run ---


def test_run_span_from_start_to_end(events, span_box):
    start(
        events, device="cuda:1", precision="bf16", parameters=124_000_000, accumulation_steps=2,
        attempt=1, world_size=8, run_id="other",
    )  # fmt: skip
    events.step()
    events("train_end", after=2.0, steps=1, loss=1.5, outcome="completed")
    run = span_box.one("training.run")
    assert run.parent is None
    assert run.end_time - run.start_time == 3 * S
    assert run.status.status_code is StatusCode.UNSET
    about = {
        "training.step.start": 0,
        "training.step.target": 10,
        "training.device": "cuda:1",
        "training.precision": "bf16",
        "training.parameters": 124_000_000,
        "training.accumulation_steps": 2,
        "training.attempt": 1,
        "training.world_size": 8,
        "training.trainer.run.id": "other",
    }
    end = {"training.step.final": 1, "training.run.outcome": "completed", "training.loss": 1.5}
    assert dict(run.attributes) == {**IDENTITY, **about, **end}

    run_start = span_box.one("training.run.start")
    assert run_start.start_time == run_start.end_time == run.start_time
    assert run_start.parent.span_id == run.context.span_id
    assert dict(run_start.attributes) == {**IDENTITY, **about}


def test_run_start_is_ended_and_announced_at_once(span_box, set_clock):
    seen = []
    events = Events(span_box, set_clock, on_start=lambda: seen.append(span_box.names()))
    start(events)
    assert seen == [["training.run.start"]]


def test_a_run_id_that_agrees_is_not_repeated(events, span_box):
    start(events, run_id="r1")
    assert "training.trainer.run.id" not in span_box.one("training.run.start").attributes


@pytest.mark.parametrize(
    ("payload", "status", "kind"),
    [
        ({"outcome": "completed"}, StatusCode.UNSET, None),
        ({}, StatusCode.UNSET, None),
        ({"outcome": "interrupted", "error": "KeyboardInterrupt"}, StatusCode.UNSET, None),
        ({"outcome": "failed", "error": "RuntimeError: no"}, StatusCode.ERROR, "RuntimeError"),
        ({"outcome": "failed", "error": ValueError("no")}, StatusCode.ERROR, "ValueError"),
        ({"outcome": "failed"}, StatusCode.ERROR, "Error"),
    ],
)
def test_status_of_the_run(events, span_box, payload, status, kind):
    start(events)
    events("train_end", **payload)
    run = span_box.one("training.run")
    assert run.status.status_code is status
    assert run.attributes["training.run.outcome"] == payload.get("outcome", "completed")
    assert [event.attributes["exception.type"] for event in run.events] == ([kind] if kind else [])


def test_traceparent_becomes_the_run_s_parent(span_box, set_clock):
    events = Events(span_box, set_clock, environ={"TRACEPARENT": TRACEPARENT, "TRACESTATE": "a=b"})
    start(events)
    events.step()
    events.close()
    run = span_box.one("training.run")
    assert f"{run.parent.trace_id:032x}-{run.parent.span_id:016x}" == TRACEPARENT[3:52]
    assert run.parent.trace_state["a"] == "b"
    assert span_box.one("training.run.start").context.trace_id == run.context.trace_id
    assert span_box.one("training.window").context.trace_id != run.context.trace_id


@pytest.mark.parametrize("value", ["", "garbage", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_a_bad_traceparent_is_no_parent(span_box, set_clock, value):
    events = Events(span_box, set_clock, environ={"TRACEPARENT": value})
    start(events)
    events.close()
    assert span_box.one("training.run").parent is None


def test_the_span_of_the_calling_thread_is_never_a_parent(events, span_box):
    outer = span_box.tracer.start_span("outer")
    with trace.use_span(outer, end_on_exit=True):
        everything(events)
    trace_id = outer.get_span_context().trace_id
    ours = [span for span in span_box.all() if span.name != "outer"]
    assert ours
    assert trace_id not in {span.context.trace_id for span in ours}


# --- what happens in a run ---


def everything(events):
    """All events that make spans, in one run."""
    start(events)
    for _ in range(12):
        events.step()
    events.step(after=9.0)
    events("checkpoint", after=1.0, step=13, path="c", size_bytes=10, duration_s=0.5)
    events("checkpoint_restore", after=1.0, step=13, path="c", duration_s=0.5)
    events("compile", after=1.0, enabled=True, duration_s=0.5)
    events("validation_start", step=13, stage="validation")
    events("validation_end", after=1.0, step=13, stage="validation", loss=1.0, batches=4)
    events("outer_step", after=1.0, outer_step=1, deltas_found=2, deltas_included=1, duration_s=0.5)
    events("delta_upload_queued", step=13, base_outer_step=1)
    events("delta_uploaded", after=1.0, step=13)
    events("train_end", steps=13)
    events.close()


def test_a_full_run_makes_every_span_of_the_catalog_and_no_other(events, span_box):
    everything(events)
    assert set(span_box.names()) == {span.name for span in catalog.spans.SPANS}


def test_attributes_are_those_of_the_catalog(events, span_box):
    everything(events)
    declared = {
        span.name: {attribute.name for attribute in span.attributes} | set(IDENTITY)
        for span in catalog.spans.SPANS
    }
    for span in span_box.all():
        assert set(span.attributes) <= declared[span.name], span.name
        assert dict(span.attributes).items() >= IDENTITY.items()


def test_all_but_windows_and_their_steps_live_in_the_run_s_trace(events, span_box):
    everything(events)
    run = span_box.one("training.run")
    windows = {span.context.trace_id for span in span_box.all("training.window")}
    for span in span_box.all():
        if span.name in ("training.window", "training.step"):
            assert span.context.trace_id in windows
        else:
            assert span.context.trace_id == run.context.trace_id
            assert span is run or span.parent.span_id == run.context.span_id
    assert run.context.trace_id not in windows


@pytest.mark.parametrize(
    ("name", "event", "payload", "attributes"),
    [
        (
            "training.checkpoint.save", "checkpoint", {"step": 5, "path": "b/c", "size_bytes": 7},
            {"training.step.number": 5, "training.checkpoint.path": "b/c", "training.checkpoint.size": 7},
        ),
        (
            "training.checkpoint.restore", "checkpoint_restore", {"step": 5, "path": "p"},
            {"training.step.number": 5, "training.checkpoint.path": "p"},
        ),
        (
            "training.compile", "compile", {"enabled": True, "reason": "r"},
            {"training.compile.enabled": True, "training.reason": "r"},
        ),
        (
            "training.validation", "validation_end", {"step": 5, "stage": "test", "batches": 3, "loss": 0.5},
            {
                "training.step.number": 5, "training.stage": "test", "training.batches": 3,
                "training.loss": 0.5,
            },
        ),
        (
            "training.outer_step", "outer_step", {"outer_step": 2, "deltas_found": 4, "deltas_included": 3},
            {
                "training.outer.step": 2, "training.outer.deltas.found": 4,
                "training.outer.deltas.included": 3,
            },
        ),
    ],
)  # fmt: skip
def test_spans_reach_back_by_the_event_s_duration(
    events, span_box, set_clock, name, event, payload, attributes
):
    start(events)
    events(event, after=10.0, duration_s=4.0, **payload)
    span = span_box.one(name)
    assert span.end_time == set_clock.now().unix_ns
    assert span.end_time - span.start_time == 4 * S
    assert span.status.status_code is StatusCode.UNSET
    assert dict(span.attributes) == {**IDENTITY, **attributes}


@pytest.mark.parametrize("duration", [None, -1.0, float("nan"), "long"])
def test_without_a_usable_duration_a_span_has_no_length(events, span_box, duration):
    start(events)
    events("checkpoint", step=1, path="p", duration_s=duration)
    span = span_box.one("training.checkpoint.save")
    assert span.start_time == span.end_time


def test_a_checkpoint_that_failed_is_an_error(events, span_box):
    start(events)
    events("checkpoint", step=1, path="p", error="OSError: disk full")
    span = span_box.one("training.checkpoint.save")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "OSError: disk full")


@pytest.mark.parametrize(
    ("payload", "status"),
    [
        ({"enabled": True, "duration_s": 1.0}, StatusCode.UNSET),
        ({"enabled": False, "reason": "not asked for"}, StatusCode.UNSET),
        ({"enabled": False, "reason": "BackendCompilerFailed: x", "duration_s": 1.0}, StatusCode.ERROR),
        ({"enabled": False, "duration_s": 1.0}, StatusCode.ERROR),
    ],
)
def test_a_compile_that_fell_back_is_an_error(events, span_box, payload, status):
    start(events)
    events("compile", **payload)
    assert span_box.one("training.compile").status.status_code is status


def test_validation_without_a_duration_lasts_from_its_start(events, span_box):
    start(events)
    events("validation_start", stage="validation")
    events("validation_end", after=7.0, stage="validation")
    span = span_box.one("training.validation")
    assert span.end_time - span.start_time == 7 * S


def test_a_validation_that_never_ended_does_not_stretch_one_of_the_next_run(events, span_box):
    start(events)
    events("validation_start")
    start(events)
    events("validation_end", after=7.0)
    span = span_box.one("training.validation")
    assert span.start_time == span.end_time


# --- uploads ---


@pytest.mark.parametrize(
    ("answer", "payload", "attributes", "status"),
    [
        ("delta_uploaded", {}, {"training.delta.outcome": "uploaded"}, StatusCode.UNSET),
        ("delta_upload_failed", {"error": "E: x"}, {"training.delta.outcome": "failed"}, StatusCode.ERROR),
        ("delta_upload_failed", {}, {"training.delta.outcome": "failed"}, StatusCode.ERROR),
        (
            "delta_upload_stale", {"generation": 4},
            {"training.delta.outcome": "stale", "training.delta.generation": 4}, StatusCode.UNSET,
        ),
    ],
)  # fmt: skip
def test_an_upload_lasts_from_queueing_to_its_answer(events, span_box, answer, payload, attributes, status):
    start(events)
    events("delta_upload_queued", step=5, base_outer_step=2)
    events.step()
    events(answer, after=2.0, step=5, **payload)
    span = span_box.one("training.delta.upload")
    assert span.end_time - span.start_time == 3 * S
    assert span.status.status_code is status
    queued = {"training.step.number": 5, "training.outer.step.base": 2}
    assert dict(span.attributes) == {**IDENTITY, **queued, **attributes}


def test_a_stale_upload_that_is_uploaded_too_is_one_span(events, span_box):
    start(events)
    events("delta_upload_queued", step=5)
    events("delta_upload_stale", step=5, generation=2)
    events("delta_uploaded", step=5)
    assert span_box.one("training.delta.upload").attributes["training.delta.outcome"] == "stale"


def test_an_upload_that_is_never_answered_ends_with_the_hook_and_has_no_outcome(events, span_box):
    start(events)
    events("delta_upload_queued", step=5)
    events("train_end")
    assert span_box.all("training.delta.upload") == []
    events.close()
    assert "training.delta.outcome" not in span_box.one("training.delta.upload").attributes


def test_an_answer_after_the_end_of_the_run_still_counts(events, span_box):
    start(events)
    events("delta_upload_queued", step=5)
    events("train_end")
    events("delta_uploaded", after=1.0, step=5)
    assert span_box.one("training.delta.upload").attributes["training.delta.outcome"] == "uploaded"


def test_an_answer_without_a_question_is_no_span(events, span_box):
    start(events)
    events("delta_uploaded", step=5)
    events.close()
    assert span_box.all("training.delta.upload") == []


def test_queued_again_ends_the_former_upload(events, span_box):
    start(events)
    events("delta_upload_queued", step=5)
    events("delta_upload_queued", after=1.0, step=5)
    events("delta_uploaded", after=1.0, step=5)
    first, second = span_box.all("training.delta.upload")
    assert "training.delta.outcome" not in first.attributes
    assert second.attributes["training.delta.outcome"] == "uploaded"
    assert first.end_time == second.start_time


def test_uploads_without_answers_do_not_pile_up(events, span_box):
    start(events)
    for step in range(3000):
        events("delta_upload_queued", step=step)
    assert len(span_box.all("training.delta.upload")) == 2000
    events.close()
    assert len(span_box.all("training.delta.upload")) == 3000


# --- out of order, missing, twice ---


def test_an_end_without_a_start_is_a_run_of_its_elapsed_time(events, span_box):
    events("train_end", after=50.0, steps=9, elapsed_s=30.0)
    run = span_box.one("training.run")
    assert run.end_time - run.start_time == 30 * S
    assert run.attributes["training.step.final"] == 9


def test_a_second_end_is_no_second_run(events, span_box):
    start(events)
    events("train_end", steps=1)
    events("train_end", after=1.0, steps=1)
    events.close()
    assert span_box.names() == ["training.run.start", "training.run"]


def test_a_second_start_ends_the_former_run_as_interrupted(events, span_box):
    start(events)
    events.step()
    start(events)
    events.step()
    events("train_end", steps=2)
    first, second = span_box.all("training.run")
    assert first.attributes["training.run.outcome"] == "interrupted"
    assert first.attributes["training.step.final"] == 1
    assert second.attributes["training.run.outcome"] == "completed"
    assert first.end_time == second.start_time
    links = [window.links[0].context for window in span_box.all("training.window")]
    assert links == [first.context, second.context]


def test_two_runs_one_after_another(events, span_box):
    for _ in range(2):
        start(events)
        events.step()
        events("train_end", steps=1)
    assert span_box.names() == 2 * ["training.run.start", "training.window", "training.run"]


def test_a_checkpoint_after_the_end_is_a_child_of_the_run(events, span_box):
    start(events)
    events("train_end", steps=1)
    events("checkpoint", after=3.0, step=1, path="final", duration_s=2.0)
    run, checkpoint = span_box.one("training.run"), span_box.one("training.checkpoint.save")
    assert checkpoint.parent.span_id == run.context.span_id


def test_what_comes_before_the_start_waits_for_the_run(events, span_box):
    events("compile", after=5.0, enabled=True, duration_s=4.0)
    events("checkpoint_restore", step=3, path="p")
    assert span_box.all() == []
    start(events)
    compiled, restored = span_box.one("training.compile"), span_box.one("training.checkpoint.restore")
    events.close()
    run = span_box.one("training.run")
    assert compiled.parent.span_id == restored.parent.span_id == run.context.span_id
    assert compiled.end_time - compiled.start_time == 4 * S


def test_what_waits_for_a_start_that_never_comes_is_bounded_and_written_at_the_end(events, span_box):
    for _ in range(1000):
        events("compile", enabled=True)
    events.close()
    assert len(span_box.all("training.compile")) == 100


def test_steps_before_any_start_are_in_a_window(events, span_box):
    events.step()
    start(events)
    events.step()
    events.close()
    before, after = span_box.all("training.window")
    assert before.links == ()
    assert len(after.links) == 1


def test_close_in_the_middle_ends_everything_once(events, span_box):
    start(events)
    events.step()
    events("delta_upload_queued", step=1)
    events.close()
    events.close()
    run = span_box.one("training.run")
    assert run.attributes["training.run.outcome"] == "interrupted"
    assert run.attributes["training.step.final"] == 1
    assert sorted(span_box.names()) == [
        "training.delta.upload", "training.run", "training.run.start", "training.window",
    ]  # fmt: skip


def test_close_without_any_event_is_nothing(events, span_box):
    events.close()
    assert span_box.all() == []


def test_unknown_events_make_no_span(events, span_box):
    events("surprise", step=1)
    events.close()
    assert span_box.all() == []


# --- ranks, samplers, threads ---


@pytest.mark.parametrize(("options", "windows"), [({}, 0), ({"windows_on_all_ranks": True}, 1)])
def test_windows_are_rank_0_s_unless_asked_for(span_box, set_clock, options, windows):
    events = Events(span_box, set_clock, rank=1, **options)
    start(events)
    events.step()
    events.close()
    assert len(span_box.all("training.window")) == windows
    assert span_box.one("training.run").attributes["training.rank"] == 1


def test_a_sampler_that_drops_the_run_is_told_in_one_line(set_clock, caplog):
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    events = Events(None, set_clock, tracer=provider.get_tracer("test"))
    everything(events)
    [record] = caplog.records
    assert "sampler" in record.getMessage()


def test_a_tracer_that_does_nothing_is_fine(set_clock, caplog):
    events = Events(None, set_clock, tracer=NoOpTracerProvider().get_tracer("test"))
    for _ in range(3):
        everything(events)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("step_span_ratio", -0.1), ("step_span_ratio", 1.1), ("step_span_ratio", float("nan")),
        ("slow_step_factor", 0.9), ("slow_step_factor", float("nan")),
        ("window_s", 0.0), ("window_s", float("nan")),
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused(option, value):
    with pytest.raises(ValueError, match=f"{option}=.*accepted"):
        TracingOptions(**{option: value})


def test_events_from_other_threads_belong_to_the_run():
    capture = TelemetryCapture()
    capture.hook.on_event("train_start", {"start_step": 0})
    emits = [
        threading.Thread(
            target=lambda number=number: [
                capture.hook.on_event("delta_upload_queued", {"step": number * 1000 + i}) or
                capture.hook.on_event("delta_uploaded", {"step": number * 1000 + i})
                for i in range(50)
            ]
        )
        for number in range(16)
    ]  # fmt: skip
    for thread in emits:
        thread.start()
    for thread in emits:
        thread.join()
    capture.hook.on_event("train_end", {"steps": 0})
    capture.hook.close()
    uploads, [run] = capture.spans("training.delta.upload"), capture.spans("training.run")
    assert len(uploads) == 16 * 50
    assert {span.parent.span_id for span in uploads} == {run.context.span_id}
    capture.close()


def test_close_from_another_thread_while_events_arrive():
    capture = TelemetryCapture()
    capture.hook.on_event("train_start", {"start_step": 0})
    stop = threading.Event()

    def emit():
        step = 0
        while not stop.is_set():
            step += 1
            capture.hook.on_event("train_step", {"step": step})

    emits = threading.Thread(target=emit)
    emits.start()
    while capture.value("training.steps") in (None, 0):
        pass
    closes = threading.Thread(target=capture.hook.close)
    closes.start()
    closes.join()
    stop.set()
    emits.join()
    assert len(capture.spans("training.run")) == 1
    assert len(capture.spans("training.window")) == 1
    capture.close()


def test_a_master_without_a_run_shows_each_outer_step_at_once(events, span_box):
    for outer_step in range(1, 4):
        events(
            "outer_step", after=1.0, outer_step=outer_step, deltas_found=2, deltas_included=2, duration_s=0.5
        )
    assert [span.attributes["training.outer.step"] for span in span_box.all("training.outer_step")] == [
        1,
        2,
        3,
    ]
