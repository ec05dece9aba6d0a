"""The last numbers of a run as a file for node_exporter."""

import subprocess
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

import otel_training
from otel_training import catalog


def numbers(path):
    families = text_string_to_metric_families(path.read_text())
    return {sample.name: sample.value for family in families for sample in family.samples}


def train(steps, **settings):
    with otel_training.start(prometheus=False, devices=(), run_id="r1", **settings) as telemetry:
        telemetry.hook.on_event("train_start", {"start_step": 0})
        for step in range(1, steps + 1):
            telemetry.hook.on_event("train_step", {"step": step, "loss": 0.5})
        telemetry.hook.on_event("train_end", {"steps": steps})


def test_the_file_has_the_last_numbers(tmp_path):
    train(7, prometheus_textfile=tmp_path / "run.prom")
    found = numbers(tmp_path / "run.prom")
    assert found[catalog.prometheus_name(catalog.STEPS)] == 7
    assert found[catalog.prometheus_name(catalog.RUN_ACTIVE)] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["run.prom"]


def test_a_folder_has_a_file_named_after_the_run(tmp_path):
    train(3, prometheus_textfile=tmp_path / "textfile")
    [path] = (tmp_path / "textfile").iterdir()
    assert path.suffix == ".prom"
    assert numbers(path)[catalog.prometheus_name(catalog.STEPS)] == 3


def test_ranks_do_not_write_over_each_other(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        train(rank + 1, prometheus_textfile=tmp_path / "run.prom")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-rank0.prom", "run-rank1.prom"]


def test_a_later_run_replaces_the_numbers(tmp_path):
    train(7, prometheus_textfile=tmp_path / "run.prom")
    train(2, prometheus_textfile=tmp_path / "run.prom")
    assert numbers(tmp_path / "run.prom")[catalog.prometheus_name(catalog.STEPS)] == 2


@pytest.mark.parametrize(
    ("ending", "status"),
    [("", 0), ("raise SystemExit(3)", 3), ("raise RuntimeError('x')", 1), ("os.kill(os.getpid(), 15)", -15)],
)
def test_it_is_there_however_the_program_ends(tmp_path, ending, status):
    program = f"""
import os
import otel_training
telemetry = otel_training.start(prometheus=False, prometheus_textfile={str(tmp_path / "r.prom")!r})
telemetry.hook.on_event("train_start", {{"start_step": 0}})
telemetry.hook.on_event("train_step", {{"step": 1}})
{ending}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True)
    assert done.returncode == status, done.stderr
    assert numbers(tmp_path / "r.prom")[catalog.prometheus_name(catalog.STEPS)] == 1


def test_a_place_that_cannot_be_written_is_refused_at_the_start(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"prometheus_textfile=.*cannot be written"):
        otel_training.start(prometheus=False, devices=(), prometheus_textfile=tmp_path / "file" / "run.prom")


def test_a_folder_that_goes_away_costs_nothing_but_a_line(tmp_path, caplog):
    folder = tmp_path / "textfile"
    telemetry = otel_training.start(prometheus=False, devices=(), prometheus_textfile=folder)
    folder.rmdir()
    telemetry.close()
    [record] = caplog.records
    assert record.getMessage().startswith("prometheus_textfile failed, training goes on")


@pytest.mark.parametrize("value", ["", "  ", 5, b"run.prom", "a\0b"])
def test_what_is_no_path_is_refused(value):
    with pytest.raises(ValueError, match=r"prometheus_textfile=.*path of a .prom file or of a folder"):
        otel_training.start(prometheus=False, devices=(), prometheus_textfile=value)
