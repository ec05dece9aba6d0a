"""Windows of steps, and spans of single steps in them."""

import math

import pytest
from opentelemetry.trace import StatusCode

from otel_training.catalog import spans
from otel_training.span_writer import ROOT, SpanWriter
from otel_training.windows import Windows


class Steps:
    """Feeds steps of one second each into windows."""

    def __init__(self, span_box, set_clock, **options):
        options = {"window_s": 60.0, "step_span_ratio": 0.0, "slow_step_factor": 3.0, **options}
        writer = SpanWriter(span_box.tracer, {}, set_clock.now())
        run = writer.start(spans.RUN_SPAN, set_clock.monotonic_s, ROOT, {})
        self.run = run.get_span_context()
        self.windows = Windows(writer, **options)
        self._clock = set_clock
        self._step = 0

    def take(self, count=1, duration_s=1.0, **fields):
        for _ in range(count):
            self._step += 1
            now_s = self._clock.after(duration_s).monotonic_s
            self.windows.step({"step": self._step, **fields}, now_s, duration_s, 1, self.run)

    def close(self):
        self.windows.close(self._clock.monotonic_s)


@pytest.fixture
def steps(span_box, set_clock):
    return Steps(span_box, set_clock)


def test_a_window_ends_when_its_time_is_over(steps, span_box):
    steps.take(150)
    steps.close()
    windows = span_box.all("training.window")
    assert [window.attributes["training.step.first"] for window in windows] == [1, 61, 121]
    assert [window.attributes["training.step.last"] for window in windows] == [60, 120, 150]
    assert [window.end_time - window.start_time for window in windows] == [60 * 10**9, 60 * 10**9, 30 * 10**9]


def test_windows_are_roots_linked_to_the_run(steps, span_box):
    steps.take(61)
    steps.close()
    first, second = span_box.all("training.window")
    for window in (first, second):
        assert window.parent is None
        assert [link.context for link in window.links] == [steps.run]
    assert len({steps.run.trace_id, first.context.trace_id, second.context.trace_id}) == 3


def test_figures_of_a_window(steps, span_box):
    steps.windows.begin(100)
    steps.take(1, duration_s=1.0, tokens=150, loss=3.0)
    steps.take(1, duration_s=3.0, tokens=200, loss=2.0)
    steps.take(1, duration_s=2.0, loss=None)
    steps.close()
    assert dict(span_box.one("training.window").attributes) == {
        "training.step.first": 1,
        "training.step.last": 3,
        "training.step.count": 3,
        "training.step.duration.min": 1.0,
        "training.step.duration.mean": 2.0,
        "training.step.duration.max": 3.0,
        "training.tokens": 100,
        "training.loss": 2.0,
        "training.nonfinite.count": 0,
    }


def test_each_window_counts_its_own_tokens(steps, span_box):
    steps.windows.begin(0)
    for total in range(10, 1210, 10):
        steps.take(1, tokens=total)
    assert [window.attributes["training.tokens"] for window in span_box.all("training.window")] == [600, 600]


def test_tokens_without_a_known_start_are_left_out(steps, span_box):
    steps.take(1, tokens=500)
    steps.close()
    assert "training.tokens" not in span_box.one("training.window").attributes


@pytest.mark.parametrize("field", ["loss", "grad_norm"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_window_with_non_finite_values_is_an_error(steps, span_box, field, value):
    steps.take(1, loss=1.0)
    steps.take(2, **{field: value})
    steps.take(1, loss=0.5)
    steps.close()
    window = span_box.one("training.window")
    assert window.status.status_code is StatusCode.ERROR
    assert window.attributes["training.nonfinite.count"] == 2
    assert window.attributes["training.loss"] == 0.5


def test_the_window_after_a_bad_one_is_clean(steps, span_box):
    steps.take(60, loss=math.nan)
    steps.take(60, loss=1.0)
    bad, good = span_box.all("training.window")
    assert bad.status.status_code is StatusCode.ERROR
    assert good.status.status_code is StatusCode.UNSET
    assert good.attributes["training.nonfinite.count"] == 0


def test_closing_twice_or_without_steps_is_nothing(steps, span_box):
    steps.close()
    steps.take(1)
    steps.close()
    steps.close()
    assert span_box.names() == ["training.window"]


def test_a_step_longer_than_a_window_is_one_window(steps, span_box):
    steps.take(1, duration_s=1000.0)
    [window] = span_box.all("training.window")
    assert window.end_time - window.start_time == 1000 * 10**9


@pytest.mark.parametrize(("ratio", "expected"), [(0.0, 0), (0.25, 25), (1.0, 100), (0.3, 30)])
def test_the_ratio_decides_how_many_steps_have_a_span(span_box, set_clock, ratio, expected):
    steps = Steps(span_box, set_clock, step_span_ratio=ratio)
    steps.take(100)
    assert abs(len(span_box.all("training.step")) - expected) <= 1


def test_a_step_span_is_a_child_of_its_window(span_box, set_clock):
    steps = Steps(span_box, set_clock, step_span_ratio=1.0)
    steps.take(2, loss=1.5, lr=0.1, data_wait_s=0.2)
    steps.close()
    window = span_box.one("training.window")
    first, second = span_box.all("training.step")
    assert {span.parent.span_id for span in (first, second)} == {window.context.span_id}
    assert window.start_time <= first.start_time < first.end_time <= second.start_time
    assert second.end_time <= window.end_time
    assert dict(second.attributes) == {
        "training.step.number": 2,
        "training.loss": 1.5,
        "training.learning_rate": 0.1,
        "training.data.wait.duration": 0.2,
        "training.step.slow": False,
    }


def test_a_slow_step_has_a_span_whatever_the_ratio(steps, span_box):
    steps.take(20)
    steps.take(1, duration_s=3.5)
    steps.take(5)
    step = span_box.one("training.step")
    assert step.attributes["training.step.number"] == 21
    assert step.attributes["training.step.slow"] is True
    assert step.end_time - step.start_time == 3_500_000_000


def test_without_windows_a_step_span_is_a_root_linked_to_the_run(span_box, set_clock):
    steps = Steps(span_box, set_clock, window_s=None, step_span_ratio=1.0)
    steps.take(1)
    steps.close()
    assert span_box.names() == ["training.step"]
    step = span_box.one("training.step")
    assert step.parent is None
    assert step.context.trace_id != steps.run.trace_id
    assert [link.context for link in step.links] == [steps.run]


def test_events_without_duration_or_number_are_steps_of_a_window_all_the_same(span_box, set_clock):
    steps = Steps(span_box, set_clock, step_span_ratio=1.0)
    steps.windows.step({"loss": "?"}, set_clock.monotonic_s, None, 0, None)
    steps.close()
    window = span_box.one("training.window")
    assert dict(window.attributes) == {"training.step.count": 0, "training.nonfinite.count": 0}
    assert window.links == ()
