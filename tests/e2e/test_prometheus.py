"""A real training run in a process of its own, scraped by a real Prometheus while it runs."""

import json
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from otel_training import catalog

ROOT = Path(__file__).resolve().parents[2]

# Metrics that a trainer's events feed; those of devices have tests of their own.
FROM_EVENTS = {metric for metric in catalog.METRICS if set(metric.events) - {"device_stats"}}
# What this run cannot feed: it is on the CPU, alone, not resumed, nothing goes wrong in it, and our trainer
# neither checks shapes nor reorders its backward pass.
NOT_FED = {
    catalog.CUSTOM,
    catalog.DELTA_ACTIVE_UPLOADS,
    catalog.DELTA_STALE,
    catalog.DELTA_UPLOADS,
    catalog.DELTA_UPLOAD_DURATION,
    catalog.DEVICE_MEMORY_USAGE,
    catalog.FLOPS_UTILIZATION,
    catalog.HOOK_FAILURES,
    catalog.NONFINITE_VALUES,
    catalog.OOO_ENABLED,
    catalog.OOO_STREAMS,
    catalog.OUTER_CANDIDATES,
    catalog.OUTER_DELTAS,
    catalog.OUTER_STEPS,
    catalog.OUTER_STEP_CURRENT,
    catalog.OUTER_STEP_DURATION,
    catalog.SHAPE_ALIGNMENT,
    catalog.SHAPE_WARNINGS,
    catalog.STEP_REPLAYS,
    catalog.STEP_SKIPS,
}
# Fed when a run ends; a page that lingers shows them to one more scrape.
FED_AT_THE_END = {catalog.RUNS}

# Lines of `promtool check metrics` that we know and keep.
KNOWN_FINDINGS = {
    # The name is OpenTelemetry's own convention.
    'process_thread_count non-histogram and non-summary metrics should not have "_count" suffix',
}


@dataclass
class LiveRun:
    """A training process and where it writes."""

    process: subprocess.Popen
    folder: Path
    target: str

    def events(self) -> list[dict]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def output(self) -> str:
        return (self.folder.parent / "output.txt").read_text()


@pytest.fixture
def live_run(tmp_path, unused_port):
    """A run that goes on until it is stopped, its page on a port of its own."""
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 2000)
    folder = tmp_path / "run"
    config = {
        "run": {"directory": str(folder), "name": "e2e", "device": "cpu"},
        "model": {"layers": 1, "heads": 2, "width": 32, "context": 32},
        "data": {"paths": [str(text)], "batch_size": 4, "holdout_fraction": 0.1},
        "train": {
            "max_steps": 10**9,
            "max_time_s": 50,
            "compile": True,
            "compile_backend": "eager",  # without code generation, so that a machine without a compiler does
            "validate_every_steps": 50,
            "validation_batches": 2,
        },
        "checkpoint": {"every_steps": 50},
        # The text log in a file leaves stdout to what a failing test should show.
        "logging": {
            "file": "train.log",
            "hooks": [{"otel": {"prometheus_port": unused_port, "linger_s": 10.0}}],
        },
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "trainer", "train", "--config", str(tmp_path / "config.yaml")]
    with (tmp_path / "output.txt").open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
    yield LiveRun(process, folder, f"127.0.0.1:{unused_port}")
    process.kill()
    process.wait()


def names_of(metrics) -> set[str]:
    """The names under which Prometheus keeps these metrics; a histogram is there by its count."""
    suffix = {"histogram": "_count"}
    return {catalog.prometheus_name(metric) + suffix.get(metric.kind, "") for metric in metrics}


def names_seen(server) -> set[str]:
    """The names of the series that the server has had, of those that a trainer's events feed."""
    found = server.query('count by (__name__) (last_over_time({__name__=~"training_.+"}[5m]))')
    return {sample.labels["__name__"] for sample in found} & names_of(FROM_EVENTS)


def wait_for_names(server, wanted: set[str], run: LiveRun) -> None:
    deadline = time.monotonic() + 40.0
    while missing := sorted(wanted - names_seen(server)):
        if time.monotonic() > deadline or run.process.poll() is not None:
            pytest.fail(f"never scraped: {missing}\n{server.log.read_text()}\n{run.output()}")
        time.sleep(0.2)


def test_prometheus_scrapes_a_live_run_and_answers_for_every_metric(live_run, prometheus):
    server = prometheus(live_run.target)
    fed = FROM_EVENTS - NOT_FED
    wait_for_names(server, names_of(fed - FED_AT_THE_END), live_run)

    [steps] = server.query(catalog.prometheus_name(catalog.STEPS))

    live_run.process.send_signal(signal.SIGTERM)
    # Ended by the signal itself, which a shell shows as 143.
    assert live_run.process.wait(timeout=30) == -signal.SIGTERM, live_run.output()

    assert names_seen(server) == names_of(fed)
    events = live_run.events()
    [start] = [event for event in events if event["event"] == "train_start"]
    identity = {
        name: steps.labels[name] for name in ("training_run_id", "training_run_name", "training_rank")
    }
    assert identity == {"training_run_id": start["run_id"], "training_run_name": "e2e", "training_rank": "0"}
    compare_with_jsonl(server, events)


def compare_with_jsonl(server, events: list[dict]) -> None:
    """The last values that Prometheus saw are those that the JSON lines end with."""

    def last(metric, suffix="", **labels) -> float:
        name = catalog.prometheus_name(metric) + suffix
        [sample] = server.query(f"sum(last_over_time({name}{json_selector(labels)}[5m]))")
        return sample.value

    steps = [event for event in events if event["event"] == "train_step"]
    checkpoints = [event for event in events if event["event"] == "checkpoint"]
    assert events[-1]["event"] == "train_end"
    assert events[-1]["outcome"] == "interrupted"
    assert len(steps) > 50

    assert last(catalog.STEPS) == steps[-1]["step"] == len(steps)
    assert last(catalog.SAMPLES) == steps[-1]["samples"]
    assert last(catalog.TOKENS) == steps[-1]["tokens"]
    assert last(catalog.MICRO_BATCHES) == steps[-1]["micro_batches"]
    assert last(catalog.CHECKPOINTS) == len(checkpoints)
    assert last(catalog.CHECKPOINT_LAST_STEP) == checkpoints[-1]["step"]
    assert last(catalog.RUNS, training_run_outcome="interrupted") == 1
    assert last(catalog.BRIDGE_EVENTS) == len(events)
    assert last(catalog.BRIDGE_EVENTS, training_event_name="train_step") == len(steps)
    assert last(catalog.DATA_WAIT_DURATION, "_count") == len(steps)


def json_selector(labels: dict[str, str]) -> str:
    return "{" + ", ".join(f"{name}={json.dumps(value)}" for name, value in labels.items()) + "}"


def test_promtool_finds_nothing_on_the_page(live_run, promtool):
    page = read_page(live_run)
    done = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, timeout=30)
    findings = (done.stdout + done.stderr).decode().splitlines()
    assert [line for line in findings if line not in KNOWN_FINDINGS] == []
    assert done.returncode == 0 or findings


def read_page(run: LiveRun) -> bytes:
    """The page as text, as soon as it shows a checkpoint and with it every kind of metric."""
    wanted = catalog.prometheus_name(catalog.CHECKPOINT_SIZE).encode()
    deadline = time.monotonic() + 40.0
    while time.monotonic() < deadline and run.process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://{run.target}/metrics", timeout=5.0) as answer:
                page = answer.read()
        except OSError:
            page = b""
        if wanted in page:
            return page
        time.sleep(0.2)
    pytest.fail(f"the page never showed a checkpoint:\n{run.output()}")
