"""From a configuration to a run."""

import io
import json

import pytest
import torch

from trainer.attempts import read_record
from trainer.config import load_config
from trainer.open_run import open_run
from trainer.problems import ConfigError
from trainer.runtime import build_logger, build_runtime, train_from_config

TINY = {
    "model.layers": 1,
    "model.width": 16,
    "model.heads": 2,
    "model.context": 8,
    "data.batch_size": 4,
    "train.max_steps": 6,
}

HOOKS = """
made = []

class Hook:
    every_steps = 1

    def __init__(self, run_id=None, run_name=None, attempt=None, device=None, color="red"):
        self.context = (run_id, run_name, attempt, device, color)
        self.events, self.closed = [], 0
        made.append(self)

    def on_event(self, event, payload):
        self.events.append(event)

    def close(self):
        self.closed += 1

class Failing:
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        raise RuntimeError("callback")

def refuse(port=0):
    raise ValueError(f"port={port}: accepted is 0..65535")
"""


@pytest.fixture
def my_hooks(tmp_path, monkeypatch):
    import importlib

    name = f"hooks_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(HOOKS)
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module(name)


@pytest.fixture
def config(tmp_path):
    torch.set_num_threads(1)  # tiny models: a second thread only waits
    text = tmp_path / "text.txt"
    text.write_bytes(b"the quick brown fox jumps over the lazy dog. " * 80)

    def make(**overrides):
        values = {**TINY, "data.paths": [str(text)], "run.directory": str(tmp_path / "run")}
        return load_config(
            None, {**values, **{key.replace("__", "."): value for key, value in overrides.items()}}
        )

    return make


def _lines(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_a_run_leaves_its_files(config, tmp_path):
    stream = io.StringIO()
    result = train_from_config(config(checkpoint__every_steps=2, checkpoint__keep_last=2), stream=stream)
    names = sorted(
        str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*") if path.is_file()
    )
    assert names == [
        "checkpoints/step_000000000004.pt",
        "checkpoints/step_000000000006.pt",
        "metrics.jsonl",
        "run.json",
    ]
    events = [line["event"] for line in _lines(tmp_path / "run")]
    assert events.count("train_step") == 6
    assert (events[:2], events[-1]) == (["shape_profile", "train_start"], "train_end")
    assert "train_step step=6" in stream.getvalue()
    assert result.run_id == read_record(tmp_path / "run" / "run.json").run_id


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"data__workers": 2, "model__dropout": 0.2, "train__accumulation_steps": 2},
        {"data__sampling": "sequential", "optimizer__warmup_steps": 2, "optimizer__decay_steps": 6},
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(config, tmp_path, settings):
    whole = config(run__directory=str(tmp_path / "whole"), **settings)
    train_from_config(whole, stream=io.StringIO())
    train_from_config(config(train__max_steps=3, **settings), stream=io.StringIO())
    train_from_config(config(run__resume=True, **settings), stream=io.StringIO())

    def losses(name):
        return [
            (line["step"], line["loss"], line["tokens"])
            for line in _lines(tmp_path / name)
            if line["event"] == "train_step"
        ]

    assert losses("run") == losses("whole")
    starts = [line for line in _lines(tmp_path / "run") if line["event"] == "train_start"]
    assert [start["attempt"] for start in starts] == [0, 1]
    assert starts[0]["run_id"] == starts[1]["run_id"]


def test_hooks_and_callbacks_are_built_with_their_arguments(config, my_hooks):
    hook = {f"{my_hooks.__name__}:Hook": {"color": "blue"}}
    train_from_config(config(logging__hooks=[hook], run__name="n", run__id="r1"), stream=io.StringIO())
    (made,) = my_hooks.made
    assert made.context == ("r1", "n", 0, "cpu", "blue")
    assert made.events.count("train_step") == 6
    assert made.closed == 1


def test_the_logger_is_closed_when_training_fails(config, my_hooks):
    name = my_hooks.__name__
    broken = config(logging__hooks=[f"{name}:Hook"], callbacks=[f"{name}:Failing"])
    with pytest.raises(RuntimeError, match="callback"):
        train_from_config(broken, stream=io.StringIO())
    assert my_hooks.made[0].events[-1] == "train_end"
    assert my_hooks.made[0].closed == 1


def test_hooks_made_before_a_bad_one_are_closed_and_the_new_folder_is_removed(config, my_hooks, tmp_path):
    name = my_hooks.__name__
    bad = config(logging__hooks=[f"{name}:Hook", {f"{name}:refuse": {"port": 99999}}])
    with pytest.raises(ConfigError, match=r"logging\.hooks\..*port=99999: accepted is 0\.\.65535"):
        train_from_config(bad, stream=io.StringIO())
    assert my_hooks.made[0].closed == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data__paths": ["gone.txt"]}, "data.paths: no file matches 'gone.txt'"),
        ({"data__batch_size": 5000}, "data.paths: .*one batch needs 5000"),
        ({"run__device": "warp"}, "run.device: .*accepted: auto, cpu"),
        (
            {"train__validate_every_steps": 1, "data__holdout_fraction": 0.0},
            "data.holdout_fraction: 0.0 leaves",
        ),
        ({"callbacks": ["nope"]}, "callbacks: unknown name 'nope'"),
        ({"run__resume": True}, "nothing to resume"),
        ({"logging__json_file": "/dev/null/x.jsonl"}, "logging: "),
    ],
)
def test_what_cannot_be_used_is_a_config_error(config, settings, message):
    with pytest.raises(ConfigError, match=message):
        train_from_config(config(**settings), stream=io.StringIO())


def test_a_second_run_is_refused_resumed_or_replaces_the_first(config, tmp_path):
    train_from_config(config(), stream=io.StringIO())
    with pytest.raises(ConfigError, match="already holds a run"):
        train_from_config(config(), stream=io.StringIO())
    (tmp_path / "run" / "notes.txt").write_text("mine")
    result = train_from_config(config(run__overwrite=True, train__max_steps=2), stream=io.StringIO())
    assert (result.steps, result.attempt) == (2, 0)
    assert [line["event"] for line in _lines(tmp_path / "run")].count("train_step") == 2
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step_000000000002.pt"]
    assert (tmp_path / "run" / "notes.txt").exists()


def test_the_parts_can_be_built_one_by_one(config):
    settings = config(train__validate_every_steps=3, data__holdout_fraction=0.2)
    run = open_run(settings)
    logger = build_logger(settings, run=run, stream=io.StringIO())
    trainer, checkpoints = build_runtime(settings, run=run, logger=logger)
    heard = []
    trainer.logger.hooks.append(lambda event, payload: heard.append(event))
    with trainer:
        assert trainer.logger is logger
        assert trainer.fit().steps == 6
        assert trainer.test() > 0
    assert heard.count("validation_end") == 3
    assert checkpoints.paths()[-1].name == "step_000000000006.pt"


def test_overrides_belong_to_a_file(config):
    with pytest.raises(TypeError, match="overrides go with a file"):
        train_from_config(config(), ["train.max_steps=1"])
