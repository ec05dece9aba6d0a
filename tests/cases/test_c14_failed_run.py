"""C14, huggingface/transformers#30333: a job that failed does not stay "running"."""

import json

import pytest
import torch
from opentelemetry.trace import StatusCode

from otel_training.testing import TelemetryCapture
from trainer import MetricLogger, Trainer


class Model(torch.nn.Module):
    """Raises at its third step."""

    def __init__(self, error):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.calls = 0
        self.error = error

    def forward(self, batch):
        self.calls += 1
        if self.calls == 3:
            raise self.error
        return (self.weight * batch).mean()


@pytest.fixture
def failed(tmp_path):
    """A run that failed: what it left in the log, in metrics and in spans."""
    capture = TelemetryCapture(run_id="run-1")
    error = RuntimeError("out of memory")
    model, path = Model(error), tmp_path / "run.jsonl"
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        [torch.ones(2)] * 5,
        device="cpu",
        logger=MetricLogger(file=tmp_path / "run.log", json_file=path, hooks=[capture.hook]),
        max_steps=5,
    )
    with pytest.raises(RuntimeError) as caught:
        trainer.fit()
    assert caught.value is error
    value = capture.value("training.runs", training_run_outcome="failed", error_type="RuntimeError")
    trainer.close()
    yield [json.loads(line) for line in path.read_text().splitlines()], value, capture
    capture.close()


def test_the_log_has_the_finished_steps_and_how_it_ended(failed):
    lines, _, _ = failed
    assert [line["step"] for line in lines if line["event"] == "train_step"] == [1, 2]
    end = lines[-1]
    assert (end["event"], end["outcome"], end["error"]) == (
        "train_end", "failed", "RuntimeError: out of memory",
    )  # fmt: skip


def test_the_run_is_counted_as_failed(failed):
    _, runs, _ = failed
    assert runs == 1


def test_the_span_of_the_run_says_why(failed):
    _, _, capture = failed
    (span,) = capture.spans("training.run")
    assert span.status.status_code is StatusCode.ERROR
    (event,) = span.events
    assert event.name == "exception"
    assert event.attributes["exception.type"] == "RuntimeError"
    assert event.attributes["exception.message"] == "out of memory"


def test_no_span_is_left_open(failed):
    _, _, capture = failed
    ended = {span.context.span_id for span in capture.spans()}
    parents = {span.parent.span_id for span in capture.spans() if span.parent}
    assert parents <= ended
    assert {span.name for span in capture.spans()} == {
        "training.run",
        "training.run.start",
        "training.window",
    }
