"""Events of a loop that has no trainer."""

import pytest

from otel_training.plain_loop import run_loop


@pytest.fixture
def events():
    return []


def emit_to(events):
    return lambda event, payload: events.append((event, dict(payload)))


def end_of(events):
    [end] = [payload for event, payload in events if event == "train_end"]
    assert end.pop("elapsed_s") >= 0.0
    return end


def test_a_loop_tells_start_steps_and_end(events):
    with run_loop(emit_to(events), {"target_step": 2, "precision": "bf16"}) as run:
        run.step(loss=2.0)
        run.step(loss=1.0, tokens=64)
        run.event("checkpoint", step=2, path="p")
    assert events[:-1] == [
        ("train_start", {"start_step": 0, "target_step": 2, "precision": "bf16"}),
        ("train_step", {"step": 1, "loss": 2.0}),
        ("train_step", {"step": 2, "loss": 1.0, "tokens": 64}),
        ("checkpoint", {"step": 2, "path": "p"}),
    ]
    assert end_of(events) == {"steps": 2, "outcome": "completed"}


def test_steps_go_on_from_the_start_step_and_from_a_given_number(events):
    with run_loop(emit_to(events), {"start_step": 500}) as run:
        run.step()
        run.step(510)
        run.step()
    assert [payload["step"] for event, payload in events if event == "train_step"] == [501, 510, 511]
    assert end_of(events)["steps"] == 511


@pytest.mark.parametrize(
    ("error", "outcome", "text"),
    [
        (RuntimeError("out of memory"), "failed", "RuntimeError: out of memory"),
        (StopIteration(), "failed", "StopIteration"),
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt"),
        (SystemExit(3), "interrupted", "SystemExit: 3"),
    ],
)
def test_an_exception_passes_unchanged_and_is_told(events, error, outcome, text):
    def train():
        with run_loop(emit_to(events), {}) as run:
            run.step()
            raise error

    with pytest.raises(type(error)) as caught:
        train()
    assert caught.value is error
    assert end_of(events) == {"steps": 1, "outcome": outcome, "error": text}


def test_a_bad_start_step_is_refused_before_anything_is_told(events):
    with pytest.raises(ValueError, match="many"), run_loop(emit_to(events), {"start_step": "many"}):
        pass
    assert events == []
