"""Every query of every dashboard and every rule, asked of a real Prometheus that scrapes a real run.

What a short run on a CPU cannot feed comes from a recorded page: a second target that has a number for every
metric of the catalog. Which panels need it is written down here, and that list is held to be true as well.
"""

import http.server
import itertools
import json
import math
import os
import re
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from otel_training import catalog, start
from otel_training.artifacts import alerts, rule_files
from otel_training.artifacts.dashboards import BOARDS, dashboard
from otel_training.artifacts.records import RECORDS
from otel_training.artifacts.thresholds import Thresholds
from otel_training.artifacts.variables import interpolated
from otel_training.prometheus import RunCollector, render
from otel_training.state import State

ROOT = Path(__file__).resolve().parents[2]
RECORDED = "recorded"

# Grafana's own variables, for a server that scrapes every second.
TIME_VARIABLES = {"__rate_interval": "10s", "__interval": "5s", "__range": "5m"}

# Panels, or single queries of them ("title B"), that a short run on the CPU without a fault does not feed.
NEEDS_HARDWARE = {
    "training-overview": {"Model FLOPs utilization", "Goodput and utilization B"},
    "training-devices": {
        "Fullest GPU", "Out of memory", "GPU utilization", "Hottest GPU", "Live tensors against the limit",
        "Allocator", "Peaks", "Pools", "Retries and out-of-memory errors", "Driver calls",
        "Device memory in the trainer's log", "Utilization", "GPU memory against the limit", "Temperature",
        "Power", "ECC errors", "XLA memory against the limit", "Compiles and executions",
        "Time in compiles and executions", "Counters of torch_xla", "Memory of Apple's GPU",
    },
}  # fmt: skip
NEEDS_DILOCO = {
    "training-diloco": {
        "Last outer step", "Outer steps taken", "Uploads that failed", "Deltas rejected", "In flight now",
        "Outer step", "Deltas found", "Deltas included and rejected", "Time of an outer step",
        "Uploads by outcome", "Upload time", "Stale deltas", "Uploads in flight",
    },
}  # fmt: skip
NEEDS_A_FAULT = {
    "training-overview": {"NaN or infinite values", "Steps skipped or done again", "Runs that ended"},
    "training-bridge": {"Values dropped", "Hooks that failed", "Custom fields", "Readings that failed"},
}
NOT_FED = (NEEDS_HARDWARE, NEEDS_DILOCO, NEEDS_A_FAULT)
DEPENDS_ON_THE_MACHINE = {"Container memory", "Swap"}

# There only while a validation is under way; `tests/rules` feeds it.
MOMENTARY_RULES = {"run:training_validation:begun"}


