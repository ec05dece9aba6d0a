"""What hooks of one identity share: each event once, ends told once, faults kept away from training."""

import math
import threading

import pytest

from otel_training.testing import TelemetryCapture


@pytest.fixture
def second(capture, clock):
    """A second hook of the same identity on the same providers."""
    from otel_training import OTelHook

    hook = OTelHook(
        meter_provider=capture.meter_provider,
        tracer_provider=capture.tracer_provider,
        run_id="run-1",
        clock=clock,
    )
    yield hook
    hook.close()


CHECKPOINT = ("checkpoint", {"step": 1, "path": "p"})


def checkpoints(capture):
    return capture.value("training.checkpoints")


def test_an_event_that_two_hooks_bring_is_one_event(capture, second):
    for hook in (capture.hook, second):
        hook.on_event(*CHECKPOINT)
    assert checkpoints(capture) == 1
    assert capture.value("training.bridge.events") == 1


def test_what_two_logs_add_does_not_make_it_two(capture, second):
    capture.hook.on_event("checkpoint", {"step": 1, "elapsed_s": 1.0, "memory_bytes": 5})
    second.on_event("checkpoint", {"step": 1, "elapsed_s": 2.0, "memory_bytes": 6})
    assert checkpoints(capture) == 1


def test_identical_events_of_one_hook_are_several(capture, second):
    for _ in range(3):
        capture.hook.on_event(*CHECKPOINT)
    assert checkpoints(capture) == 3
    for _ in range(3):
        second.on_event(*CHECKPOINT)
    assert checkpoints(capture) == 3
    second.on_event(*CHECKPOINT)
    assert checkpoints(capture) == 4


def test_identical_events_that_come_in_turns(capture, second):
    for _ in range(3):
        for hook in (capture.hook, second):
            hook.on_event(*CHECKPOINT)
    assert checkpoints(capture) == 3


def test_a_single_hook_compares_nothing(capture):
    for _ in range(3):
        capture.hook.on_event(*CHECKPOINT)
    assert checkpoints(capture) == 3


def test_a_hook_attached_twice_to_one_logger_counts_its_steps_once(capture):
    # The same object twice: one hook says the same event twice, and steps are counted by their number.
    for step in (1, 2, 3):
        for _ in range(2):
            capture.hook.on_event("train_step", {"step": step, "tokens": 10 * step})
    assert capture.value("training.steps") == 3
    assert capture.value("training.tokens") == 30


def test_two_hooks_with_events_of_their_own(capture, second):
    capture.hook.on_event("checkpoint", {"step": 1})
    second.on_event("checkpoint", {"step": 2})
    assert checkpoints(capture) == 2


def test_payloads_that_cannot_be_compared_are_still_taken(capture, second):
    class Strange:
        def __eq__(self, other):
            raise RuntimeError("no")

        __hash__ = None

    payload = {"step": 1, "strange": Strange(), "nan": math.nan, "huge": 10**5000}
    for hook in (capture.hook, second):
        hook.on_event("checkpoint", payload)
    assert checkpoints(capture) == 1


def test_a_run_goes_on_until_its_last_hook_is_closed(capture, second):
    capture.hook.on_event("train_start", {"start_step": 0})
    second.close()
    assert capture.value("training.run.active") == 1
    capture.hook.on_event("train_step", {"step": 1})
    assert capture.value("training.steps") == 1
    assert capture.spans("training.run") == []
    capture.hook.close()
    assert len(capture.spans("training.run")) == 1


def test_a_hook_that_is_closed_takes_nothing(capture):
    capture.hook.on_event("train_step", {"step": 1})
    capture.hook.close()
    capture.hook.on_event("train_step", {"step": 2})
    assert capture.hook.flush() is False


@pytest.mark.parametrize(
    ("error", "outcome", "kind"),
    [(None, "interrupted", None), (RuntimeError("broke"), "failed", "RuntimeError")],
)
def test_what_no_event_has_ended_is_ended_at_the_close(clock, error, outcome, kind):
    capture = TelemetryCapture(clock=clock)
    capture.hook.on_event("train_start", {"start_step": 0})
    capture.hook.on_event("train_step", {"step": 1})
    capture.hook.close(error)
    (span,) = capture.spans("training.run")
    assert span.attributes["training.run.outcome"] == outcome
    assert [event.attributes["exception.type"] for event in span.events] == ([kind] if kind else [])
    capture.close()


@pytest.mark.parametrize("payload", [None, 7, "text", [("a",)], object()], ids=repr)
def test_a_payload_that_is_none_is_counted_as_failed(capture, payload):
    capture.hook.on_event("train_step", payload)
    assert capture.value("training.bridge.events", training_event_outcome="failed") == 1


@pytest.mark.parametrize(
    "event", [None, 7, b"train_step", object, "", "x" * 10_000, "a\udcff"], ids=lambda e: repr(e)[:20]
)
def test_any_event_name_is_counted(capture, event):
    capture.hook.on_event(event, {"a": 1})
    assert capture.value("training.bridge.events", training_event_outcome="ignored") == 1
    ((_, key),) = capture.points("training.bridge.events")
    name = dict(key)["training.event.name"]
    assert len(name) <= 128
    name.encode("utf-8")


def test_the_payload_is_neither_changed_nor_kept(capture):
    payload = {"step": 1, "microbatches": 3}
    capture.hook.on_event("train_step", payload)
    assert payload == {"step": 1, "microbatches": 3}


def test_many_threads_lose_nothing(capture, second):
    def emit(hook, thread):
        for count in range(200):
            hook.on_event("hook_failed", {"hook": f"hook{thread}", "count": count + 1})
            hook.on_event("checkpoint", {"step": count, "thread": thread})

    threads = [
        threading.Thread(target=emit, args=((capture.hook, second)[number % 2], number))
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert capture.value("training.hook.failures") == 1600
    assert checkpoints(capture) == 1600
