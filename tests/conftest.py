"""What holds for every test: the surroundings of the machine do not leak into it."""

import os

import pytest

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
