"""Finds the libraries that readers are handed: what is in use in this process, never more than that.

torch and torch_xla are looked up among the modules that are loaded already; nothing here loads them, and
nothing initialises a device.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from otel_training.devices import cgroup, cpu, cuda, mps, nvml, xla
from otel_training.devices.reading import Reading, Unavailable
from otel_training.rank_device import RankDevice


@dataclass(frozen=True)
class Source:
    """One place where device metrics are read.

    Args:
        name: As in ``start(devices=...)``.
        open: Returns what the reader is handed at a moment in monotonic seconds; raises ``Unavailable``.
        reader: The reader.
    """

    name: str
    open: Callable[[float], Any]
    reader: Callable[[Any, Reading | None], Reading]

    def read(self, previous: Reading | None, now_s: float) -> Reading:
        """Read once.

        Raises:
            Unavailable: There is nothing to read, or not yet.
        """
        return self.reader(self.open(now_s), previous)


def make_sources(
    devices: str | Sequence[str],
    device: RankDevice,
    *,
    host: bool,
    modules: Mapping[str, ModuleType] = sys.modules,
) -> list[Source]:
    """Return the sources to read.

    Args:
        devices: ``auto``, ``all``, or names of sources.
        device: The device of this process.
        host: Whether this process tells of its host.
        modules: The modules that are loaded.
    """
    openers = _Openers(device, host, devices == "all", modules)
    sources = [
        Source("cpu", openers.cpu, cpu.read),
        Source("cuda", openers.cuda, cuda.read),
        Source("mps", openers.mps, mps.read),
        Source("xla", openers.xla, xla.read),
        Source("nvml", openers.nvml, nvml.read),
    ]
    return [source for source in sources if devices in ("auto", "all") or source.name in devices]


class _Openers:
    """The libraries, looked up anew at each reading: the trainer may begin to use one at any time."""

    def __init__(
        self, device: RankDevice, host: bool, all_stats: bool, modules: Mapping[str, ModuleType]
    ) -> None:
        self._device = device
        self._host = host
        self._all_stats = all_stats
        self._modules = modules
        self._process: Any = None
        self._nvml: Any = None

    def cpu(self, now_s: float) -> cpu.CpuSource:
        psutil = _load("psutil", "psutil")
        if self._process is None:
            self._process = psutil.Process()
        return cpu.CpuSource(psutil, self._process, now_s, self._host, cgroup.of_this_process())

    def cuda(self, _now_s: float) -> cuda.CudaSource:
        return cuda.CudaSource(self._torch().cuda, self._device.index_of("cuda"), self._all_stats)

    def mps(self, _now_s: float) -> Any:
        torch = self._torch()
        if self._device.kind not in (None, "mps") or not torch.backends.mps.is_available():
            raise Unavailable("MPS is not in use in this process")
        return torch.mps

    def xla(self, _now_s: float) -> xla.XlaSource:
        if "torch_xla" not in self._modules:
            raise Unavailable("torch_xla is not loaded")
        metrics = importlib.import_module("torch_xla.debug.metrics")
        if xla.IN_USE not in metrics.counter_names():
            raise Unavailable("torch_xla is not in use yet")
        xla_model = importlib.import_module("torch_xla.core.xla_model")
        known = self._device.kind == "xla" and self._device.index is not None
        device = self._device.name if known else None
        return xla.XlaSource(xla_model, metrics, device or str(self._modules["torch_xla"].device()))

    def nvml(self, _now_s: float) -> nvml.NvmlSource:
        torch_cuda, index = self._torch().cuda, self._device.index_of("cuda")
        if not torch_cuda.is_initialized():
            raise Unavailable("CUDA is not in use in this process")
        if index is None:
            raise Unavailable("nobody said which CUDA device is this process's; pass device=")
        if self._nvml is None:
            self._nvml = nvml.initialised(_load("pynvml", "otel-training[nvml]"))
        return nvml.match(self._nvml, torch_cuda.get_device_properties(index).uuid, index)

    def _torch(self) -> Any:
        torch = self._modules.get("torch")
        if torch is None:
            raise Unavailable("torch is not loaded")
        return torch


def _load(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Unavailable(f"{name} cannot be imported ({error}); pip install {package}") from error
