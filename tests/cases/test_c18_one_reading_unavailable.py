"""C18 (mlflow/mlflow#14736): each reading of a GPU and each GPU stands alone."""

import logging
from types import SimpleNamespace

import pytest

from otel_training import catalog
from otel_training.device_cells import DeviceCells
from otel_training.devices import nvml
from otel_training.devices.sources import Source
from otel_training.sampler import Sampler
from otel_training.state import State

UUIDS = ("11111111-0000-4000-8000-000000000000", "22222222-0000-4000-8000-000000000000")


class NVMLError(Exception):
    value = 3


class Nvml:
    """Two GPUs; from a step on, the second raises on every call."""

    lost = False

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802 - NVML's own names
        if uuid.removeprefix("GPU-") not in UUIDS:
            raise NVMLError("Not Found")
        return UUIDS.index(uuid.removeprefix("GPU-"))

    def nvmlDeviceGetMemoryInfo(self, gpu):  # noqa: N802
        self._check(gpu)
        return SimpleNamespace(used=(4e9, 6e9)[gpu], total=80e9)

    def nvmlDeviceGetUtilizationRates(self, gpu):  # noqa: N802
        self._check(gpu)
        if gpu == 0:
            raise RuntimeError("utilization cannot be had")
        return SimpleNamespace(gpu=50)

    def nvmlDeviceGetPowerUsage(self, gpu):  # noqa: N802
        raise RuntimeError("power cannot be had")

    def _check(self, gpu):
        if gpu == 1 and self.lost:
            raise RuntimeError("GPU is lost")

    def __getattr__(self, name):
        def refuse(*args):
            raise NVMLError("Not Supported")

        return refuse


@pytest.fixture
def ranks():
    """A rank on each GPU: its state, and a sampler without a thread."""
    library = Nvml()

    def make(index):
        state, source = State(), nvml.match(library, UUIDS[index], index)
        return state, Sampler([Source("nvml", lambda _: source, nvml.read)], DeviceCells(state), state, 10.0)

    return library, [make(index) for index in (0, 1)]


def step(ranks):
    for _, sampler in ranks:
        sampler.read_once()


def value(rank, metric):
    values = list(rank[0].values_of(metric).values())
    return values[0] if values else None


def test_what_one_gpu_cannot_say_costs_nothing_else(ranks, caplog):
    caplog.set_level(logging.INFO, "otel_training")
    _, ranks = ranks
    for _ in range(3):
        step(ranks)
    assert [value(rank, catalog.GPU_MEMORY_USAGE) for rank in ranks] == [4e9, 6e9]
    assert [value(rank, catalog.GPU_UTILIZATION) for rank in ranks] == [None, 0.5]
    assert [value(rank, catalog.HW_POWER) for rank in ranks] == [None, None]
    told = [record.getMessage() for record in caplog.records]
    assert len([line for line in told if "power" in line]) == len(ranks)
    assert len([line for line in told if "cannot read utilization" in line]) == 1


def test_a_gpu_that_is_lost_leaves_the_other_going(ranks):
    library, ranks = ranks
    step(ranks)
    library.lost = True
    for _ in range(2):
        step(ranks)
    assert [value(rank, catalog.GPU_MEMORY_USAGE) for rank in ranks] == [4e9, None]
    assert value(ranks[1], catalog.DEVICE_READ_FAILURES) > value(ranks[0], catalog.DEVICE_READ_FAILURES) > 0
