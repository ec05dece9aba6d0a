"""What tests of the logging half share."""

import io
import json
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(pairs) == len(dict(pairs)), f"a key stands twice: {pairs}"
    return dict(pairs)


def _strict(line: str | bytes) -> Any:
    value = json.loads(line, parse_constant=_refuse, object_pairs_hook=_without_doubles)
    json.dumps(value, ensure_ascii=False).encode("utf-8")  # raises at a lone surrogate
    return value


@pytest.fixture(scope="session")
def strict_json() -> Callable[[str | bytes], Any]:
    """Parses JSON as its strictest readers do: no NaN words, no key twice, no lone surrogates."""
    return _strict


@pytest.fixture(scope="session")
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a program in a fresh interpreter, which must end well unless ``status`` says otherwise."""

    def run(source: str, *args: object, status: int | None = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", source, *map(str, args)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
        assert status is None or done.returncode == status, done.stderr
        return done

    return run


class Heard:
    """A hook that keeps every event."""

    every_steps = 1

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def on_event(self, event: str, payload: dict[str, Any]) -> None:
        self.events.append((event, payload))

    @property
    def names(self) -> list[str]:
        return [event for event, _ in self.events]

    def of(self, name: str) -> list[dict[str, Any]]:
        return [payload for event, payload in self.events if event == name]


@pytest.fixture
def heard() -> Heard:
    """Hears what `quiet_logger` emits."""
    return Heard()


@pytest.fixture
def quiet_logger(heard: Heard) -> Any:
    """A logger that writes its text nowhere; its cadence may be changed by the test."""
    from trainer.metrics import MetricLogger  # here: some tests of this folder import the package fresh

    return MetricLogger(stream=io.StringIO(), hooks=[heard])


@pytest.fixture
def make_run() -> Callable[..., Any]:
    """Makes a trainer of a tiny model with dropout on shuffled data; keywords go to the Trainer."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from trainer.trainer import Trainer

    torch.set_num_threads(1)  # tiny models: a second thread only waits

    def make(*, workers: int = 0, samples: int = 24, **options: Any) -> Trainer:
        torch.manual_seed(7)
        inputs = torch.randn(samples, 4)
        targets = inputs.sum(dim=1, keepdim=True)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
        optimizer = options.pop("optimizer", torch.optim.AdamW)(model.parameters(), lr=0.01)
        scheduler = options.pop("scheduler", lambda _: None)(optimizer)
        loader = DataLoader(TensorDataset(inputs, targets), batch_size=4, shuffle=True, num_workers=workers)
        options = {"device": "cpu", "loss_fn": nn.functional.mse_loss, "scheduler": scheduler, **options}
        return Trainer(model, optimizer, loader, **options)

    return make


@pytest.fixture
def full_at() -> Iterator[Callable[[int | None], None]]:
    """Makes files full at a size, as a disk would be: the kernel takes what fits and refuses the rest."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def limit(size_bytes: int | None) -> None:
        soft = unlimited[0] if size_bytes is None else size_bytes
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, unlimited[1]))

    yield limit
    limit(None)
    signal.signal(signal.SIGXFSZ, former)
