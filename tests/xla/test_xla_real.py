"""The real torch_xla on its CPU runtime; ``make test-xla`` sets it up in an environment of its own."""

import os

import pytest

from otel_training.devices.reading import Unavailable
from otel_training.devices.sources import make_sources
from otel_training.rank_device import RankDevice


@pytest.fixture
def read():
    assert os.environ["PJRT_DEVICE"] == "CPU"
    [source] = make_sources(("xla",), RankDevice("xla:0"), host=True)
    return lambda: {
        (sample.metric.name, sample.labels): sample.value for sample in source.read(None, 0.0).samples
    }


def test_a_library_that_is_loaded_is_not_set_up_by_reading(read):
    import torch_xla
    import torch_xla.debug.metrics as metrics

    with pytest.raises(Unavailable, match="not in use yet"):
        read()
    assert "CreateXlaTensor" not in metrics.counter_names()
    assert torch_xla.__version__.startswith("2.9")


def test_a_graph_that_ran_shows_in_counters_and_times(read):
    import torch
    import torch_xla
    import torch_xla.debug.metrics as metrics

    device = torch_xla.device()
    assert torch.ones(4, 4, device=device).sum().item() == 16
    found = read()
    events = {labels[0]: value for (name, labels), value in found.items() if name == "torch_xla.events"}
    assert set(events) == set(metrics.counter_names())
    assert events["CreateXlaTensor"] >= 1
    assert found["torch_xla.compiles", ()] >= 1
    assert 0 < found["torch_xla.compile.time", ()] < 60
    assert 0 < found["torch_xla.execute.time", ()] < 60
    assert not any(name.startswith("torch_xla.memory") for name, _ in found)  # this runtime does not tell it


def test_the_monitor_emits_the_counters():
    import torch
    import torch_xla

    from otel_training import DeviceStatsMonitor

    class Log:
        every_steps = 1

        def __init__(self):
            self.emitted = []

        def emit(self, event, payload):
            self.emitted.append((event, payload))

    class Trainer:
        device = torch_xla.device()
        step = 0

        def __init__(self):
            self.loggers = [Log()]

    trainer, monitor = Trainer(), DeviceStatsMonitor()
    monitor.setup(trainer, None, "fit")
    torch.ones(2, device=trainer.device).sum().item()
    monitor.on_train_batch_start(trainer, None, None, 0)
    [(event, payload)] = trainer.loggers[0].emitted
    assert event == "device_stats"
    assert payload["DeviceStatsMonitor.on_train_batch_start/CreateXlaTensor.xla"] >= 1
