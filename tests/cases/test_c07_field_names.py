"""C07, verl-project/verl#984: names of fields with any characters reach every sink."""

import json
import re
import shutil
import subprocess

import pytest

from otel_training.prometheus import RunCollector, render
from trainer import MetricLogger

KEYS = ["val-aux/reward/mean@1", "1st_token_ms", "top 5 acc", "x" * 300]


@pytest.fixture
def line(capture, tmp_path):
    path = tmp_path / "run.jsonl"
    with MetricLogger(file=tmp_path / "run.log", json_file=path, hooks=[capture.hook]) as logger:
        logger.emit("train_step", {"step": 1, **dict.fromkeys(KEYS, 0.5)})
        yield json.loads(path.read_text())


def test_the_log_has_the_keys_as_given(line):
    assert {key: line[key] for key in KEYS} == dict.fromkeys(KEYS, 0.5)


def test_each_key_is_one_point_under_a_name_that_is_allowed(line, capture):
    points = capture.points("training.custom")
    assert {dict(key)["training.field"]: point.value for (_, key), point in points.items()} == dict.fromkeys(
        KEYS, 0.5
    )
    for name, _ in capture.points():
        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_.\-/]{0,254}", name)


def test_promtool_reads_the_page(line, capture):
    promtool = shutil.which("promtool")
    assert promtool, "promtool is needed: make tools"
    page, _ = render(RunCollector(capture.hook._to.run.state, ("run-1", "run-1", "0")), None)
    check = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, check=False)
    assert (check.returncode, check.stdout + check.stderr) == (0, b"")
    names = {re.split(rb"[{ ]", each)[0].decode() for each in page.splitlines() if not each.startswith(b"#")}
    assert all(re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", name) for name in names)
    assert "training_custom" in names
