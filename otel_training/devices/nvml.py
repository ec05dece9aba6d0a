"""The GPU itself, from NVIDIA's management library: how busy, full and hot it is, power, energy, errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from otel_training import catalog
from otel_training.devices.reading import Reading, Unavailable, plausible
from otel_training.guard import outcome

# Figures beyond these are none of a GPU.
_MAX_BYTES = 1 << 50
_MAX_CELSIUS = 250
_MAX_MILLIWATTS = 100_000_000
_MAX_MILLIJOULES = 1 << 60
_MAX_ERRORS = 1 << 60

# Constants of NVML's binary interface. Source: nvml.h.
_NOT_SUPPORTED = 3
_MIG_ENABLED = 1
_TEMPERATURE_GPU = 0
_SINCE_DRIVER_LOAD = 0
_ERROR_KINDS = {"corrected": 0, "uncorrected": 1}


@dataclass(frozen=True)
class NvmlSource:
    """What is read.

    Args:
        nvml: The module ``pynvml``.
        gpu: NVML's handle of the GPU, or of the MIG instance.
        uuid: Its UUID.
        name: Name of the product.
        index: Its index in PyTorch.
    """

    nvml: Any
    gpu: Any
    uuid: str
    name: str | None
    index: int


def initialised(nvml: Any) -> Any:
    """Return the library after setting it up; it makes no CUDA context.

    Raises:
        Unavailable: There is no driver to talk to.
    """
    _, error = outcome(nvml.nvmlInit)
    if error is not None:
        raise Unavailable(f"NVML is not there: {error}") from error
    return nvml


def match(nvml: Any, uuid: object, index: int) -> NvmlSource:
    """Find a CUDA device in NVML by its UUID; the two count devices in different orders.

    Args:
        nvml: The module ``pynvml``, initialised.
        uuid: UUID as ``torch.cuda.get_device_properties(index).uuid`` gives it.
        index: The device's index in PyTorch.

    Raises:
        Unavailable: There is no such GPU, or it is split into instances and which one is not known.
    """
    bare = str(uuid).removeprefix("GPU-").removeprefix("MIG-")
    for full in (f"MIG-{bare}", f"GPU-{bare}"):
        gpu, error = outcome(nvml.nvmlDeviceGetHandleByUUID, full)
        if error is not None:
            continue
        if full.startswith("GPU-") and _is_split(nvml, gpu):
            raise Unavailable(f"cuda:{index} is an instance of a split GPU, and NVML was not told which")
        return NvmlSource(nvml, gpu, full, _name(nvml, gpu), index)
    raise Unavailable(f"NVML knows no GPU of the UUID {bare} of cuda:{index}")


def read(source: NvmlSource, _previous: Reading | None) -> Reading:
    """Read the GPU; what it does not support, or this release of the library does not know, is absent."""
    labels = (source.uuid, "gpu", source.name, str(source.index))
    reading = Reading(is_unsupported=_is_unsupported)

    def ask(what: str, function: str, *args: int) -> Any:
        return reading.ask(what, lambda: getattr(source.nvml, function)(source.gpu, *args))

    rates = ask("utilization", "nvmlDeviceGetUtilizationRates")
    reading.put(
        catalog.GPU_UTILIZATION, getattr(rates, "gpu", None), *labels, "general", most=100, scale=0.01
    )
    for task, function in (
        ("encoder", "nvmlDeviceGetEncoderUtilization"),
        ("decoder", "nvmlDeviceGetDecoderUtilization"),
    ):
        answer = ask(f"utilization of the {task}", function)
        if answer is not None:  # percent and the period in microseconds that it is of
            reading.put(catalog.GPU_UTILIZATION, answer[0], *labels, task, most=100, scale=0.01)

    _memory(reading, ask("memory", "nvmlDeviceGetMemoryInfo"), labels)
    celsius = ask("temperature", "nvmlDeviceGetTemperature", _TEMPERATURE_GPU)
    reading.put(catalog.HW_TEMPERATURE, celsius, *labels, most=_MAX_CELSIUS)
    milliwatts = ask("power", "nvmlDeviceGetPowerUsage")
    reading.put(catalog.HW_POWER, milliwatts, *labels, most=_MAX_MILLIWATTS, scale=1e-3)
    millijoules = ask("energy", "nvmlDeviceGetTotalEnergyConsumption")
    reading.put(catalog.HW_ENERGY, millijoules, *labels, most=_MAX_MILLIJOULES, scale=1e-3)
    for kind, code in _ERROR_KINDS.items():
        count = ask(f"{kind} errors", "nvmlDeviceGetTotalEccErrors", code, _SINCE_DRIVER_LOAD)
        reading.put(catalog.HW_ERRORS, count, *labels, kind, most=_MAX_ERRORS)
    return reading


def _memory(reading: Reading, memory: Any, labels: tuple[str | None, ...]) -> None:
    used = plausible(getattr(memory, "used", None), _MAX_BYTES)
    total = plausible(getattr(memory, "total", None), _MAX_BYTES)
    reading.put(catalog.GPU_MEMORY_USAGE, used, *labels)
    reading.put(catalog.GPU_MEMORY_LIMIT, total, *labels)
    if used is not None and total:
        reading.put(catalog.GPU_MEMORY_UTILIZATION, used / total, *labels, most=1)


def _is_split(nvml: Any, gpu: Any) -> bool:
    mode, _ = outcome(nvml.nvmlDeviceGetMigMode, gpu)  # raises for a GPU that cannot be split
    return mode is not None and mode[0] == _MIG_ENABLED


def _name(nvml: Any, gpu: Any) -> str | None:
    name, _ = outcome(nvml.nvmlDeviceGetName, gpu)
    return str(name, "utf-8", "replace") if isinstance(name, bytes) else name


def _is_unsupported(error: Exception) -> bool:
    return getattr(error, "value", None) == _NOT_SUPPORTED or isinstance(error, AttributeError)
