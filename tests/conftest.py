"""What holds for every test: the surroundings of the machine do not leak into it."""

import os

import pytest

from otel_training.clock import Clock, Moment
from otel_training.testing import TelemetryCapture

# Launchers and OpenTelemetry are configured by the environment; a test that wants a variable sets it itself.
_LEAKING_PREFIXES = ("OTEL_", "SLURM_", "TORCHELASTIC_", "TRAINER_", "WANDB_")
_LEAKING_NAMES = (
    "GROUP_RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "RANK",
    "TRACEPARENT",
    "TRACESTATE",
    "WORLD_SIZE",
)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith(_LEAKING_PREFIXES) or name in _LEAKING_NAMES:
            monkeypatch.delenv(name)


class FakeClock(Clock):
    """Both clocks stand still until a test moves them."""

    def __init__(self):
        self.monotonic_s = 1000.0
        self.unix_s = 1_800_000_000.0

    def now(self):
        return Moment(self.monotonic_s, self.unix_s)

    def advance(self, seconds):
        """Let time pass and return the new moment."""
        self.monotonic_s += seconds
        self.unix_s += seconds
        return self.now()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def capture(clock):
    """A hook on in-memory providers under a clock that the test moves."""
    capture = TelemetryCapture(clock=clock, run_id="run-1")
    yield capture
    capture.close()
