"""S5, prometheus/client_python#14: a name with quotes, backslashes and newlines is one label on one line."""

import io

from prometheus_client.parser import text_fd_to_metric_families

from otel_training.identity import detect
from otel_training.prometheus import RunCollector, render
from otel_training.testing import TelemetryCapture

NAME = 'a"b\\c\nd'


def test_the_name_is_escaped_and_reads_back_unchanged(clock):
    capture = TelemetryCapture(clock=clock, run_id="run-1", run_name=NAME)
    capture.hook.on_event("train_step", {"step": 1, "loss": 0.5})
    labels = detect({}, run_id="run-1", run_name=NAME).labels
    page, _ = render(RunCollector(capture.hook._to.run.state, labels), None)
    text = page.decode()
    (line,) = (line for line in text.splitlines() if line.startswith("training_loss{"))
    assert r'training_run_name="a\"b\\c\nd"' in line
    families = {family.name: family for family in text_fd_to_metric_families(io.StringIO(text, newline="\n"))}
    (sample,) = families["training_loss"].samples
    assert sample.labels["training_run_name"] == NAME
    assert sample.value == 0.5
    capture.close()
