"""The command line as its users see it: real processes, exit statuses, what is on which stream."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainer.cli import main

ROOT = Path(__file__).resolve().parents[2]

CONFIG = """\
run: {{directory: "{folder}/runs/demo-{{n}}"}}
model: {{layers: 1, width: 16, heads: 2, context: 8, dropout: 0.1}}
data: {{paths: ["{folder}/text.txt"], batch_size: 4}}
train: {{max_steps: 6}}
"""

HOOKS = """\
import time

class Page:
    location = "scrape page at http://127.0.0.1:1/"
    def on_event(self, event, payload):
        pass

class Slow:
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        time.sleep(0.01)

class Broken:
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        raise RuntimeError("broken callback")

def refuse(port=0):
    raise ValueError(f"port={port}: accepted is 0..65535")
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "text.txt").write_bytes(b"the quick brown fox jumps over the lazy dog. " * 80)
    (tmp_path / "c.yaml").write_text(CONFIG.format(folder=tmp_path))
    (tmp_path / "cli_hooks.py").write_text(HOOKS)
    return tmp_path


@pytest.fixture
def start(folder):
    """Starts the command line in a process of its own; what still runs at the end is killed."""
    started = []

    def start(*arguments, command="train", **options):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-m", "trainer", command, "--config", "c.yaml", *arguments],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def run(start):
    def run(*arguments, **options):
        process = start(*arguments, **options)
        out, err = process.communicate(timeout=50)
        return process.returncode, out, err

    return run


def _lines(folder, name="demo-1"):
    text = (folder / "runs" / name / "metrics.jsonl").read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def _steps(lines):
    return [line["step"] for line in lines if line["event"] == "train_step"]


def _wait_for_steps(folder, count):
    deadline_s = time.monotonic() + 40
    path = folder / "runs" / "demo-1" / "metrics.jsonl"
    while time.monotonic() < deadline_s:
        if path.exists() and path.read_text().count('"train_step"') >= count:
            return
        time.sleep(0.02)
    pytest.fail("the run did not get going")


ENDLESS = ("--max-steps", "100000", "--set", "callbacks=['cli_hooks:Slow']")


def test_a_run_from_start_to_end(folder, run):
    status, out, err = run("--set", "logging.hooks=['cli_hooks:Page']", "--set", "checkpoint.every_steps=4")
    assert (status, err) == (0, "")
    assert out.count("| INFO | train_step step=") == 6
    assert "cli_hooks:Page: scrape page at http://127.0.0.1:1/" in out
    for part in ("outcome", "completed", "steps", "tokens/s", "loss", "step time", "time by state"):
        assert part in out
    assert "metrics.jsonl" in out
    assert _steps(_lines(folder)) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("number", "arguments"),
    [(signal.SIGTERM, ()), (signal.SIGINT, ()), (signal.SIGUSR1, ("--set", "train.stop_signals=[SIGUSR1]"))],
)
def test_a_signal_loses_nothing_and_the_run_goes_on_later(folder, start, run, number, arguments):
    process = start(*ENDLESS, *arguments)
    _wait_for_steps(folder, 5)
    process.send_signal(number)
    out, err = process.communicate(timeout=40)
    assert process.returncode == -number, err
    assert "Traceback" not in err
    assert f"interrupted by {number.name}" in out
    lines = _lines(folder)
    reached = len(_steps(lines))
    assert _steps(lines) == list(range(1, reached + 1))
    assert [line["event"] for line in lines[-2:]] == ["checkpoint", "train_end"]
    assert lines[-2]["step"] == lines[-1]["steps"] == reached
    assert lines[-1]["outcome"] == "interrupted"
    assert Path(folder, lines[-2]["path"]).is_file()

    status, out, err = run("--resume", "--max-steps", str(reached + 3))
    assert status == 0, err
    resumed = _lines(folder)[len(lines) :]
    expected = ["checkpoint_restore", "shape_profile", "train_start"]
    assert [line["event"] for line in resumed[:3]] == expected
    start_event = resumed[2]
    before = next(line for line in lines if line["event"] == "train_step" and line["step"] == reached)
    assert (start_event["start_step"], start_event["samples"]) == (reached, before["samples"])
    assert (start_event["tokens"], start_event["attempt"]) == (before["tokens"], 1)
    assert start_event["micro_batches"] == before["micro_batches"]
    assert start_event["run_id"] == lines[1]["run_id"]
    assert _steps(resumed) == [reached + 1, reached + 2, reached + 3]
    assert next(line["micro_batches"] for line in resumed if line["event"] == "train_step") == reached + 1


