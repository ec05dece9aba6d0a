"""The process that is nothing but the master."""

import io
import json
import signal
import threading

import pytest
import torch

from trainer.cli import main
from trainer.config import load_config
from trainer.diloco.master import run_master, run_master_from_config
from trainer.diloco.objects import GlobalWeights, read_newest_globals, read_parameters, write_globals
from trainer.diloco.store import Store
from trainer.problems import ConfigError
from trainer.runtime import build_model, train_from_config

TINY = {"model.layers": 1, "model.width": 16, "model.heads": 2, "model.context": 8}


@pytest.fixture
def config(tmp_path):
    def make(**values):
        settings = {"role": "master", "store": str(tmp_path / "store"), "poll_s": 0.01, **values}
        overrides = {f"diloco.{key}": value for key, value in settings.items()}
        return load_config(None, {**TINY, "run.directory": str(tmp_path / "master"), **overrides})

    return make


@pytest.fixture
def store(tmp_path):
    return Store(str(tmp_path / "store"))


def test_it_publishes_the_models_weights_and_ends_when_its_worker_is_done(config, store, until, tmp_path):
    settings = config()

    def worker():
        until(lambda: read_newest_globals(store))
        store.mark("finished", "a")

    thread = threading.Thread(target=worker)
    thread.start()
    result = run_master_from_config(settings, stream=io.StringIO())
    thread.join()
    assert (result.outer_steps, result.signal) == (0, None)
    weights, expected = read_newest_globals(store).tensors, read_parameters(build_model(settings))
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert json.loads((tmp_path / "master" / "run.json").read_text())["run_id"]


def test_a_signal_stops_it(config, store, until):
    def stop():
        until(lambda: read_newest_globals(store))
        signal.raise_signal(signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    result = run_master_from_config(config(), stream=io.StringIO())
    thread.join()
    assert result.signal is signal.SIGTERM


def test_a_store_of_another_model_is_a_config_error(config, store, weights):
    write_globals(store, GlobalWeights(3, weights(1.0)))
    with pytest.raises(ConfigError, match=r"diloco\.store: .*weights of another model"):
        run_master_from_config(config(), stream=io.StringIO())


def test_the_command_line_says_that_there_is_no_master(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_bytes(b"the quick brown fox jumps over the lazy dog. " * 80)
    (tmp_path / "c.yaml").write_text(
        "model: {layers: 1, width: 16, heads: 2, context: 8}\n"
        "data: {paths: [text.txt], batch_size: 4}\n"
        "diloco: {role: worker, worker: a, store: store, join_timeout_s: 0.05}\n"
    )
    assert main(["train", "--config", "c.yaml"]) == 2
    assert "trainer: no global weights in store within 0.05 s" in capsys.readouterr().err


def test_who_trains_is_no_master_and_the_other_way_round(config, settings, listener):
    with pytest.raises(ConfigError, match="'master' does not train"):
        train_from_config(config())
    with pytest.raises(ValueError, match="'single' is no master's"):
        run_master(settings(), torch.nn.Linear(1, 1), emit=listener.emit, warn=listener.warn)
