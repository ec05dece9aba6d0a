"""A tenth of `make endurance`: memory and cost stay flat and no counter is wrong by one."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(300)
def test_a_hundred_thousand_steps_through_everything():
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("endurance.py"), "--steps", "100000"],
        capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing is wrong" in done.stdout
    assert done.stderr == "'loss' is nan: counted, not exported; later ones are only counted\n"


@pytest.mark.parametrize("counter", ["page", "otlp", "lines", "events", "drops"])
def test_it_sees_a_counter_that_is_wrong_by_one(counter, endurance):
    expected = endurance.Expected()
    expected.events = 12
    page, otlp = {}, {}
    for number, metric in enumerate(endurance.COUNTERS, start=1):
        suffix = "_count" if metric.kind == "histogram" else ""
        expected.sums[metric] = number
        page[endurance.catalog.prometheus_name(metric) + suffix] = number
        otlp[metric.name] = number
    events = endurance.catalog.prometheus_name(endurance.catalog.BRIDGE_EVENTS)
    page[events] = 12
    lines = {"run.log": 12}
    assert endurance.differences(expected, page, otlp, lines) == []
    drops = endurance.catalog.prometheus_name(endurance.catalog.BRIDGE_DROPS)
    {
        "page": lambda: page.update({endurance.catalog.prometheus_name(endurance.catalog.STEPS): 2}),
        "otlp": lambda: otlp.update({endurance.catalog.STEP_DURATION.name: 0}),
        "lines": lambda: lines.update({"run.log": 11}),
        "events": lambda: page.update({events: 13}),
        "drops": lambda: page.update({drops: 1}),
    }[counter]()
    assert len(endurance.differences(expected, page, otlp, lines)) == 1


@pytest.fixture
def endurance(monkeypatch):
    """The program as a module."""
    spec = importlib.util.spec_from_file_location("endurance", Path(__file__).with_name("endurance.py"))
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "endurance", module)  # where its dataclass looks for it
    spec.loader.exec_module(module)
    return module
