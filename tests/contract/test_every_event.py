"""Each event of the catalog comes out of a run, and arrives in the log, in memory and on the page."""

import json
import urllib.request

import pytest
import torch
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_training import DeviceStatsMonitor, catalog, start
from otel_training.catalog.naming import prometheus_name
from otel_training.catalog.spans import SPANS
from trainer import build_runtime, load_config
from trainer.events import EVENTS
from trainer.open_run import open_run
from trainer.runtime import build_logger

DILOCO = {event for event in EVENTS if event.startswith("delta_")} | {"outer_step", "outer_sync"}
"""These come from DiLoCo: the tests of trainer/diloco and tests/e2e/test_diloco.py make them happen."""

HERE = set(EVENTS) - DILOCO

# Fed only where there is something to say, which a healthy run on a CPU has not.
OTHER_DEVICES = ("training.device.memory.", "torch.", "torch_xla.", "hw.")
NOT_WITHOUT_SURPRISES = {"training.custom", "training.nonfinite.values", "training.step.replays"}


class Spoil:
    """A callback that makes the gradient of one step not finite."""

    def __init__(self):
        self.done = False

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.step == 1 and not self.done:
            self.done = True
            self.handle = pl_module.norm.weight.register_hook(self.spoil)

    def spoil(self, grad):
        self.handle.remove()
        return grad * float("nan")


class Broken:
    """A hook that always raises."""

    def on_event(self, event, payload):
        raise RuntimeError("broken hook")


class Seen:
    """What a run of two attempts left in each place."""

    def __init__(self, folder):
        self.reader, exporter = InMemoryMetricReader(), InMemorySpanExporter()
        torch.set_num_threads(1)
        text = folder / "text.txt"
        text.write_bytes(b"the quick brown fox jumps over the lazy dog. " * 80)
        overrides = {
            "run.directory": str(folder / "run"), "run.device": "cpu", "run.peak_flops_per_s": 1e12,
            "model.layers": 1, "model.width": 16, "model.heads": 2, "model.context": 8,
            "data.paths": [str(text)], "data.batch_size": 4, "data.holdout_fraction": 0.1,
            "train.compile": True, "train.compile_backend": "eager", "train.ooo_backprop": True,
            "train.validate_every_steps": 2, "train.validation_batches": 1, "train.max_steps": 3,
            "shapes.alignment": 12, "checkpoint.every_steps": 2,
        }  # fmt: skip
        with start(
            run_id="every",
            prometheus_port=0,
            devices=(),
            step_span_ratio=1.0,
            metric_readers=[self.reader],
            span_processors=[SimpleSpanProcessor(exporter)],
        ) as telemetry:
            self._attempt(load_config(None, overrides), telemetry.hook)
            resumed = {"run.resume": True, "train.max_steps": 5}
            self._attempt(load_config(None, {**overrides, **resumed}), telemetry.hook)
            telemetry.flush(10.0)
            with urllib.request.urlopen(f"{telemetry.url}", timeout=10) as answer:
                self.page = answer.read().decode()
            self.points = self._collect()
            self.spans = {span.name for span in exporter.get_finished_spans()}
        self.spans |= {span.name for span in exporter.get_finished_spans()}
        lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
        self.lines = [json.loads(line) for line in lines]

    def _attempt(self, config, hook):
        run = open_run(config)
        logger = build_logger(config, run=run)
        logger.hooks += [Shield(hook), Broken()]
        with logger:
            trainer, _ = build_runtime(config, run=run, logger=logger)
            trainer.callbacks += [Spoil(), DeviceStatsMonitor()]
            trainer.fit()
            if config.run.resume:
                trainer.test()

    def _collect(self):
        data = self.reader.get_metrics_data()
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def counted(self, event):
        """How many of this event the bridge has handled, in memory and on the page."""
        wanted = {"training.event.name": event, "training.event.outcome": "handled"}
        in_memory = [
            point.value
            for point in self.points["training.bridge.events"]
            if wanted.items() <= dict(point.attributes).items()
        ]
        on_page = [
            float(line.split()[-1])
            for line in self.page.splitlines()
            if line.startswith("training_bridge_events_total{")
            and f'training_event_name="{event}"' in line
            and 'training_event_outcome="handled"' in line
        ]
        return sum(in_memory), sum(on_page)


class Shield:
    """The hook of telemetry that outlives one logger."""

    every_steps = 1

    def __init__(self, hook):
        self.on_event = hook.on_event


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    return Seen(tmp_path_factory.mktemp("every"))


@pytest.mark.parametrize("event", sorted(HERE))
def test_the_event_is_in_the_log_in_memory_and_on_the_page(seen, event):
    written = sum(line["event"] == event for line in seen.lines)
    assert written > 0
    assert seen.counted(event) == (written, written)


@pytest.mark.parametrize("event", sorted(HERE))
def test_the_metrics_of_the_event_are_in_memory_and_on_the_page(seen, event):
    expected = {
        metric.name: metric
        for metric in catalog.METRICS
        if event in metric.events
        and not metric.name.startswith(OTHER_DEVICES)
        and metric.name not in NOT_WITHOUT_SURPRISES
    }
    missing = {name for name in expected if not seen.points.get(name)}
    assert missing == set()
    names = {line.partition("{")[0] for line in seen.page.splitlines() if not line.startswith("#")}
    bare = {name.removesuffix("_count") for name in names}
    assert {prometheus_name(each) for each in expected.values()} - bare == set()


@pytest.mark.parametrize("event", sorted(HERE))
def test_the_spans_of_the_event_were_made(seen, event):
    expected = {span.name for span in SPANS if event in span.events}
    assert expected - seen.spans == set()


def test_the_order_before_the_first_step(seen):
    names = [line["event"] for line in seen.lines]
    first = names.index("train_start")
    before = [name for name in names[:first] if name != "hook_failed"]
    assert before[0] == "shape_profile"
    assert set(before[1:-2]) == {"shape_warning"}
    assert before[-2:] == ["compile", "ooo_backprop"]
    start_event = seen.lines[first]
    warnings = [line for line in seen.lines[:first] if line["event"] == "shape_warning"]
    assert (start_event["shape_alignment"], start_event["shape_warning_count"]) == (12, len(warnings))
    assert start_event["ooo_backprop"]["enabled"] is False


def test_the_flops_utilization_is_that_of_the_tokens(seen):
    (start_event, _) = [line for line in seen.lines if line["event"] == "train_start"]
    assert (start_event["flops_per_token"], start_event["peak_flops_per_s"]) == (
        # 6 N + 12 layers width context, N without the positions.
        6 * (start_event["parameters"] - 8 * 16) + 12 * 1 * 16 * 8,
        1e12,
    )
    (utilization,) = [point.value for point in seen.points["training.flops.utilization"]]
    (tokens_per_s,) = [point.value for point in seen.points["training.throughput.tokens"]]
    assert utilization == pytest.approx(tokens_per_s * start_event["flops_per_token"] / 1e12)
