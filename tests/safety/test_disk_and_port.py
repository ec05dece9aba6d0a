"""A disk or a port that fails in the middle of a training that logs and is scraped."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import otel_training
from otel_training import catalog
from trainer import MetricLogger

STEPS = catalog.prometheus_name(catalog.STEPS)


def unprivileged():
    """Return the start of a command line that has no power over permissions and low ports."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("setpriv is not installed: apt-get install util-linux")
        pytest.skip("setpriv is not installed: apt-get install util-linux")
    # Root without its powers is still the owner of its files, and bound by their permissions.
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]


def run(program, *arguments):
    return subprocess.run(
        [*unprivileged(), sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True, text=True, timeout=50,
    )  # fmt: skip


READ_ONLY = """
import logging, os, sys, time
from pathlib import Path
import otel_training
from trainer import MetricLogger

logging.basicConfig(format="%(message)s")
folder = Path(sys.argv[1]) / "logs"
telemetry = otel_training.start(prometheus=False, devices=(), prometheus_textfile=sys.argv[2])
log = MetricLogger(level="ERROR", json_file=folder / "log.jsonl", hooks=[telemetry.hook])
log.emit("train_start", {"start_step": 0})
for step in range(1, 31):
    if step == 10:  # taken away, and nobody may make it again
        (folder / "log.jsonl").unlink()
        folder.chmod(0o555)
        time.sleep(1.1)  # the log looks for its file once a second
    if step == 20:
        folder.chmod(0o755)
        time.sleep(1.1)
    log.emit("train_step", {"step": step})
log.emit("train_end", {"steps": 30})
log.close()
"""


def test_a_folder_that_is_read_only_for_a_while(tmp_path):
    done = run(READ_ONLY, tmp_path, tmp_path / "run.prom")
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "log.jsonl" in done.stderr
    lines = [json.loads(line) for line in (tmp_path / "logs" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["event"] == "train_step"][-10:] == list(range(21, 31))
    page = (tmp_path / "run.prom").read_text()
    assert f"{STEPS}{{" in page
    assert next(line for line in page.splitlines() if line.startswith(STEPS)).endswith(" 30.0")


def test_a_folder_that_is_removed_in_the_middle(tmp_path, caplog, page_values):
    file = tmp_path / "logs" / "log.jsonl"
    with otel_training.start(prometheus_port=0, devices=()) as telemetry:
        log = MetricLogger(level="ERROR", json_file=file, hooks=[telemetry.hook.on_event])
        log.emit("train_start", {"start_step": 0})
        for step in range(1, 31):
            if step == 10:
                shutil.rmtree(file.parent)
            log.emit("train_step", {"step": step})
        assert page_values(telemetry, STEPS) == {(): 30}
        log.close()
    assert len(caplog.records) <= 1


LOW_PORT = """
import logging, sys
import otel_training
logging.basicConfig(format="%(message)s")
telemetry = otel_training.start(prometheus_port=int(sys.argv[1]), devices=())
telemetry.hook.on_event("train_start", {"start_step": 0})
for step in range(1, 11):
    telemetry.hook.on_event("train_step", {"step": step})
print(telemetry.url)
telemetry.close()
"""


def first_open_port():
    path = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
    return int(path.read_text()) if path.exists() else 1024


@pytest.mark.skipif(first_open_port() <= 300, reason="on this machine everybody may have low ports")
@pytest.mark.parametrize(
    ("port", "said"), [(80, "no scrape page, training goes on"), (first_open_port() - 2, "is on port")]
)
def test_a_port_that_one_may_not_have(port, said):
    done = run(LOW_PORT, port)
    assert done.returncode == 0, done.stderr
    [line] = done.stderr.splitlines()
    assert said in line
    assert "Permission" in line
    if "no scrape page" in said:
        assert done.stdout == "None\n"
    else:
        assert int(done.stdout.split(":")[2].split("/")[0]) >= first_open_port()


def test_ipv6(tmp_path, page_values, caplog):
    file = tmp_path / "targets.json"
    with otel_training.start(
        prometheus_host="::1", prometheus_port=0, devices=(), prometheus_discovery=file
    ) as telemetry:
        telemetry.hook.on_event("train_start", {"start_step": 0})
        telemetry.hook.on_event("train_step", {"step": 1})
        assert telemetry.url.startswith("http://[::1]:")
        assert page_values(telemetry, STEPS) == {(): 1}
        [group] = json.loads(file.read_text())
        assert group["targets"] == [telemetry.url.split("/")[2]]
    assert caplog.records == []
