"""The configuration: what is accepted, and what a mistake is told like."""

import pytest

from trainer.config import Config, load_config
from trainer.problems import ConfigError


def _problems(**overrides):
    with pytest.raises(ConfigError) as caught:
        load_config(None, {key.replace("__", "."): value for key, value in overrides.items()})
    return caught.value.problems


def test_all_defaults_are_valid():
    assert load_config() == Config()


def test_a_file_and_overrides(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("train: {max_steps: 7, precision: bf16}\noptimizer:\n  lr: 3e-4\n")
    config = load_config(path, ["train.max_steps=9", "optimizer.decay_steps=20"])
    assert (config.train.max_steps, config.train.precision) == (9, "bf16")
    assert config.optimizer.lr == 3e-4
    assert config.optimizer.decay_steps == 20


def test_an_empty_file_is_all_defaults(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("# nothing\n")
    assert load_config(path) == Config()


def test_hooks_are_names_with_or_without_arguments():
    hooks = ["otel", {"wandb": {"project": "x"}}, {"a.b:c": None}]
    config = load_config(None, {"logging.hooks": hooks})
    assert [(hook.name, hook.arguments) for hook in config.logging.hooks] == [
        ("otel", {}),
        ("wandb", {"project": "x"}),
        ("a.b:c", {}),
    ]


@pytest.mark.parametrize(
    ("key", "value", "parts"),
    [
        ("train.max_stepz", 5, ["train.max_stepz: unknown key", "did you mean max_steps", "precision"]),
        ("trian", {}, ["trian: unknown key", "did you mean train?"]),
        ("train.max_steps", -1, ["train.max_steps: ", "greater than or equal to 1", "got -1"]),
        ("train.max_steps", "many", ["train.max_steps: ", "valid integer", "got 'many'"]),
        ("train.precision", "fp8", ["train.precision: ", "'auto', 'bf16', 'fp16' or 'fp32'", "got 'fp8'"]),
        ("train.stop_signals", ["SIGNOPE"], ["train.stop_signals: ", "SIGNOPE", "such as SIGUSR1"]),
        ("train", 5, ["train: ", "got 5"]),
        ("data.paths", [], ["data.paths: ", "at least 1 item"]),
        ("data.sampling", "x", ["data.sampling: ", "'random' or 'sequential'"]),
        ("optimizer.betas", [0.9, 1.5], ["optimizer.betas: ", "from 0 up to", "1.5"]),
        ("optimizer.clip_norm", 0, ["optimizer.clip_norm: ", "greater than 0", "got 0"]),
        ("logging.level", "LOUD", ["logging.level: ", "'DEBUG'", "got 'LOUD'"]),
        ("logging.hooks", [5], ["logging.hooks.0: ", "a name or {name: {argument: value}}", "got 5"]),
        ("logging.hooks", "otel", ["logging.hooks: ", "list", "got 'otel'"]),
        ("model.heads", 3, ["model: width must be a multiple of heads", "128", "3"]),
        ("checkpoint.keep_last", 0, ["checkpoint.keep_last: ", "greater than or equal to 1", "got 0"]),
    ],
)
def test_a_mistake_names_the_key_the_value_and_what_is_accepted(key, value, parts):
    (problem,) = _problems(**{key.replace(".", "__"): value})
    assert "\n" not in problem
    for part in parts:
        assert part in problem


def test_each_mistake_has_a_line():
    assert len(_problems(train__max_steps=0, model__x=1, data__batch_size="?")) == 3


@pytest.mark.parametrize("settings", [{"run__resume": True, "run__overwrite": True}])
def test_contradictions_are_told(settings):
    assert "exclude each other" in _problems(**settings)[0]
    assert "more than warmup_steps" in _problems(optimizer__warmup_steps=9, optimizer__decay_steps=9)[0]


def test_secrets_are_not_shown():
    hooks = [{"otel": {"otlp_headers": "api-key=hunter2"}}, {"x": 1}]
    told = "\n".join(_problems(logging__hooks=hooks))
    assert "logging.hooks.1" in told
    assert "hunter2" not in told
    assert "hunter2" not in "\n".join(_problems(logging__hooks={"headers": "hunter2"}))
    assert "hunter2" not in "\n".join(_problems(run__password="hunter2"))


@pytest.mark.parametrize(
    ("text", "part"),
    [("train: [", "is not YAML"), ("- a", "must hold sections"), ("a: b: c", "is not YAML")],
)
def test_a_file_that_is_no_config(tmp_path, text, part):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=part) as caught:
        load_config(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read config file .*gone\.yaml: No such file"):
        load_config(tmp_path / "gone.yaml")


def test_values_never_change():
    with pytest.raises(ValueError, match="frozen"):
        load_config().train.max_steps = 5


def test_every_key_is_described():
    for name, section in Config.model_fields.items():
        fields = getattr(section.annotation, "model_fields", {name: section})
        assert all(field.description for field in fields.values()), name
