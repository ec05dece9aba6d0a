"""What users' own tests get: ``TelemetryCapture`` and the pytest fixture."""

from opentelemetry import metrics, trace

from otel_training.testing import TelemetryCapture

pytest_plugins = ["pytester"]


def test_values_by_name_and_attributes(capture):
    capture.hook.on_event("train_start", {"start_step": 0})
    capture.hook.on_event("train_step", {"step": 1, "loss": 0.5, "data_wait_s": 0.1})
    for stage, loss in (("validation", 1.0), ("test", 2.0)):
        capture.hook.on_event("validation_end", {"stage": stage, "loss": loss})
    assert capture.value("training.loss") == 0.5
    assert capture.value("training.data.wait.duration") == 1
    assert capture.value("training.validation.loss", training_stage="test") == 2.0
    assert capture.value("training.bridge.events", training_event_outcome="handled") == 4
    assert capture.value("training.loss", training_stage="none") is None
    assert capture.value("no.such.metric") is None


def test_points_are_named_without_the_identity(capture):
    capture.hook.on_event("validation_end", {"stage": "test", "loss": 2.0})
    points = capture.points("training.validation.loss")
    assert list(points) == [("training.validation.loss", frozenset({("training.stage", "test")}))]
    assert points.keys() < capture.points().keys()


def test_spans_in_the_order_of_their_ends(capture, clock):
    capture.hook.on_event("train_start", {"start_step": 0})
    clock.advance(1.0)
    capture.hook.on_event("checkpoint", {"step": 1, "duration_s": 0.5})
    capture.hook.on_event("train_end", {"outcome": "completed"})
    assert [span.name for span in capture.spans()] == [
        "training.run.start", "training.checkpoint.save", "training.run",
    ]  # fmt: skip
    assert len(capture.spans("training.run")) == 1


def test_captures_do_not_see_each_other_nor_touch_what_is_global(capture, clock):
    before = metrics.get_meter_provider(), trace.get_tracer_provider()
    other = TelemetryCapture(clock=clock, run_id="run-1")
    other.hook.on_event("train_step", {"step": 1, "loss": 0.5})
    assert capture.value("training.loss") is None
    other.close()
    assert before == (metrics.get_meter_provider(), trace.get_tracer_provider())


def test_the_pytest_fixture_is_fresh_for_each_test(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("loss", [0.5, 0.25])
        def test_loss(telemetry_capture, loss):
            assert telemetry_capture.value("training.loss") is None
            telemetry_capture.hook.on_event("train_step", {"step": 1, "loss": loss})
            assert telemetry_capture.value("training.loss") == loss
            assert telemetry_capture.value("training.steps") == 1
        """
    )
    result = pytester.runpytest_subprocess("-p", "otel_training.testing", "-W", "error")
    result.assert_outcomes(passed=2)


def test_the_plugin_loads_without_torch_or_the_sdk(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(
        """
        import sys

        def test_nothing():
            loaded = {name.partition(".")[0] for name in sys.modules}
            assert "torch" not in loaded
            assert "opentelemetry.sdk" not in sys.modules
        """
    )
    pytester.runpytest_subprocess("-p", "otel_training.testing").assert_outcomes(passed=1)
