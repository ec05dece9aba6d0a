"""C05, verl-project/verl#4904: exporters and instruments that raise do not end training, nor fill the log."""

import json
import logging

import pytest
import torch
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from otel_training import OTelHook, catalog, process
from otel_training.guard import Guard, Notices
from trainer import MetricLogger, Trainer

STEPS = 5


class DownMetrics(MetricExporter):
    def export(self, metrics_data, timeout_millis=10_000, **_):
        raise RuntimeError("down")

    def force_flush(self, timeout_millis=10_000):
        return True

    def shutdown(self, timeout_millis=30_000, **_):
        pass


class DownSpans(SpanExporter):
    def export(self, spans):
        raise RuntimeError("down")


class FaultyHistogram:
    def record(self, *_):
        raise RuntimeError("faulty")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, batch):
        return (self.weight * batch).mean()


@pytest.fixture
def hook():
    reader = PeriodicExportingMetricReader(DownMetrics(), export_interval_millis=3_600_000)
    meter_provider = MeterProvider([reader], shutdown_on_exit=False)
    tracer_provider = TracerProvider(shutdown_on_exit=False)
    tracer_provider.add_span_processor(BatchSpanProcessor(DownSpans()))
    hook = OTelHook(meter_provider=meter_provider, tracer_provider=tracer_provider)
    instruments = process.instruments(meter_provider, Guard(Notices()))
    instruments._recordings[catalog.STEP_DURATION] = FaultyHistogram()
    yield hook
    hook.close()
    meter_provider.shutdown()
    tracer_provider.shutdown()


def test_training_finishes_and_the_other_sinks_are_complete(hook, tmp_path, caplog):
    path = tmp_path / "run.jsonl"
    logger = MetricLogger(file=tmp_path / "run.log", json_file=path, hooks=[hook])
    model = Model()
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        [torch.ones(2)] * STEPS,
        device="cpu",
        logger=logger,
        max_steps=STEPS,
    )
    with trainer:
        result = trainer.fit()
    assert result.steps == STEPS
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines if line["event"] == "train_step"] == [1, 2, 3, 4, 5]
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert any("training.step.duration failed" in line for line in told)
    assert any("xport" in line for line in told)
    assert len(told) <= 10
