"""DiLoCo as it is run: a master and workers as processes that meet at a folder, and that get killed."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from trainer.diloco.coordinator import JoinError
from trainer.diloco.objects import read_newest_globals
from trainer.diloco.store import Store
from trainer.runtime import train_from_config

ROOT = Path(__file__).resolve().parents[2]
# Three processes import torch on whatever machine this is.
LONGEST_S = 150.0

CONFIG = """\
model: {layers: 1, width: 16, heads: 2, context: 8}
data: {paths: [text.txt], batch_size: 4}
train: {max_steps: 40}
optimizer: {lr: 3e-3}
checkpoint: {every_steps: 5}
diloco:
  store: store
  workers: 2
  inner_steps: 10
  poll_s: 0.05
  torn_after_s: 0.5
  join_timeout_s: 100
  round_timeout_s: 100
  wait_timeout_s: 110
  final_timeout_s: 110
"""

# The command line, on a file system that kills its process in the middle of the second upload.
DIES_WHILE_UPLOADING = """\
import os, signal, sys
from fsspec.implementations.local import LocalFileSystem
from trainer.cli import main

write, uploads = LocalFileSystem.pipe_file, []

def write_half_and_die(self, path, value, **kwargs):
    if "/deltas/" in path:
        uploads.append(path)
        if len(uploads) == 2:
            write(self, path, value[: len(value) // 2], **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)
    return write(self, path, value, **kwargs)

LocalFileSystem.pipe_file = write_half_and_die
sys.exit(main(sys.argv[1:]))
"""

# Slow enough that there is a moment between two outer steps.
SLOW = """\
import time

class Slow:
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        time.sleep(0.05)
"""


class Process:
    """One of the run's processes, in a folder of its own."""

    def __init__(self, folder, name, arguments, *, code=None, resume=False):
        self.folder = folder / name
        self.output = folder / f"{name}-{int(resume)}.txt"
        program = ["-m", "trainer"] if code is None else ["-c", code]
        settings = [f"run.directory={name}", *arguments]
        command = [sys.executable, *program, "train", "--config", "diloco.yaml"]
        command += [each for setting in settings for each in ("--set", setting)]
        command += ["--resume"] * resume
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with self.output.open("wb") as output:
            self.popen = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT
            )

    def wait(self):
        """Wait for the end; return the exit status."""
        try:
            return self.popen.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running: {self.output.read_text()}")

    def events(self, name=None):
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if name in (None, event["event"])]

    def weights(self):
        return _weights_of(self.folder)


def _weights_of(folder):
    return torch.load(sorted((folder / "checkpoints").iterdir())[-1], weights_only=True)["model"]


@pytest.fixture
def start(tmp_path):
    """Starts processes by role and name; those that still run at the end are killed."""
    (tmp_path / "diloco.yaml").write_text(CONFIG)
    (tmp_path / "text.txt").write_bytes(b"the quick brown fox jumps over the lazy dog. " * 80)
    (tmp_path / "slow.py").write_text(SLOW)
    started = []

    def start(role, name, *arguments, **options):
        settings = [f"diloco.role={role}", *arguments]
        if role == "worker":
            settings.append(f"diloco.worker={name}")
        started.append(Process(tmp_path, name, settings, **options))
        return started[-1]

    yield start
    for process in started:
        process.popen.kill()
        process.popen.wait()


def _until(condition, *processes):
    deadline_s = time.monotonic() + LONGEST_S
    while not condition():
        output = "\n".join(process.output.read_text() for process in processes)
        assert time.monotonic() < deadline_s, output
        assert all(process.popen.poll() in (None, 0) for process in processes), output
        time.sleep(0.05)


def _assert_equal(first, second):
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


@pytest.mark.timeout(200)  # three processes import torch and train
def test_the_example_trains_two_workers_to_the_same_weights(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "diloco.py"), str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "master: 4 outer steps" in done.stdout
    events = {
        name: [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("master", "a", "b")
    }
    outer = [event for event in events["master"] if event["event"] == "outer_step"]
    assert [event["outer_step"] for event in outer] == [1, 2, 3, 4]
    assert sum(event["deltas_included"] for event in outer) == 8
    for name in ("a", "b"):
        losses = [event["loss"] for event in events[name] if event["event"] == "train_step"]
        assert losses[-1] < losses[0] - 0.5
        uploads = [event["step"] for event in events[name] if event["event"] == "delta_uploaded"]
        assert uploads == [20, 40, 60, 80]
    _assert_equal(_weights_of(tmp_path / "a"), _weights_of(tmp_path / "b"))
    newest = read_newest_globals(Store(str(tmp_path / "store")))
    assert newest.generation == 4
    for name, tensor in newest.tensors.items():
        assert torch.equal(tensor, _weights_of(tmp_path / "a")[name]), name


@pytest.mark.timeout(200)  # four processes import torch and train
def test_a_worker_killed_in_the_middle_of_an_upload_comes_back(start, tmp_path):
    master = start("master", "master")
    steady = start("worker", "steady", "run.seed=1")
    doomed = start("worker", "doomed", "run.seed=2", code=DIES_WHILE_UPLOADING)
    assert doomed.wait() == -signal.SIGKILL, doomed.output.read_text()
    store = Store(str(tmp_path / "store"))
    torn = [found for found in store.objects("deltas") if not found.is_whole]
    assert len(torn) == 1
    back = start("worker", "doomed", "run.seed=2", resume=True)
    for process in (back, steady, master):
        assert process.wait() == 0, process.output.read_text()
    assert "torn" in master.output.read_text()
    assert store.objects("deltas") == [] or all(found.is_whole for found in store.objects("deltas"))
    outer = master.events("outer_step")
    assert [event["outer_step"] for event in outer] == list(range(1, len(outer) + 1))
    # What was published before the kill counted, once; the refused one is the torn one.
    published = len(steady.events("delta_uploaded")) + len(back.events("delta_uploaded"))
    assert sum(event["deltas_included"] for event in outer) == published
    assert sum(event["deltas_rejected"] for event in outer) == 1
    _assert_equal(back.weights(), {**back.weights(), **read_newest_globals(store).tensors})


@pytest.mark.timeout(200)  # three processes import torch and train
def test_a_killed_master_comes_back_and_another_model_is_turned_away(start, tmp_path, monkeypatch):
    alone = ("diloco.workers=1",)
    first = start("master", "master", *alone)
    worker = start("worker", "a", *alone, "callbacks=['slow:Slow']")
    _until(lambda: len(first.events("outer_step")) == 2, first, worker)
    first.popen.send_signal(signal.SIGKILL)
    first.popen.wait()
    second = start("master", "master", *alone, resume=True)
    assert worker.wait() == 0, worker.output.read_text()
    assert second.wait() == 0, second.output.read_text()
    assert re.search(r"going on from generation [23]", second.output.read_text())
    # One file of both masters: each outer step was made, and told, once.
    outer = second.events("outer_step")
    assert [event["outer_step"] for event in outer] == [1, 2, 3, 4]
    assert [event["deltas_included"] for event in outer] == [1, 1, 1, 1]
    assert [event["step"] for event in worker.events("delta_uploaded")] == [10, 20, 30, 40]
    newest = read_newest_globals(Store(str(tmp_path / "store")))
    assert newest.generation == 4
    _assert_equal(worker.weights(), {**worker.weights(), **newest.tensors})

    settings = ("diloco.role=worker", "diloco.worker=misfit", "model.width=32", "run.directory=misfit")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(JoinError, match=r"global weights in store are those of another model: .* has shape"):
        train_from_config(tmp_path / "diloco.yaml", settings, stream=io.StringIO())
