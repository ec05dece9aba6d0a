"""Several ranks under torchrun: one run, a log and a scrape page for each rank, and one end for all."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from trainer.run_directory import RunDirectory

ROOT = Path(__file__).resolve().parents[2]

CONFIG = """\
run: {directory: run, device: cpu}
model: {layers: 1, width: 16, heads: 2, context: 8, dropout: 0.1}
data: {paths: [text.txt], batch_size: 4, holdout_fraction: 0.1}
train: {max_steps: 6, accumulation_steps: 2, validate_every_steps: 4, validation_batches: 2}
checkpoint: {every_steps: 2}
callbacks: ["ranks_plugins:Meddle"]
logging:
  hooks: [{otel: {prometheus_port: PORT, device_interval_s: 60.0}}, {"ranks_plugins:Witness": {port: PORT}}]
"""

PLUGINS = """\
import os, time, urllib.request
import torch

RANK = int(os.environ["RANK"])
TRAINER = []

class Meddle:
    def setup(self, trainer, pl_module, stage):
        TRAINER.append(trainer)
        self.done = False

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        time.sleep(float(os.environ.get("SLEEP_S", "0")))
        if RANK == 1 and trainer.step == 3 and not self.done:
            self.done = True
            if os.environ.get("FAULT") == "nan":
                self.handle = pl_module.norm.weight.register_hook(self.spoil)
            if os.environ.get("FAULT") == "raise":
                raise RuntimeError("rank 1 broke")
            if os.environ.get("FAULT") == "kill" and not int(os.environ["TORCHELASTIC_RESTART_COUNT"]):
                os.kill(os.getpid(), 9)

    def spoil(self, grad):
        self.handle.remove()
        return grad * float("nan")

class Witness:
    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port + int(os.environ['LOCAL_RANK'])}/metrics"

    def on_event(self, event, payload):
        if event == "train_start":
            with open(f"pid.{RANK}", "w") as file:
                file.write(str(os.getpid()))
        if event == "train_end":
            with urllib.request.urlopen(self.url, timeout=10) as answer, open(f"page.{RANK}", "wb") as file:
                file.write(answer.read())
            torch.save(TRAINER[0].model.state_dict(), f"weights.{RANK}")
"""


def _two_ports():
    """A free port whose successor is free as well."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                two.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


