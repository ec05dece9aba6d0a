"""How hooks are called, alone and as a list."""

import inspect

import numpy as np
import pytest
import torch

from trainer.hooks import (
    CallbackList,
    TrainingHook,
    handler,
    hook_name,
    integer_step,
    on_event,
    own_every_steps,
)


class Recorder:
    """A hook that keeps what it heard."""

    def __init__(self, every_steps=None):
        self.heard = []
        self.closed = 0
        if every_steps is not None:
            self.every_steps = every_steps

    def on_event(self, event, payload):
        self.heard.append((event, payload))

    def close(self):
        self.closed += 1


class Both(Recorder):
    def __call__(self, event, payload):
        raise AssertionError("__call__ was used though there is on_event")


class Failing(Recorder):
    def __init__(self, error, every_steps=None):
        super().__init__(every_steps)
        self.error = error

    def on_event(self, event, payload):
        super().on_event(event, payload)
        raise self.error

    def close(self):
        super().close()
        raise self.error


# ---- calling


def test_the_protocol_is_checked_at_run_time():
    assert isinstance(Recorder(), TrainingHook)
    assert isinstance(CallbackList(), TrainingHook)
    assert not isinstance(print, TrainingHook)


def test_a_plain_callable_is_a_hook():
    heard = []
    handler(lambda event, payload: heard.append((event, payload)))("e", {"x": 1})
    assert heard == [("e", {"x": 1})]


def test_the_method_wins_over_call():
    hook = Both()
    handler(hook)("e", {})
    assert hook.heard == [("e", {})]


def test_an_on_event_that_is_no_method_does_not_win():
    def hook(event, payload):
        return None

    hook.on_event = "not callable"
    assert handler(hook) is hook


@pytest.mark.parametrize("hook", [None, 3, "wandb", object()])
def test_what_cannot_be_called_is_refused_by_name(hook):
    with pytest.raises(TypeError, match="on_event"):
        handler(hook)


def test_a_class_in_place_of_an_instance_is_refused():
    with pytest.raises(TypeError, match=r"Recorder is a class; accepted is an instance: Recorder\(\.\.\.\)"):
        handler(Recorder)


def test_names_of_hooks():
    assert hook_name(Recorder()) == "Recorder"
    assert hook_name(print) == "print"
    assert hook_name(Recorder().on_event) == "Recorder.on_event"


# ---- cadence


@pytest.mark.parametrize("value", [None, 0, -1, True, 1.0, "2", object()])
def test_what_is_no_cadence_counts_as_none(value):
    hook = Recorder()
    hook.every_steps = value
    assert own_every_steps(hook) is None


def test_a_cadence_that_cannot_be_read_counts_as_none():
    class Broken(Recorder):
        @property
        def every_steps(self):
            raise RuntimeError("no")

    assert own_every_steps(Broken()) is None
    assert own_every_steps(print) is None
    assert own_every_steps(Recorder(every_steps=5)) == 5


class Unreadable(int):
    def __int__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("event", "payload", "step"),
    [
        ("train_step", {"step": 3}, 3),
        ("train_step", {"step": np.int64(3)}, 3),
        ("train_step", {"step": 0}, 0),
        ("train_step", {"step": True}, None),
        ("train_step", {"step": 3.0}, None),
        ("train_step", {"step": "3"}, None),
        ("train_step", {"step": Unreadable(3)}, None),
        ("train_step", {"step": None}, None),
        ("train_step", {"step": torch.tensor(3)}, None),
        ("train_step", {}, None),
        ("checkpoint", {"step": 3}, None),
    ],
)
def test_the_step_that_a_cadence_applies_to(event, payload, step):
    assert integer_step(event, payload) == step


# ---- on_event


def test_on_event_returns_a_function_of_two_arguments():
    heard = []

    def fn(name, values):
        heard.append((name, values))
        return "dropped"

    fn.every_steps = 7
    wrapped = on_event(fn)
    assert wrapped("e", {"x": 1}) is None
    assert wrapped(event="e", payload={}) is None
    assert heard == [("e", {"x": 1}), ("e", {})]
    assert hook_name(wrapped) == "fn"
    assert own_every_steps(wrapped) == 7
    assert list(inspect.signature(wrapped, follow_wrapped=False).parameters) == ["event", "payload"]


def test_on_event_takes_any_callable():
    heard = []
    on_event(type("Callable", (), {"__call__": lambda self, *args: heard.append(args)})())("e", {})
    assert heard == [("e", {})]


def test_on_event_refuses_what_cannot_be_called():
    with pytest.raises(TypeError, match="callback=3"):
        on_event(3)


# ---- CallbackList


def test_callbacks_is_a_plain_public_list():
    given = [Recorder()]
    hooks = CallbackList(given)
    assert hooks.callbacks == given
    assert CallbackList().callbacks == []
    late = Recorder()
    hooks.callbacks.append(late)
    hooks.on_event("e", {})
    assert late.heard == [("e", {})]
    assert len(given) == 1


def test_each_gets_the_event_with_a_copy_of_its_own():
    def spoil(event, payload):
        payload.clear()

    last = Recorder()
    payload = {"x": 1}
    CallbackList([spoil, last]).on_event("e", payload)
    assert last.heard == [("e", {"x": 1})]
    assert payload == {"x": 1}


def test_each_gets_the_event_though_an_earlier_one_raised_then_the_error_goes_up():
    error = ValueError("first")
    last = Recorder()
    with pytest.raises(ValueError, match="first") as raised:
        CallbackList([Failing(error), last]).on_event("e", {})
    assert raised.value is error
    assert last.heard == [("e", {})]


def test_of_several_errors_one_goes_up_that_names_them_all():
    first, last = Failing(ValueError("first")), Failing(KeyError("last"))
    with pytest.raises(
        RuntimeError, match=r"2 of 3 callbacks failed: Failing: .*first.*; Failing: .*last"
    ) as raised:
        CallbackList([first, Recorder(), last]).on_event("e", {})
    assert raised.value.__cause__ is first.error


def test_what_cannot_be_called_fails_alone():
    last = Recorder()
    with pytest.raises(TypeError, match="on_event"):
        CallbackList([3, last]).on_event("e", {})
    assert last.heard == [("e", {})]


def test_every_steps_is_the_smallest_inside():
    assert CallbackList([Recorder(5), Recorder(), Recorder(2)]).every_steps == 2
    assert CallbackList([CallbackList([Recorder(3)]), Recorder(4)]).every_steps == 3
    assert own_every_steps(CallbackList([Recorder()])) is None
    assert own_every_steps(CallbackList()) is None


def test_a_cadence_inside_holds_for_its_hook():
    often, seldom, plain = Recorder(2), Recorder(4), Recorder()
    hooks = CallbackList([often, seldom, plain])
    for step in (2, 4, 6, 8):
        hooks.on_event("train_step", {"step": step})
    hooks.on_event("train_end", {"step": 9})

    def steps(hook):
        return [payload["step"] for _, payload in hook.heard]

    assert steps(often) == [2, 4, 6, 8, 9]
    assert steps(seldom) == [4, 8, 9]
    assert steps(plain) == [2, 4, 6, 8, 9]


def test_close_passes_through():
    error = OSError("first")
    hooks = [Failing(error), print, Recorder(), CallbackList([Recorder()])]
    with pytest.raises(OSError, match="first") as raised:
        CallbackList(hooks).close()
    assert raised.value is error
    assert hooks[2].closed == 1
    assert hooks[3].callbacks[0].closed == 1