def test_a_signal_to_the_whole_group_spares_the_workers(folder, start):
    process = start(*ENDLESS, "--set", "data.workers=2", start_new_session=True)
    _wait_for_steps(folder, 5)
    os.killpg(process.pid, signal.SIGTERM)
    _out, err = process.communicate(timeout=40)
    assert process.returncode == -signal.SIGTERM, err
    assert "Traceback" not in err
    assert _lines(folder)[-1]["outcome"] == "interrupted"


def test_a_second_signal_takes_its_usual_effect(folder, start):
    (folder / "cli_hooks.py").write_text(
        "import time\n"
        "class Hang:\n"
        "    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):\n"
        "        if trainer.step == 2:\n"
        "            open('hanging', 'w').close()\n"
        "            time.sleep(1000)\n"
    )
    process = start("--max-steps", "9", "--set", "callbacks=['cli_hooks:Hang']")
    deadline_s = time.monotonic() + 40
    while not (folder / "hanging").exists() and time.monotonic() < deadline_s:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _out, err = process.communicate(timeout=40)
    assert process.returncode == -signal.SIGINT, err
    end = _lines(folder)[-1]
    assert (end["event"], end["outcome"], end["steps"]) == ("train_end", "interrupted", 2)
    assert end["error"].startswith("KeyboardInterrupt")


def test_a_failing_run_has_a_traceback_and_status_1(folder, run):
    status, _out, err = run("--set", "callbacks=['cli_hooks:Broken']")
    assert status == 1
    assert "Traceback" in err
    assert "RuntimeError: broken callback" in err
    assert _lines(folder)[-1]["outcome"] == "failed"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "gone.yaml"], "cannot read config file gone.yaml"),
        (["--set", "train.max_stepz=1"], "train.max_stepz: unknown key; did you mean max_steps"),
        (["--set", "train.max_steps"], "--set 'train.max_steps': must be key=value"),
        (["--max-steps", "many"], "train.max_steps: should be a valid integer"),
        (["--set", "logging.hooks=[nope]"], "logging.hooks: unknown name 'nope'"),
        (["--set", "logging.hooks=[{'cli_hooks:refuse': {prot: 1}}]"], "unexpected keyword argument 'prot'"),
        (["--set", "data.paths=[gone.txt]"], "data.paths: no file matches 'gone.txt'"),
        (["--set", "run.directory=/dev/null/run"], "run.directory: cannot write to /dev/null/run"),
        (["--resume"], "run.directory: nothing to resume"),
    ],
)
@pytest.mark.parametrize("command", ["train", "validate"])
def test_bad_input_is_one_line_and_status_2(folder, capsys, monkeypatch, command, arguments, message):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    if "--config" not in arguments:
        arguments = ["--config", "c.yaml", *arguments]
    assert main([command, *arguments]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert err.count("\n") == 1
    assert out == ""
    assert not (folder / "runs" / "demo-1").exists()


def test_validate_says_what_would_run_and_leaves_nothing(folder, run):
    status, out, err = run(command="validate")
    assert (status, err) == (0, "")
    for part in ("parameters on cpu, fp32", "up to 6", "demo-{n}", "hooks: none"):
        assert part in out
    assert not (folder / "runs").exists()


def test_validate_checks_hooks_and_makes_none(folder, run):
    hooks = ("--set", "logging.hooks=[{'cli_hooks:refuse': {port: 99999}}]")
    status, out, err = run(*hooks, command="validate")
    assert (status, err) == (0, "")
    assert "hooks: cli_hooks:refuse (checked, not made)" in out
    status, _, err = run(*hooks)
    assert (status, "accepted is 0..65535" in err) == (2, True)


def test_a_checkpoint_that_cannot_be_used_is_one_line(folder, run):
    assert run()[0] == 0
    status, _out, err = run("--resume", "--set", "model.width=32")
    assert status == 2
    assert "does not fit this model" in err
    assert err.count("\n") == 1


def test_help_explains_folders_and_exit_statuses(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["train", "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "--resume continues the latest" in out
    assert "143" in out


def test_the_demo_config_is_valid():
    from trainer.config import load_config

    config = load_config(ROOT / "examples" / "demo.yaml")
    assert "{n}" in config.run.directory.name
    assert config.optimizer.decay_steps == config.train.max_steps
