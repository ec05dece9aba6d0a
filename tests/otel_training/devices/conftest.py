"""Devices that answer as real ones did, from what the tests give them."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

DATA = Path(__file__).resolve().parents[2] / "data"


@pytest.fixture
def cuda_stats():
    """Keys and kinds of values as ``torch.cuda.memory_stats`` gives them: 122 of them."""
    return json.loads((DATA / "cuda_memory_stats.json").read_text())


@pytest.fixture
def xla_answers():
    """What torch_xla 2.9 answered on its CPU runtime."""
    return json.loads((DATA / "torch_xla-2.9.0-cpu.json").read_text())


class FakeCuda:
    """``torch.cuda`` with devices in use; it notes what would initialise or synchronise them."""

    def __init__(self, stats, uuids=(), total_bytes=80 << 30):
        self.stats = stats  # by index
        self.uuids = uuids
        self.total_bytes = total_bytes
        self.forbidden_calls = []

    def is_initialized(self):
        return bool(self.stats)

    def device_count(self):
        return len(self.stats)

    def memory_stats(self, device=0):
        index = int(str(device).removeprefix("cuda:"))
        return dict(self.stats.get(index, {}))

    def get_device_properties(self, index):
        if not self.is_initialized():
            self.forbidden_calls.append("get_device_properties")
        uuid = self.uuids[index] if self.uuids else None
        return SimpleNamespace(total_memory=self.total_bytes, uuid=uuid)

    def __getattr__(self, name):
        def call(*args):
            self.forbidden_calls.append(name)

        return call


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__({3: "Not Supported", 6: "Not Found", 15: "GPU is lost"}[value])
        self.value = value


class FakeNvml:
    """``pynvml`` with GPUs by UUID; each reading of a GPU is a value, or an exception to raise."""

    def __init__(self, gpus):
        self.gpus = gpus
        self.asked = []
        self.init_count = 0

    def nvmlInit(self):  # noqa: N802 - NVML's own names
        self.init_count += 1

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        if uuid not in self.gpus:
            raise NVMLError(6)
        return uuid

    def _answer(self, gpu, reading):
        self.asked.append((gpu, reading))
        answer = self.gpus[gpu].get(reading, NVMLError(3))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def nvmlDeviceGetName(self, gpu):  # noqa: N802
        return self._answer(gpu, "name")

    def nvmlDeviceGetMigMode(self, gpu):  # noqa: N802
        return self._answer(gpu, "mig")

    def nvmlDeviceGetUtilizationRates(self, gpu):  # noqa: N802
        return SimpleNamespace(gpu=self._answer(gpu, "utilization"), memory=1)

    def nvmlDeviceGetEncoderUtilization(self, gpu):  # noqa: N802
        return [self._answer(gpu, "encoder"), 167_000]

    def nvmlDeviceGetDecoderUtilization(self, gpu):  # noqa: N802
        return [self._answer(gpu, "decoder"), 167_000]

    def nvmlDeviceGetMemoryInfo(self, gpu):  # noqa: N802
        used, total = self._answer(gpu, "memory")
        return SimpleNamespace(used=used, total=total, free=total - used)

    def nvmlDeviceGetTemperature(self, gpu, _sensor):  # noqa: N802
        return self._answer(gpu, "temperature")

    def nvmlDeviceGetPowerUsage(self, gpu):  # noqa: N802
        return self._answer(gpu, "power")

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu):  # noqa: N802
        return self._answer(gpu, "energy")

    def nvmlDeviceGetTotalEccErrors(self, gpu, kind, _counter):  # noqa: N802
        return self._answer(gpu, "uncorrected" if kind else "corrected")


@pytest.fixture
def fake_cuda():
    return FakeCuda


@pytest.fixture
def fake_nvml():
    return FakeNvml


@pytest.fixture
def nvml_error():
    return NVMLError


@pytest.fixture
def values():
    """Samples of a reading as ``{(metric name, labels): value}``."""
    return lambda reading: {(sample.metric.name, sample.labels): sample.value for sample in reading.samples}
