"""The alerts, each on series where it must be silent and on others where it must fire."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from otel_training.artifacts.alerts import alerts

HERE = Path(__file__).resolve().parent
RULES = HERE.parents[1] / "grafana" / "rules"
CASES = sorted(HERE.glob("*.yaml"))


def promtool(*arguments: object) -> subprocess.CompletedProcess:
    program = shutil.which("promtool")
    if program is None:
        pytest.fail("promtool is not installed: apt-get install --no-install-recommends prometheus")
    command = [program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=50)


def test_promtool_takes_the_rules():
    done = promtool("check", "rules", *sorted(RULES.glob("*.yaml")))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_alerts_fire_and_are_silent(case):
    done = promtool("test", "rules", case)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_seen_silent_and_firing():
    seen: dict[str, set[bool]] = {}
    for case in CASES:
        for scenario in yaml.safe_load(case.read_text())["tests"]:
            for test in scenario["alert_rule_test"]:
                seen.setdefault(test["alertname"], set()).add(bool(test["exp_alerts"]))
    assert seen == {alert.name: {False, True} for alert in alerts()}