class Page(http.server.ThreadingHTTPServer):
    """A page with a number for every metric of the catalog; its counters move at every scrape."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.state = State()
        self.target = f"127.0.0.1:{self.server_port}"

    def move(self) -> None:
        for metric in catalog.METRICS:
            values = [attribute.values or ("recorded",) for attribute in metric.attributes]
            for labels in itertools.product(*values):
                self._move(metric, labels)

    def _move(self, metric, labels) -> None:
        if metric.kind == "histogram":
            self.state.observe(metric, metric.bounds[5], 1, *labels)
        elif metric.kind == "counter":
            self.state.add(metric, 1, *labels)
        elif metric.name.endswith("last_time"):
            self.state.set(metric, time.time(), *labels)
        else:
            self.state.set(metric, 0.5 if metric.unit == "1" else 1, *labels)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Page

    def do_GET(self) -> None:
        self.server.move()
        body, content_type = render(RunCollector(self.server.state, (RECORDED, RECORDED, "0")), None)
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments) -> None:
        pass


def serve_in_thread(server):
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def recorded_page():
    yield from serve_in_thread(Page())


@pytest.fixture
def train(tmp_path):
    """Start real runs on the CPU that go on until the test is over."""
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 2000)
    processes = []

    def run(name: str, port: int, ranks: int = 1, **more: object) -> list[str]:
        """Start a run of several ranks and return where their pages are."""
        settings = {
            "run.name": name,
            "run.directory": tmp_path / name,
            "run.device": "cpu",
            "data.holdout_fraction": 0.1,
            "data.paths": json.dumps([str(text)]),
            "model.layers": 1,
            "model.width": 32,
            "model.context": 32,
            "train.max_steps": 10**9,
            "train.max_time_s": "null",
            "train.validate_every_steps": 20,
            "train.validation_batches": 2,
            "checkpoint.every_steps": 20,
            "logging.file": "train.log",
            "logging.hooks": json.dumps([{"otel": {"prometheus_port": port, "device_interval_s": 1.0}}]),
            **more,
        }
        launcher = [sys.executable, "-m"]
        if ranks > 1:
            launcher += ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
        command = [*launcher, "trainer", "train", "--config", "examples/demo.yaml"]
        command += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (tmp_path / f"{name}.txt").open("wb") as output:
            processes.append(
                subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, env=one_thread)
            )
        return [f"127.0.0.1:{port + rank}" for rank in range(ranks)]

    yield run
    for process in processes:
        process.terminate()  # torchrun ends its ranks then
    for process in processes:
        process.wait()


@pytest.fixture
def training(train, unused_port):
    """A run; yields where its page is."""
    [target] = train("demo", unused_port)
    return target


def write_rules(folder: Path, limits: Thresholds | None = None) -> list[str]:
    """Write the rules, evaluated every second, and return their paths."""
    paths = [folder / "records.yaml", folder / "alerts.yaml"]
    paths[0].write_text(rule_files.recording_rules(interval_s=1))
    paths[1].write_text(rule_files.alert_rules(alerts.alerts(limits), interval_s=1))
    return [str(path) for path in paths]


def queries_of(board) -> list[tuple[str, dict]]:
    """Every query of a dashboard as ``title`` or, in a panel of several, ``title B``; and its JSON."""
    return [
        (f"{panel['title']} {target['refId']}" if len(panel["targets"]) > 1 else panel["title"], target)
        for panel in dashboard(board)["panels"]
        for target in panel.get("targets", ())
    ]


def is_listed(query: str, lists) -> bool:
    return query in lists or re.sub(r" [A-Z]$", "", query) in lists


def choice(run: str) -> dict[str, str]:
    everything = dict.fromkeys(("job", "name", "rank", "device"), ".*")
    return {**TIME_VARIABLES, **everything, "run": run}


def has_data(server, target: dict, run: str) -> bool:
    """Whether the query of a panel has a finite number for a run, asked as Grafana asks it."""
    query = interpolated(target["expr"], choice(run))
    if target["instant"]:
        numbers = [series["value"][1] for series in server.ask("query", query=query)["result"]]
    else:
        now = time.time()
        answer = server.ask("query_range", query=query, start=f"{now - 60:f}", end=f"{now:f}", step="1")
        numbers = [value for series in answer["result"] for _, value in series["values"]]
    return any(math.isfinite(float(number)) for number in numbers)


def wait_for(condition, what: str, timeout_s: float = 40.0):
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited in vain for {what}")
        time.sleep(0.2)
    return found


def ask_as_grafana_does(server, variable: dict, chosen: dict[str, str]) -> set[str]:
    """The values that a query variable offers."""
    query = interpolated(variable["query"], {**TIME_VARIABLES, **chosen})
    if match := re.fullmatch(r"label_values\((.+), (\w+)\)", query):
        return set(server.ask(f"label/{match[2]}/values", **{"match[]": match[1]}))
    [inner] = re.fullmatch(r"query_result\((.+)\)", query).groups()
    shown = [json.dumps(series["metric"]) for series in server.ask("query", query=inner)["result"]]
    pattern = variable["regex"].strip("/").replace('="', '": "')
    return {found for text in shown for found in re.findall(pattern, text)}


def test_every_query_and_rule_has_data(training, recorded_page, prometheus, tmp_path):
    server = prometheus(training, recorded_page.target, rule_files=write_rules(tmp_path))
    saved = catalog.prometheus_name(catalog.CHECKPOINT_LAST_TIME) + f'{{training_run_id!="{RECORDED}"}}'
    [series] = wait_for(lambda: server.query(saved), "a checkpoint")
    run = series.labels["training_run_id"]
    # Rates need two scrapes of what came last, and the last to come is the checkpoint.
    twice = f"count_over_time({saved}[30s]) > 5"
    wait_for(lambda: server.query(twice), "five scrapes more")

    wrong = []
    for board in BOARDS:
        listed = set().union(*(needs.get(board.uid, ()) for needs in NOT_FED))
        for query, target in queries_of(board):
            fed = has_data(server, target, run)
            if fed == is_listed(query, listed) and not is_listed(query, DEPENDS_ON_THE_MACHINE):
                wrong.append(
                    f"{board.uid}: {query} is listed as not fed, but is" if fed else f"{query}: empty"
                )
            if not has_data(server, target, RECORDED):
                wrong.append(f"{board.uid}: {query} is empty on the recorded page")
        wrong += [
            f"{board.uid}: annotation {mark['name']} is empty"
            for mark in dashboard(board)["annotations"]["list"]
            if not has_data(server, {**mark, "instant": False}, ".*")
        ]
    wrong += [
        f"{record.name} is empty"
        for record in RECORDS
        if not server.query(record.name) and record.name not in MOMENTARY_RULES
    ]
    rules = [rule for group in server.ask("rules")["groups"] for rule in group["rules"]]
    assert len(rules) == len(RECORDS) + len(alerts.ALERTS)
    wrong += [f"{rule['name']}: {rule['lastError']}" for rule in rules if rule["health"] != "ok"]
    assert wrong == []
    check_variables(server, run)


# Single queries of the boards below that take a fault, or several workers at odds.
NEEDS_A_FAULT_IN_DILOCO = {"Uploads that failed", "Deltas rejected", "Stale deltas"}


@pytest.mark.timeout(180)  # three processes of PyTorch start side by side
def test_real_ranks_and_real_outer_steps_feed_their_dashboards(train, two_ports, unused_port, prometheus):
    targets = train("ranks", two_ports, ranks=2)
    targets += train(
        "outer", unused_port, **{"diloco.role": "single", "diloco.inner_steps": 5, "diloco.poll_s": 0.1}
    )
    server = prometheus(*targets)
    steps, outer = (catalog.prometheus_name(metric) for metric in (catalog.STEPS, catalog.OUTER_STEPS))
    twice = f'count(count_over_time({steps}{{training_run_name="ranks"}}[60s]) > 5) == 2'
    wait_for(lambda: server.query(twice), "both ranks on their pages", 120.0)
    [series] = wait_for(lambda: server.query(f"{outer} > 3"), "outer steps", 60.0)
    [ranked, *_] = server.query(f'{steps}{{training_run_name="ranks"}}')
    wait_for(lambda: server.query(f"count_over_time({outer}[60s]) > 5"), "more scrapes")

    wrong = []
    for uid, run in (
        ("training-diloco", series.labels["training_run_id"]),
        ("training-ranks", ranked.labels["training_run_id"]),
    ):
        [board] = [board for board in BOARDS if board.uid == uid]
        wrong += [
            f"{uid}: {query} is empty"
            for query, target in queries_of(board)
            if not is_listed(query, NEEDS_A_FAULT_IN_DILOCO) and not has_data(server, target, run)
        ]
    assert wrong == []
    seen = server.query(f'{steps}{{training_run_name="ranks"}}')
    assert {each.labels["training_rank"] for each in seen} == {"0", "1"}


@pytest.fixture
def two_ports():
    """The first of two free ports that stand side by side."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
        return port


