import logging

import pytest
from opentelemetry.sdk.trace import SpanProcessor

from otel_training import start
from otel_training.integrations.relay import Relay, guarded, trained_parameters


class Log:
    def __init__(self):
        self.events = []

    def emit(self, event, payload):
        self.events.append((event, payload))


class Deaf:
    pass


class Faulty:
    def __init__(self):
        self.relay = Relay(Log(), {})

    @guarded
    def on_log(self, value):
        raise RuntimeError(value)


@pytest.fixture
def telemetry():
    with start(prometheus=False, devices=()) as telemetry:
        yield telemetry


def test_a_log_gets_the_events_without_what_is_none():
    log = Log()
    relay = Relay(log, {})
    relay.train_start({"start_step": 0, "device": None})
    relay.emit("train_step", {"step": 1, "loss": 0.0})
    assert log.events == [("train_start", {"start_step": 0}), ("train_step", {"step": 1, "loss": 0.0})]


def test_a_hook_gets_the_events(capture):
    Relay(capture.hook, {}).emit("train_step", {"step": 1, "loss": 2.5})
    assert capture.value("training.loss") == 2.5


def test_telemetry_gets_the_events_and_stays_open(telemetry):
    relay = Relay(telemetry, {})
    relay.train_start({"start_step": 0})
    relay.train_end(0)
    assert telemetry.flush()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (None, {"outcome": "completed"}),
        (ValueError("bad"), {"outcome": "failed", "error": "ValueError: bad"}),
        (KeyboardInterrupt(), {"outcome": "interrupted", "error": "KeyboardInterrupt"}),
        (SystemExit(1), {"outcome": "interrupted", "error": "SystemExit: 1"}),
    ],
)
def test_the_end_says_what_ended_training(error, expected):
    log = Log()
    Relay(log, {}).train_end(7, error)
    ((event, payload),) = log.events
    assert payload.pop("elapsed_s") >= 0
    assert (event, payload) == ("train_end", {"steps": 7, **expected})


class KeptSpans(SpanProcessor):
    def __init__(self):
        self.names = []

    def on_end(self, span):
        self.names.append(span.name)


def test_telemetry_of_its_own_is_closed_at_the_end_and_started_anew():
    kept = KeptSpans()
    relay = Relay(None, {"prometheus": False, "devices": (), "span_processors": [kept]})
    for run in (1, 2):
        relay.train_start({"start_step": 0})
        relay.train_end(0)
        assert kept.names.count("training.run") == run
        relay.emit("train_step", {"step": 1})  # after the end: nowhere, and no error


@pytest.mark.parametrize(
    ("target", "arguments", "message"),
    [(Deaf(), {}, "Deaf.*emit"), (Log(), {"run_name": "x"}, "run_name")],
)
def test_a_wrong_target_is_told_at_set_up(target, arguments, message):
    with pytest.raises(TypeError, match=message):
        Relay(target, arguments)


def test_a_wrong_argument_of_start_is_told_at_set_up():
    with pytest.raises(ValueError, match="window_s"):
        Relay(None, {"window_s": -1.0})


def test_a_guarded_method_never_raises_and_is_told_once(caplog):
    faulty = Faulty()
    faulty.on_log("one")
    faulty.on_log("two")
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert told == ["on_log failed, training goes on: RuntimeError: one"]


def test_only_trained_parameters_are_counted():
    import torch

    model = torch.nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    assert trained_parameters(model) == 6
    assert trained_parameters(None) is None