class Launch:
    """``torchrun`` with two ranks in a folder of its own."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "text.txt").write_bytes(b"the quick brown fox jumps over the lazy dog. " * 200)
        (folder / "ranks_plugins.py").write_text(PLUGINS)
        (folder / "c.yaml").write_text(CONFIG.replace("PORT", str(_two_ports())))
        self.process = None

    def start(self, *arguments, torchrun=(), **environment):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *torchrun]
        self.process = subprocess.Popen(
            [*command, "--standalone", "-m", "trainer", "train", "--config", "c.yaml", *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait(self):
        self.output, _ = self.process.communicate(timeout=50)
        return self.process.returncode

    def wait_for_step(self, step):
        deadline_s = time.monotonic() + 50
        while time.monotonic() < deadline_s and self.process.poll() is None:
            if all(
                (self.folder / "run" / name).exists() and f'"train_step","step":{step},' in self.text(name)
                for name in LOGS
            ):
                return
            time.sleep(0.05)
        pytest.fail("the run did not get going")

    def text(self, name):
        return (self.folder / "run" / name).read_text()

    def events(self, rank):
        lines = [json.loads(line) for line in self.text(LOGS[rank]).splitlines()]
        return [(line.pop("event"), line) for line in lines]

    def of(self, rank, event):
        return [payload for name, payload in self.events(rank) if name == event]

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()  # torchrun ends its ranks
            self.process.communicate(timeout=40)


LOGS = ("metrics.jsonl", "metrics.rank1.jsonl")
ENDLESS = ("--max-steps", "100000", "--set", "train.validate_every_steps=null")


@pytest.fixture
def launch(tmp_path):
    launch = Launch(tmp_path)
    yield launch
    launch.close()


def test_two_ranks_train_one_model_and_are_seen_one_by_one(launch):
    launch.start(FAULT="nan")
    assert launch.wait() == 0, launch.output
    folder = launch.folder
    zero, one = (dict(launch.events(rank)) for rank in (0, 1))
    assert zero["train_start"]["run_id"] == one["train_start"]["run_id"]
    assert zero["train_start"]["world_size"] == one["train_start"]["world_size"] == 2
    # The step is that of all; samples, tokens and micro-batches are each rank's share, of other data.
    for rank in (0, 1):
        steps = launch.of(rank, "train_step")
        assert [step["step"] for step in steps] == [1, 2, 3, 4, 5, 6]
        assert (steps[-1]["samples"], steps[-1]["tokens"], steps[-1]["micro_batches"]) == (48, 384, 12)
        # A gradient that is no number on rank 1 is one on all: all skip, and none applies.
        assert launch.of(rank, "optimizer_step_skipped")[0]["step"] == 4
    norms = [[step["grad_norm"] for step in launch.of(rank, "train_step")] for rank in (0, 1)]
    assert norms[0] == norms[1]
    losses = [[step["loss"] for step in launch.of(rank, "train_step")] for rank in (0, 1)]
    assert losses[0] != losses[1]
    assert zero["validation_end"]["loss"] == one["validation_end"]["loss"]
    weights = [torch.load(folder / f"weights.{rank}", weights_only=True) for rank in (0, 1)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    # Rank 0 owns checkpoints, text and summary.
    assert [save["step"] for save in launch.of(0, "checkpoint")] == [2, 4, 6]
    assert launch.of(1, "checkpoint") == []
    assert launch.output.count("| INFO | train_step step=") == 6
    assert launch.output.count("time by state") == 1
    for rank in (0, 1):
        page = (folder / f"page.{rank}").read_text()
        (steps,) = [line for line in page.splitlines() if line.startswith("training_steps_total{")]
        for label in (f'training_rank="{rank}"', f'training_run_id="{zero["train_start"]["run_id"]}"'):
            assert label in steps
        assert steps.endswith(" 6.0")
        assert f"rank {rank}: otel: scrape page at http://127.0.0.1:" in launch.output


def test_sigterm_to_torchrun_ends_both_at_one_step_and_both_go_on_from_one_checkpoint(launch):
    launch.start(*ENDLESS)
    launch.wait_for_step(3)
    launch.process.send_signal(signal.SIGTERM)
    assert launch.wait() != 0
    ends = [launch.of(rank, "train_end") for rank in (0, 1)]
    reached = ends[0][0]["steps"]
    assert [(end["steps"], end["outcome"]) for (end,) in ends] == [(reached, "interrupted")] * 2
    assert launch.of(0, "checkpoint")[-1]["step"] == reached
    assert RunDirectory(launch.folder / "run").record().last_step_reached == reached

    launch.start("--resume", "--max-steps", str(reached + 2))
    assert launch.wait() == 0, launch.output
    for rank in (0, 1):
        first, second = launch.of(rank, "train_start")
        assert (second["start_step"], second["attempt"]) == (reached, 1)
        assert second["run_id"] == first["run_id"]
        assert second["samples"] == reached * 8
        assert launch.of(rank, "checkpoint_restore")[0]["step"] == reached
        assert [step["samples"] for step in launch.of(rank, "train_step")[-2:]] == [
            (reached + 1) * 8,
            (reached + 2) * 8,
        ]


def test_sigterm_to_one_rank_ends_all_at_one_step(launch):
    launch.start(*ENDLESS, SLEEP_S="0.01")
    launch.wait_for_step(2)
    os.kill(int((launch.folder / "pid.1").read_text()), signal.SIGTERM)
    assert launch.wait() != 0
    ends = [launch.of(rank, "train_end")[0] for rank in (0, 1)]
    assert ends[0]["steps"] == ends[1]["steps"]
    assert [end["outcome"] for end in ends] == ["interrupted", "interrupted"]


def test_a_rank_that_fails_ends_all(launch):
    launch.start(*ENDLESS, FAULT="raise")
    assert launch.wait() != 0
    (end,) = launch.of(1, "train_end")
    assert (end["steps"], end["outcome"], end["error"]) == (3, "failed", "RuntimeError: rank 1 broke")
    (other,) = launch.of(0, "train_end")
    assert other["outcome"] in ("failed", "interrupted")
    assert other["steps"] == 3


def test_a_rank_that_is_killed_is_restarted_with_the_others_and_the_run_goes_on(launch):
    launch.start(torchrun=["--max-restarts", "1"], FAULT="kill")
    assert launch.wait() == 0, launch.output
    assert launch.of(0, "train_end")[0]["outcome"] in ("failed", "interrupted")
    for rank in (0, 1):
        first, second = launch.of(rank, "train_start")
        assert (second["run_id"], second["attempt"]) == (first["run_id"], 1)
        assert (second["start_step"], second["last_step_reached"]) == (2, 3)
        assert launch.of(rank, "train_end")[-1]["outcome"] == "completed"
        assert launch.of(rank, "train_end")[-1]["steps"] == 6


def test_the_example_is_one_command(tmp_path):
    example = ROOT / "examples" / "torchrun.yaml"
    (command,) = [line for line in example.read_text().splitlines() if line.startswith("#   torchrun ")]
    arguments = command.split()[2:]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *arguments, "--set", f"run.directory={tmp_path}/run"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OTEL_EXPORTER_PROMETHEUS_PORT": str(_two_ports())},
        capture_output=True,
        text=True,
        timeout=58,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for rank, name in enumerate(LOGS):
        lines = [json.loads(line) for line in (tmp_path / "run" / name).read_text().splitlines()]
        losses = [line["loss"] for line in lines if line["event"] == "train_step"]
        assert losses[-1] < losses[0] - 0.5
        assert (lines[-1]["event"], lines[-1]["outcome"]) == ("train_end", "completed")
        assert f"rank {rank}: otel: scrape page at" in done.stdout
