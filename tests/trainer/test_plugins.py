"""Hooks and callbacks by name."""

import pytest

from trainer.config import PluginSpec
from trainer.plugins import build_plugin, check_plugin
from trainer.problems import ConfigError

CONTEXT = {"run_id": "r1", "attempt": 2, "device": "cpu"}


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "my_hooks.py").write_text(
        "class Hook:\n"
        "    def __init__(self, *, run_id=None, device=None, color='red'):\n"
        "        self.got = (run_id, device, color)\n"
        "    @classmethod\n"
        "    def make(cls, **settings):\n"
        "        return settings\n"
        "def strict(port):\n"
        "    if port > 65535:\n"
        "        raise ValueError(f'port={port}: accepted is 0..65535')\n"
        "NUMBER = 5\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "my_hooks"


def _build(name, **arguments):
    spec = PluginSpec(name=name, arguments=arguments)
    return build_plugin(spec, key="logging.hooks", group="trainer.no-such-group", context=CONTEXT)


def test_a_factory_gets_its_arguments_and_what_it_asks_for_by_name(module):
    assert _build("my_hooks:Hook", color="blue").got == ("r1", "cpu", "blue")


def test_an_argument_of_the_config_wins(module):
    assert _build("my_hooks:Hook", device="cuda").got == ("r1", "cuda", "red")


def test_catch_all_keywords_get_only_the_configs_arguments(module):
    assert _build("my_hooks:Hook.make", a=1) == {"a": 1}


@pytest.mark.parametrize(
    ("name", "arguments", "part"),
    [
        ("nope", {}, "unknown name 'nope'; known: none, or package.module:factory"),
        ("no_such_module:x", {}, "cannot load 'no_such_module:x'"),
        ("my_hooks:nope", {}, "cannot load 'my_hooks:nope'"),
        (":x", {}, "cannot load ':x'"),
        ("my_hooks:NUMBER", {}, "must be a callable"),
        (
            "my_hooks:strict",
            {"port": 99999},
            "logging.hooks.my_hooks:strict: port=99999: accepted is 0..65535",
        ),
        ("my_hooks:Hook", {"colour": 1}, "unexpected keyword argument 'colour'"),
    ],
)
def test_mistakes_are_config_errors_that_name_the_key(module, name, arguments, part):
    with pytest.raises(ConfigError) as caught:
        _build(name, **arguments)
    assert part in str(caught.value)
    assert str(caught.value).startswith("logging.hooks")
    assert "\n" not in str(caught.value)


def _check(name, **arguments):
    spec = PluginSpec(name=name, arguments=arguments)
    check_plugin(spec, key="logging.hooks", group="trainer.no-such-group", context=CONTEXT)


def test_checking_makes_nothing(module):
    _check("my_hooks:strict", port=99999)  # making it would raise
    _check("my_hooks:Hook", color="blue")
    _check("my_hooks:Hook.make", anything=1)


@pytest.mark.parametrize(
    ("name", "arguments", "part"),
    [
        ("my_hooks:strict", {}, "logging.hooks.my_hooks:strict: missing a required argument: 'port'"),
        ("my_hooks:Hook", {"colour": "red"}, "unexpected keyword argument 'colour'"),
        ("my_hooks:Gone", {}, "cannot load 'my_hooks:Gone'"),
        ("my_hooks:NUMBER", {}, "is int, must be a callable"),
        ("nope", {}, "unknown name 'nope'"),
    ],
)
def test_checking_finds_what_making_would_refuse_at_the_call(module, name, arguments, part):
    with pytest.raises(ConfigError) as caught:
        _check(name, **arguments)
    assert part in str(caught.value)