def check_variables(server, run: str) -> None:
    chosen: dict[str, str] = {}
    offered = {}
    [devices] = [board for board in BOARDS if board.has_devices]
    for variable in dashboard(devices)["templating"]["list"]:
        if variable["type"] == "query":
            offered[variable["name"]] = ask_as_grafana_does(server, variable, chosen)
            chosen[variable["name"]] = variable["allValue"]
    assert offered == {
        "job": {"training"},
        "name": {"demo", RECORDED},
        "run": {run, RECORDED},
        "rank": {"0"},
        "device": {RECORDED},
    }


class Webhook(http.server.ThreadingHTTPServer):
    """What an Alertmanager sends, as it arrives."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _WebhookHandler)
        self.url = f"http://127.0.0.1:{self.server_port}/"
        self.notes: list[dict] = []

    def alerts(self, name: str) -> list[dict]:
        found = [alert for note in self.notes for alert in note["alerts"]]
        return [alert for alert in found if alert["labels"]["alertname"] == name]


class _WebhookHandler(http.server.BaseHTTPRequestHandler):
    server: Webhook

    def do_POST(self) -> None:
        self.server.notes.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_arguments) -> None:
        pass


@pytest.fixture
def webhook():
    yield from serve_in_thread(Webhook())


@pytest.fixture
def alertmanager(tmp_path, unused_port, webhook, need):
    """A real Alertmanager that tells ``webhook`` at once; yields its address."""
    config = tmp_path / "alertmanager.yml"
    route = {"receiver": "page", "group_wait": "0s", "group_interval": "1s"}
    receiver = {"name": "page", "webhook_configs": [{"url": webhook.url}]}
    config.write_text(json.dumps({"route": route, "receivers": [receiver]}))
    command = [
        need("prometheus-alertmanager"),
        f"--config.file={config}",
        f"--storage.path={tmp_path / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{unused_port}",
        "--cluster.listen-address=",
    ]
    with (tmp_path / "alertmanager.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    yield f"127.0.0.1:{unused_port}"
    process.terminate()
    process.wait()


def test_a_stalled_run_makes_an_alertmanager_call(alertmanager, webhook, prometheus, tmp_path):
    limits = replace(Thresholds(), stalled_floor_s=2.0, stalled_hold_s=0.0)
    with start(run_name="hung", run_id="h1", prometheus_port=0, devices=()) as telemetry:
        emit = telemetry.hook.on_event
        emit("train_start", {"start_step": 0, "target_step": 100})
        for step in (1, 2, 3):
            emit("train_step", {"step": step, "loss": 1.0})
        server = prometheus(
            telemetry.url.removeprefix("http://").removesuffix("/metrics"),
            rule_files=write_rules(tmp_path, limits),
            alerting={"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
        )
        stalled = wait_for(lambda: webhook.alerts("TrainingStalled"), f"a call\n{server.log.read_text()}")
    assert stalled[0]["status"] == "firing"
    assert stalled[0]["labels"]["severity"] == "critical"
    assert stalled[0]["labels"]["training_run_id"] == "h1"
    assert re.fullmatch(
        r"hung \(h1\) has made no step for \d+(\.\d+)?s", stalled[0]["annotations"]["summary"]
    )
    assert stalled[0]["annotations"]["runbook_url"] == f"{rule_files.RUNBOOK}#trainingstalled"
