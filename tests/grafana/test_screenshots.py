"""Each dashboard drawn by Grafana's own components in a real browser, from a real Prometheus.

The hour that they show is recorded (``recording.py``, ``runs.py``); another test shows a run that goes on.
With ``PICTURES`` in the environment the pictures are written into that folder.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import recording
import runs

ROOT = Path(__file__).resolve().parents[2]
BOARDS = sorted(path.stem for path in (ROOT / "grafana" / "dashboards").glob("*.json"))

HOUR = {
    "scrape": f"{recording.SCRAPE_INTERVAL_S}s",
    "from": str(recording.BEGIN_S * 1000),
    "to": str((recording.BEGIN_S + recording.LENGTH_S) * 1000),
}
LEAST_INK = 30
"""Coloured pixels below which a chart counts as empty: a single bar of one event has more."""

pytestmark = pytest.mark.timeout(900)  # the first test installs and builds


@pytest.fixture(scope="session")
def recorded(servers, tmp_path_factory):
    """A Prometheus with the recorded hour."""
    folder = tmp_path_factory.mktemp("recorded")
    servers.need_tool("promtool")
    recording.record(runs.everything(), folder)
    # A series that ends has no staleness marker when it comes from a file; a short look back does instead.
    program = folder / "prometheus"
    program.write_text(f'#!/bin/sh\nexec {servers.need_tool("prometheus")} --query.lookback-delta=20s "$@"\n')
    program.chmod(0o755)
    server = servers.Prometheus(str(program), [], folder)
    server.wait_ready()
    yield server.url
    server.close()


def picture(name: str, tmp_path: Path) -> Path:
    folder = Path(os.environ.get("PICTURES") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.png"


def shown(panels):
    return {panel.title: " ".join(panel.text.split()) for panel in panels}


def without_value(panels) -> list[str]:
    """What of a panel says that it shows nothing."""
    wrong = []
    for panel in panels:
        if panel.is_empty or not panel.series:
            wrong.append(f"{panel.title}: {panel.text.strip()!r}")
        elif panel.kind == "timeseries":
            if panel.ink < LEAST_INK:
                wrong.append(f"{panel.title}: nothing is drawn")
            text = " ".join(panel.text.split())
            absent = [name for name in panel.series if " ".join(name.split()) not in text]
            wrong += [f"{panel.title}: the legend lacks {name!r}" for name in absent]
        elif not re.search(r"\d|Running", panel.text):
            wrong.append(f"{panel.title}: {panel.text.strip()!r}")
        if "No data" in panel.text:
            wrong.append(f"{panel.title}: No data")
        # Grafana writes the name of a label where a series lacks it.
        wrong += [
            f"{panel.title}: {name!r}" for name in panel.series if re.search(r"training_\w+|\{\{", name)
        ]
    return wrong


@pytest.mark.parametrize("uid", BOARDS)
def test_every_panel_shows_a_value(uid, browser, recorded):
    panels = browser.open(uid, recorded, marks="off", **HOUR)
    assert without_value(panels) == []


def test_variables_offer_what_there_is(browser, recorded):
    browser.open("training-devices", recorded, **HOUR)
    names = [runs.HEALTHY, runs.NAN, runs.STALLED, runs.DILOCO, runs.TPU, runs.LAPTOP]
    offered = {name: set(values) for name, values in browser.offered.items()}
    assert offered.pop("datasource") == {"the-prometheus"}
    assert offered.pop("name") == set(names)
    assert len(offered.pop("run")) == len(names)
    assert offered == {"job": {"training"}, "rank": {"0", "1", "2", "3"}, "device": {"0", "1", "xla:0"}}


@pytest.mark.parametrize("uid", BOARDS)
def test_a_healthy_run(uid, browser, recorded, tmp_path):
    name = runs.DILOCO if uid == "training-diloco" else runs.HEALTHY
    panels = browser.open(uid, recorded, picture(uid, tmp_path), **{"var-name": name}, **HOUR)
    others = {runs.HEALTHY, runs.DILOCO, runs.TPU} - {name}
    assert [series for panel in panels for series in panel.series if series.split(" ")[0] in others] == []
    charts = [panel for panel in panels if panel.kind == "timeseries" and not panel.is_empty]
    marks = {panel.marks for panel in charts}
    # A start and, but for DiLoCo, five checkpoints and steps that were done again.
    assert marks == ({1} if name == runs.DILOCO else {7})


def test_a_loss_that_is_nan(browser, recorded, tmp_path):
    """The step, the trend, the age of the checkpoint and the fault can be read off the picture."""
    address = {"var-name": runs.NAN, **HOUR}
    panels = shown(browser.open("training-overview", recorded, picture("fault-nan", tmp_path), **address))
    assert panels["Run"] == "Running"
    assert re.fullmatch(r"6,\d{3}", panels["Step now"])
    assert re.fullmatch(r"8\.\d+ mins", panels["Checkpoint age"])
    assert re.fullmatch(r"2,\d{3}", panels["NaN or infinite"])
    assert panels["Loss now"] == "None reported, or not finite"
    assert "loss nan" in panels["NaN or infinite values"]


def test_a_run_that_stands_still_after_a_checkpoint(browser, recorded, tmp_path):
    address = {"var-name": runs.STALLED, **HOUR}
    panels = shown(browser.open("training-overview", recorded, picture("fault-stall", tmp_path), **address))
    assert panels["Run"] == "No steps"
    assert panels["Step now"] == f"{runs.LAST_STEP_OF_THE_STALLED:,}"
    assert re.fullmatch(r"31\.\d+ mins", panels["Checkpoint age"])
    assert re.fullmatch(r"31\.\d+ mins", panels["Since last step"])
    assert panels["Tokens per second now"] == "0"
    assert panels["Time left"] == panels["Step time now"] == "No steps now"
    assert re.fullmatch(r"3\.\d{3}", panels["Loss now"])


def test_a_run_that_ended(browser, recorded):
    panels = shown(browser.open("training-overview", recorded, **{"var-name": runs.LAPTOP}, **HOUR))
    assert panels["Run"] == "Completed"
    assert re.fullmatch(r"[\d,]+", panels["Step now"])
    assert re.fullmatch(r"\d\.\d{3}", panels["Loss now"])
    assert "ended" in panels["Since last step"]


@pytest.fixture
def going_on(servers, tmp_path):
    """A real run on the CPU that goes on until it is stopped, scraped each second by the Prometheus given."""
    port = servers.free_port()
    settings = {
        "run.directory": tmp_path / "run",
        "run.device": "cpu",
        "data.paths": json.dumps([str(ROOT / "trainer")]),
        "data.holdout_fraction": 0.1,
        "model.context": 64,
        "model.layers": 1,
        "model.width": 32,
        "train.max_steps": 10**6,
        "train.max_time_s": 600,
        "train.validate_every_steps": 50,
        "train.validation_batches": 2,
        "checkpoint.every_steps": 50,
        "logging.file": "train.log",
        "logging.hooks": json.dumps([{"otel": {"prometheus_port": port, "device_interval_s": 1.0}}]),
    }
    command = [sys.executable, "-m", "trainer", "train", "--config", "examples/demo.yaml"]
    command += [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    with (tmp_path / "output.txt").open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
    folder = tmp_path / "live"
    folder.mkdir()
    server = servers.Prometheus(servers.need_tool("prometheus"), [f"127.0.0.1:{port}"], folder)
    server.wait_ready()
    yield server
    server.close()
    process.kill()
    process.wait()


# What a short run on the CPU without a fault does not have.
NOT_LIVE = {
    "Model FLOPs utilization", "NaN or infinite values", "Steps skipped or done again", "Runs that ended",
}  # fmt: skip


def test_a_run_that_is_going_on(browser, going_on):
    deadline = time.monotonic() + 120.0
    # Twenty scrapes after the first checkpoint, so that rates have two points and lines a length.
    while not going_on.query("count_over_time(training_checkpoint_last_step[10m]) > 20"):
        assert time.monotonic() < deadline, "no checkpoint"
        time.sleep(0.5)
    address = {"scrape": "1s", "from": "now-3m", "to": "now", "marks": "off"}
    panels = browser.open("training-overview", going_on.url, **address)
    assert without_value([panel for panel in panels if panel.title not in NOT_LIVE]) == []
    assert {panel.title for panel in panels if panel.is_empty} <= NOT_LIVE
    assert shown(panels)["Run"] == "Running"


def test_dashboards_are_of_grafanas_types(modules):
    result = subprocess.run(
        ["npm", "run", "--silent", "types"], cwd=modules.parent, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (0, "")
