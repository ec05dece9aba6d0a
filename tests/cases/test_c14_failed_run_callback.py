"""C14 through the callbacks: Lightning tells of an exception; for Hugging Face the process's end must."""

import json
import os
import subprocess
import sys

import pytest
from opentelemetry.trace import StatusCode

from otel_training.integrations.lightning import OTelCallback

# Lightning 2.6 asks PyTorch in a way that newer PyTorch is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")

# A Hugging Face Trainer whose model raises at step 3, with telemetry of the callback's own that writes spans
# to the file named by the first argument.
CHILD = """
import sys
import torch, transformers
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from otel_training.integrations.transformers import OTelCallback

class Model(torch.nn.Module):
    calls = 0

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        self.calls += 1
        if self.calls == 3:
            raise RuntimeError("out of memory")
        return {"loss": (self.weight * x).mean()}

path, folder = sys.argv[1:]
sink = open(path, "w")
exporter = ConsoleSpanExporter(out=sink, formatter=lambda span: span.to_json(indent=None) + "\\n")
callback = OTelCallback(prometheus=False, devices=(), span_processors=[SimpleSpanProcessor(exporter)])
args = transformers.TrainingArguments(
    output_dir=folder, max_steps=5, logging_steps=1, save_strategy="no", use_cpu=True, report_to=[],
    disable_tqdm=True, per_device_train_batch_size=1,
)
data = [{"x": torch.ones(1)}] * 8
transformers.Trainer(model=Model(), args=args, train_dataset=data, callbacks=[callback]).train()
"""


def test_the_span_of_a_transformers_run_is_written_at_exit_and_not_as_ok(tmp_path):
    path = tmp_path / "spans.jsonl"
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=55,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert child.returncode == 1
    assert child.stderr.rstrip().endswith("RuntimeError: out of memory")
    spans = [json.loads(line) for line in path.read_text().splitlines()]
    (run,) = [span for span in spans if span["name"] == "training.run"]
    assert run["status"] == {"status_code": "ERROR", "description": "RuntimeError: out of memory"}
    assert run["attributes"]["training.run.outcome"] == "failed"
    assert run["attributes"]["training.step.final"] == 2


def test_a_lightning_run_fails_with_the_same_exception_and_its_span_says_why(capture, lightning_trainer):
    error = RuntimeError("out of memory")
    _, fit = lightning_trainer(OTelCallback(capture.hook), fault=error)
    with pytest.raises(RuntimeError) as caught:
        fit()
    assert caught.value is error
    (span,) = capture.spans("training.run")
    assert span.status.status_code is StatusCode.ERROR
    (event,) = span.events
    assert event.attributes["exception.type"] == "RuntimeError"
    assert event.attributes["exception.message"] == "out of memory"
    assert capture.value("training.runs", training_run_outcome="failed", error_type="RuntimeError") == 1
    assert capture.value("training.steps") == 2
