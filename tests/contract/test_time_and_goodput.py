"""Where the time went and how much of it was kept: telemetry says what the trainer's own stopwatch says."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from otel_training import OTelHook
from trainer.attempts import AttemptLog, begin_attempt, read_record
from trainer.checkpoint import CheckpointManager
from trainer.metrics import MetricLogger

ROOT = Path(__file__).resolve().parents[2]

# One attempt of a run, killed in the middle when it is told so: what it says at its end is what is compared.
ATTEMPT = """\
import io, json, os, sys, time
import torch
from torch import nn
from otel_training.testing import TelemetryCapture
from trainer import MetricLogger, Trainer
from trainer.attempts import AttemptLog, begin_attempt, read_record
from trainer.checkpoint import CheckpointManager
from pathlib import Path

torch.set_num_threads(1)
folder, kill_at = Path(sys.argv[1]), int(sys.argv[2])

class Work:
    # Times that can be told apart: a step takes 30 ms, a wait for data 10 ms, a validation batch 20 ms.
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        time.sleep(0.03)
        if trainer.step == kill_at:
            os.kill(os.getpid(), 9)
    def on_validation_batch_start(self, *args):
        time.sleep(0.02)

class Data:
    def __len__(self):
        return 100
    def __iter__(self):
        for _ in range(100):
            time.sleep(0.01)
            yield torch.ones(2, 4), torch.ones(2, 1)

model = nn.Linear(4, 1)
record = folder / "run.json"
attempt = begin_attempt(read_record(record), environ={})
capture = TelemetryCapture(run_id=attempt.run_id)
logger = MetricLogger(stream=io.StringIO(), json_file=folder / "log.jsonl", hooks=[capture.hook])
trainer = Trainer(
    model, torch.optim.SGD(model.parameters(), lr=0.1), Data(), device="cpu", logger=logger,
    loss_fn=nn.functional.mse_loss, callbacks=[Work()], max_steps=20, checkpoint_every_steps=5,
    checkpoints=CheckpointManager(folder / "checkpoints"), resume=attempt.number > 0,
    validation_dataloader=[(torch.ones(2, 4), torch.ones(2, 1))] * 2, validate_every_steps=5,
    attempts=AttemptLog(record, attempt), compile=True, compile_backend="eager",
)
result = trainer.fit()
points = capture.points("training.time").items()
times = {dict(key)["training.state"]: point.value for (_, key), point in points}
json.dump({
    "times": times, "goodput": capture.value("training.goodput.utilization"),
    "replays": capture.value("training.step.replays"), "steps": capture.value("training.steps"),
    "restarts": capture.value("training.restarts"),
    "stopwatch": result.time_by_state_s, "own_goodput": result.goodput, "elapsed_s": result.elapsed_s,
}, sys.stdout)
"""


def _attempt(folder, kill_at, status):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", ATTEMPT, str(folder), str(kill_at)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env=environment,
    )
    assert done.returncode == status, done.stderr
    return done.stdout


def _lines(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_a_killed_and_resumed_run_tells_the_stopwatchs_times_and_goodput(tmp_path):
    _attempt(tmp_path, 8, -signal.SIGKILL)
    killed = _lines(tmp_path)
    told = json.loads(_attempt(tmp_path, -1, 0))
    (start,) = [line for line in _lines(tmp_path)[len(killed) :] if line["event"] == "train_start"]

    # What the first attempt left: it reached step 8, and the checkpoint of step 5 keeps five of them.
    steps = [line for line in killed if line["event"] == "train_step"]
    assert [line["step"] for line in steps] == list(range(1, 9))
    assert (start["start_step"], start["attempt"]) == (5, 1)
    assert start["prior_kept_s"] == pytest.approx(sum(line["step_s"] for line in steps[:5]), rel=0.1)
    # Written at the checkpoint and from then on every five seconds: of a kill it knows that far.
    assert start["last_step_reached"] == 5
    assert 0.2 < start["prior_elapsed_s"] <= killed[-1]["elapsed_s"]
    assert (told["steps"], told["restarts"]) == (15, 1)

    # State by state the same seconds, up to what passes between a moment and its event.
    own = {state: seconds for state, seconds in told["stopwatch"].items() if seconds > 0.0}
    for state in ("step", "data_wait", "checkpoint_save", "checkpoint_restore", "compile", "validation"):
        assert told["times"][state] == pytest.approx(own[state], rel=0.1, abs=0.1), state
    assert sum(own.values()) == pytest.approx(told["elapsed_s"])
    measured_s = sum(told["times"].values())
    assert measured_s >= told["elapsed_s"] - 0.05  # telemetry was there before training began

    # And the same goodput, once the time before training is in neither.
    early_s = measured_s - told["elapsed_s"]
    kept_s = start["prior_kept_s"] + told["times"]["step"]
    assert told["goodput"] == pytest.approx(kept_s / (start["prior_elapsed_s"] + measured_s), rel=1e-6)
    expected = (
        told["goodput"]
        * (start["prior_elapsed_s"] + measured_s)
        / (start["prior_elapsed_s"] + measured_s - early_s)
    )
    assert told["own_goodput"] == pytest.approx(expected, rel=0.15)


def test_an_attempt_that_fails_loses_what_no_checkpoint_holds(tmp_path, telemetry_capture):
    import torch
    from torch import nn

    from trainer import Trainer

    class Fail:
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            time.sleep(0.02)
            if trainer.step == 7 and not tried:
                tried.append(True)
                raise RuntimeError("broken")

    tried = []
    torch.set_num_threads(1)
    record, manager = tmp_path / "run.json", CheckpointManager(tmp_path / "checkpoints")

    def attempt():
        model = nn.Linear(4, 1)
        hook: OTelHook = telemetry_capture.hook
        return Trainer(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            [(torch.ones(2, 4), torch.ones(2, 1))] * 3,
            device="cpu",
            logger=MetricLogger(level="ERROR", json_file=tmp_path / "log.jsonl", hooks=[hook]),
            loss_fn=nn.functional.mse_loss,
            callbacks=[Fail()],
            max_steps=10,
            checkpoint_every_steps=5,
            checkpoints=manager,
            resume=True,
            attempts=AttemptLog(record, begin_attempt(read_record(record), environ={})),
        ).fit()

    with pytest.raises(RuntimeError):
        attempt()
    lost = telemetry_capture.value("training.goodput.utilization")
    spent_s = telemetry_capture.value("training.time")
    assert telemetry_capture.value("training.runs", training_run_outcome="failed") == 1
    assert attempt().outcome == "completed"
    # Steps 6 and 7 were made twice.
    assert telemetry_capture.value("training.steps") == 12
    assert telemetry_capture.value("training.step.replays") == 2
    lines = _lines(tmp_path)
    start = [line for line in lines if line["event"] == "train_start"][-1]
    assert start["last_step_reached"] == 7
    # After the failure goodput fell to the steps that the checkpoint of step 5 holds.
    kept_s = sum(line["step_s"] for line in [line for line in lines if line["event"] == "train_step"][:5])
    assert lost == pytest.approx(kept_s / spent_s, rel=0.15)
    assert start["prior_kept_s"] == pytest.approx(kept_s, rel=0.15)
