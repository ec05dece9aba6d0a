"""Stores, a schedule that wastes no time, and someone who listens."""

import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import torch

from trainer.diloco.objects import GlobalWeights, Tensors, delta_label, encode, write_globals
from trainer.diloco.settings import DiLoCoSection
from trainer.diloco.store import Store, StoreError

TIMEOUT_S = 40.0


class Listener:
    """Keeps events and warnings, from whatever thread."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.warnings: list[str] = []
        self.threads: dict[str, set[str]] = {}

    def emit(self, event: str, payload: dict[str, Any]) -> None:
        self.threads.setdefault(event, set()).add(threading.current_thread().name)
        self.events.append((event, payload))

    def warn(self, message: str) -> None:
        self.warnings.append(message)

    def of(self, name: str) -> list[dict[str, Any]]:
        return [payload for event, payload in self.events if event == name]


class FaultyStore(Store):
    """A store that can be told to fail, to hang or to tear."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.broken: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.tries = 0

    def _entries(self, folder):
        self._fail("list")
        return super()._entries(folder)

    def read(self, found):
        self._fail("read")
        return super().read(found)

    def write(self, folder, label, data):
        self.tries += 1
        self._fail("write")
        self._fail(f"write {folder}")
        self.gate.wait(TIMEOUT_S)
        return super().write(folder, label, data)

    def remove(self, folder, name):
        self._fail("remove")
        super().remove(folder, name)

    def _fail(self, action):
        if action in self.broken:
            raise StoreError(f"cannot {action}: planted")


@pytest.fixture
def listener():
    return Listener()


@pytest.fixture(params=["memory", "file"])
def url(request, tmp_path):
    return f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"file://{tmp_path}/store"


@pytest.fixture
def store(url):
    return FaultyStore(url)


@pytest.fixture
def settings() -> Callable[..., DiLoCoSection]:
    def make(**values: Any) -> DiLoCoSection:
        quick = {
            "role": "single",
            "inner_steps": 2,
            "poll_s": 0.01,
            "upload_backoff_s": 0.01,
            "torn_after_s": 0.05,
            "round_timeout_s": 15.0,
            "wait_timeout_s": TIMEOUT_S,
            "final_timeout_s": TIMEOUT_S,
            "join_timeout_s": TIMEOUT_S,
        }
        return DiLoCoSection(**{**quick, **values})

    return make


@pytest.fixture
def until() -> Callable[..., None]:
    """Waits until something is true; the test fails when it does not become so."""

    def wait(condition: Callable[[], Any], what: str = "it") -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline_s, f"{what} did not happen"
            time.sleep(0.005)

    return wait


@pytest.fixture
def weights() -> Callable[..., Tensors]:
    def make(value: float, size: int = 3) -> Tensors:
        return {"w": torch.full((size,), value), "b": torch.tensor([value])}

    return make


@pytest.fixture
def publish(store, weights):
    """Publishes global weights, all of one value."""

    def write(generation: int, value: float, included: dict[str, list[str]] | None = None) -> None:
        write_globals(store, GlobalWeights(generation, weights(value), included or {}))

    return write


@pytest.fixture
def send(store, weights):
    """Uploads a delta, all of one value, as a worker would; returns its label."""

    def write(worker: str, value: float, *, base: int = 0, step: int = 10, **options: Any) -> str:
        label = delta_label(base, step, worker, "0")
        store.write("deltas", label, encode(weights(value, **options)))
        return label

    return write
