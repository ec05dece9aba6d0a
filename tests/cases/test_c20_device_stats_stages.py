"""C20 (Lightning-AI/pytorch-lightning#15794): device stats in fit, validate and test, few and with units."""

import json
import time

import pytest
import torch
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from torch import nn

import otel_training
from trainer import MetricLogger, Trainer

BATCHES = [(torch.zeros(4, 2), torch.zeros(4, 1))] * 4


def make_trainer(logger):
    model = nn.Linear(2, 1)
    return Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        BATCHES,
        device="cpu",
        logger=logger,
        callbacks=[otel_training.DeviceStatsMonitor()],
        loss_fn=nn.functional.mse_loss,
        max_steps=4,
        validation_dataloader=BATCHES[:1],
        test_dataloader=BATCHES[:1],
    )


def lines_of(path, event):
    return [line for line in map(json.loads, path.read_text().splitlines()) if line["event"] == event]


def test_every_stage_has_its_lines_at_the_logs_cadence(tmp_path, telemetry_capture):
    path = tmp_path / "log.jsonl"
    logger = MetricLogger(
        file=tmp_path / "log", json_file=path, every_steps=2, hooks=[telemetry_capture.hook]
    )
    trainer = make_trainer(logger)
    trainer.fit()
    trainer.validate()
    trainer.test()
    points = telemetry_capture.points()
    trainer.close()
    stats = lines_of(path, "device_stats")
    assert [line["step"] for line in stats if line["stage"] == "fit"] == [2, 2, 4, 4]
    assert {line["stage"] for line in stats} == {"fit", "validation", "test"}
    assert not [name for name, _ in points if "train_batch" in name or "Monitor" in name]
    [(_, utilization)] = [item for item in points.items() if item[0][0] == "system.cpu.utilization"]
    assert 0 <= utilization.value <= 1


def test_units_are_those_of_the_catalog():
    from otel_training import catalog

    assert catalog.SYSTEM_CPU_UTILIZATION.unit == catalog.SYSTEM_MEMORY_UTILIZATION.unit == "1"
    assert catalog.SYSTEM_MEMORY_USAGE.unit == catalog.CUDA_ALLOCATED.unit == "By"


def test_without_a_logger_the_monitor_says_so_and_the_sampler_goes_on():
    with pytest.raises(otel_training.MisconfigurationException):
        make_trainer(False).fit()
    reader = InMemoryMetricReader()
    with otel_training.start(prometheus=False, metric_readers=[reader], device_interval_s=0.1):
        for _ in range(100):
            data = reader.get_metrics_data()
            names = {
                metric.name
                for resource in (data.resource_metrics if data else ())
                for scope in resource.scope_metrics
                for metric in scope.metrics
            }
            if "system.cpu.utilization" in names:
                break
            time.sleep(0.05)
    assert {"system.cpu.utilization", "system.memory.usage", "process.memory.usage"} <= names
