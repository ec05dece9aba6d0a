"""Memory, counters, compile and execute times of torch_xla."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from otel_training import catalog
from otel_training.devices.reading import Reading, plausible

IN_USE = "CreateXlaTensor"
"""A counter that exists from the first tensor on: before, asking for memory would set the runtime up."""


@dataclass(frozen=True)
class XlaSource:
    """What is read.

    Args:
        xla_model: The module ``torch_xla.core.xla_model``.
        metrics: The module ``torch_xla.debug.metrics``.
        device: The device of this process, such as ``xla:0``.
    """

    xla_model: Any
    metrics: Any
    device: str


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of a device in bytes; None is what the answer does not say."""

    used_bytes: float | None
    free_bytes: float | None
    limit_bytes: float | None

    @property
    def utilization(self) -> float | None:
        """The part of the memory that is in use, 0..1."""
        if self.used_bytes is None or not self.limit_bytes:
            return None
        return self.used_bytes / self.limit_bytes


def read(source: XlaSource, _previous: Reading | None) -> Reading:
    """Read torch_xla's own figures; nothing here waits for the device."""
    reading = Reading(is_unsupported=_is_unimplemented)
    info = reading.ask("memory", source.xla_model.get_memory_info, source.device)
    if info is not None:
        memory = memory_of(info)
        reading.put(catalog.XLA_USAGE, memory.used_bytes, source.device)
        reading.put(catalog.XLA_FREE, memory.free_bytes, source.device)
        reading.put(catalog.XLA_LIMIT, memory.limit_bytes, source.device)
        reading.put(catalog.XLA_UTILIZATION, memory.utilization, source.device, most=1)
    metrics = source.metrics
    for name in reading.ask("names of counters", metrics.counter_names) or ():
        count = reading.ask(f"counter {name}", metrics.counter_value, name)
        reading.put(catalog.XLA_EVENTS, count, name)
    for name, count_metric, time_metric in (
        ("CompileTime", catalog.XLA_COMPILES, catalog.XLA_COMPILE_TIME),
        ("ExecuteTime", catalog.XLA_EXECUTIONS, catalog.XLA_EXECUTE_TIME),
    ):
        data = reading.ask(name, metrics.metric_data, name)  # None until the first of them
        if data is not None:
            reading.put(count_metric, data[0])
            reading.put(time_metric, data[1], scale=1e-9)
    return reading


def memory_of(info: Mapping[str, Any]) -> DeviceMemory:
    """Return the memory of a device from either shape of answer.

    Source: torch_xla answers with ``bytes_used`` and ``bytes_limit`` on PJRT, with ``kb_free`` and
    ``kb_total`` on the runtime before it.
    """
    used, limit = plausible(info.get("bytes_used")), plausible(info.get("bytes_limit"))
    if used is not None or limit is not None:
        free = limit - used if used is not None and limit is not None and limit >= used else None
        return DeviceMemory(used, free, limit)
    free_kb, total_kb = plausible(info.get("kb_free")), plausible(info.get("kb_total"))
    used_kb = None if free_kb is None or total_kb is None or free_kb > total_kb else total_kb - free_kb
    return DeviceMemory(*(None if kb is None else kb * 1024 for kb in (used_kb, free_kb, total_kb)))


def _is_unimplemented(error: Exception) -> bool:
    return isinstance(error, NotImplementedError) or "UNIMPLEMENTED" in str(error)
