"""A schedule that cannot work is refused, with the numbers that make it so."""

import pytest

from trainer.config import load_config
from trainer.problems import ConfigError

WORKER = {"role": "worker", "store": "file:///shared/run", "worker": "a"}


def _load(max_steps=1000, **values):
    overrides = {f"diloco.{key}": value for key, value in values.items()}
    return load_config(None, {"train.max_steps": max_steps, **overrides}).diloco


@pytest.mark.parametrize(
    "values", [{}, {"role": "single"}, WORKER, {"role": "master", "store": "s3://bucket/run", "workers": 8}]
)
def test_these_work(values):
    assert _load(**values).role == values.get("role", "off")


def test_all_workers_are_required_unless_said_otherwise():
    assert _load(**WORKER, workers=4).required == 4
    assert _load(**WORKER, workers=4, required_workers=3).required == 3


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({**WORKER, "inner_steps": 500, "max_steps": 100}, ["diloco.inner_steps 500", "train.max_steps 100"]),
        ({**WORKER, "workers": 2, "required_workers": 3}, ["required_workers 3", "workers 2"]),
        ({**WORKER, "final_timeout_s": 10}, ["final_timeout_s 10 ", "round_timeout_s 60"]),
        ({**WORKER, "wait_timeout_s": 60}, ["wait_timeout_s 60 ", "round_timeout_s 60"]),
        (
            {**WORKER, "overflow": "skip", "overlap": False, "wait_timeout_s": 5},
            ["wait_timeout_s 5 ", "round_timeout_s 60"],
        ),
        ({**WORKER, "poll_s": 5, "round_timeout_s": 1}, ["poll_s 5 ", "round_timeout_s 1"]),
        ({"role": "worker", "worker": "a"}, ["store must be given for role worker"]),
        ({"role": "master"}, ["store must be given for role master"]),
        ({**WORKER, "store": "memory://x"}, ["store memory://x", "role worker", "file:///"]),
        ({"role": "worker", "store": "/s"}, ["worker must be given"]),
        ({"role": "single", "workers": 2}, ["role single is 1 worker", "workers 2"]),
        ({"role": "boss"}, ["diloco.role", "'off', 'single', 'master' or 'worker'", "got 'boss'"]),
        ({**WORKER, "worker": "a/b"}, ["diloco.worker", "got 'a/b'"]),
        ({"inner_step": 5}, ["diloco.inner_step: unknown key", "did you mean inner_steps"]),
        ({"outer_momentum": 1.0}, ["diloco.outer_momentum", "less than 1", "got 1.0"]),
        ({"keep_generations": 1}, ["diloco.keep_generations", "greater than or equal to 2", "got 1"]),
    ],
)
def test_a_schedule_that_cannot_work_is_refused_with_its_numbers(values, parts):
    with pytest.raises(ConfigError) as caught:
        _load(**values)
    (problem,) = caught.value.problems
    for part in parts:
        assert part in problem


def test_a_wait_that_is_never_made_may_be_short():
    assert _load(**WORKER, overflow="skip", wait_timeout_s=1).wait_timeout_s == 1


def test_more_inner_steps_than_steps_are_no_matter_to_those_who_do_not_train():
    _load(role="master", store="/s", inner_steps=500, max_steps=100)
    _load(inner_steps=500, max_steps=100)
