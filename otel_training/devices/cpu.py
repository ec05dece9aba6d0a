"""Host, container and process, from psutil and the control groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from otel_training import catalog
from otel_training.devices.cgroup import Cgroup
from otel_training.devices.reading import MIN_RATE_INTERVAL_S, Reading, Sample

_MODES = {
    "user": "user",
    "nice": "nice",
    "system": "system",
    "irq": "interrupt",
    "softirq": "interrupt",
    "interrupt": "interrupt",  # Windows
    "steal": "steal",
    "iowait": "iowait",
    "idle": "idle",
}
"""psutil's names and the convention's. Guests' time is left out: it is part of user and nice already."""

_NOT_BUSY = frozenset({"idle", "iowait"})


@dataclass(frozen=True)
class CpuSource:
    """What is read.

    Args:
        psutil: The library.
        process: psutil's object of this process.
        now_s: Monotonic seconds.
        host: Whether the host and the container are this process's to tell: once on each host.
        cgroup: The process's control groups.
    """

    psutil: Any
    process: Any
    now_s: float
    host: bool
    cgroup: Cgroup | None


@dataclass(frozen=True)
class CpuTimes:
    """CPU seconds at one moment, and the rates last made of them.

    Args:
        at_s: When, in monotonic seconds.
        host: The host's, by mode.
        process: The process's, by mode.
        rates: What the last two of them that were far enough apart gave.
    """

    at_s: float
    host: Mapping[str, float]
    process: Mapping[str, float]
    rates: tuple[Sample, ...] = ()


def read(source: CpuSource, previous: Reading | None) -> Reading:
    """Read host and process; utilization is there from the second reading on."""
    reading = Reading()
    process = _process(reading, source)
    host: Mapping[str, float] = {}
    if source.host:
        host = by_mode(reading.ask("CPU times", source.psutil.cpu_times))
        _memory(reading, source)
        _container(reading, source)
    now = CpuTimes(source.now_s, host, process)
    before: CpuTimes | None = previous.raw if previous is not None else None
    if before is not None and now.at_s - before.at_s < MIN_RATE_INTERVAL_S:
        now = before
    elif before is not None:
        cpus = reading.ask("available CPUs", available_cpus, source)
        now = CpuTimes(now.at_s, host, process, _rates(before, now, cpus))
    reading.samples += now.rates
    reading.raw = now
    return reading


def by_mode(times: Any) -> dict[str, float]:
    """Return psutil's CPU times in seconds under the convention's modes; None gives nothing."""
    seconds: dict[str, float] = {}
    for name, value in times._asdict().items() if times is not None else ():
        if name in _MODES:
            seconds[_MODES[name]] = seconds.get(_MODES[name], 0.0) + value
    return seconds


def fractions(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """Return the part of the time between two readings that went into each mode; they add up to 1."""
    # Never below 0: the kernel's count of iowait may go back.
    spent = {mode: max(0.0, now[mode] - before[mode]) for mode in now if mode in before}
    total = sum(spent.values())
    return {mode: value / total for mode, value in spent.items()} if total > 0 else {}


def busy(parts: Mapping[str, float]) -> float | None:
    """Return the part of the time in which CPUs worked, or None when ``parts`` is empty."""
    return 1 - sum(parts.get(mode, 0.0) for mode in _NOT_BUSY) if parts else None


def with_busy(parts: Mapping[str, float], busy_part: float) -> dict[str, float]:
    """Return ``parts`` with a new sum of the busy modes; how both sides are made up stays as it was."""
    old = busy(parts) or 0.0
    scaled = {}
    for mode, part in parts.items():
        old_side, new_side = (1 - old, 1 - busy_part) if mode in _NOT_BUSY else (old, busy_part)
        scaled[mode] = part * new_side / old_side if old_side > 0 else 0.0
    return scaled


def available_cpus(source: CpuSource) -> float:
    """Return how many CPUs the process may use: affinity and quota taken into account."""
    affinity = getattr(source.process, "cpu_affinity", None)  # not on macOS
    cpus = float(len(affinity()) if affinity is not None else source.psutil.cpu_count() or 1)
    quota = source.cgroup.cpus() if source.cgroup is not None else None
    return cpus if quota is None else min(cpus, quota)


def _rates(before: CpuTimes, now: CpuTimes, cpus: float | None) -> tuple[Sample, ...]:
    host = [
        Sample(catalog.SYSTEM_CPU_UTILIZATION, part, (mode,))
        for mode, part in fractions(before.host, now.host).items()
    ]
    possible_s = (now.at_s - before.at_s) * (cpus or 0)
    process = [
        Sample(
            catalog.PROCESS_CPU_UTILIZATION,
            min(1.0, max(0.0, now_s - before.process[mode]) / possible_s),
            (mode,),
        )
        for mode, now_s in now.process.items()
        if mode in before.process and possible_s > 0
    ]
    return (*host, *process)


def _process(reading: Reading, source: CpuSource) -> Mapping[str, float]:
    process = source.process
    times = by_mode(reading.ask("CPU times of the process", process.cpu_times))
    times = {mode: time_s for mode, time_s in times.items() if mode in ("user", "system")}
    for mode, time_s in times.items():
        reading.put(catalog.PROCESS_CPU_TIME, time_s, mode)
    memory = reading.ask("memory of the process", process.memory_info)
    reading.put(catalog.PROCESS_MEMORY_USAGE, getattr(memory, "rss", None))
    reading.put(catalog.PROCESS_THREAD_COUNT, reading.ask("threads of the process", process.num_threads))
    return times


def _memory(reading: Reading, source: CpuSource) -> None:
    memory = reading.ask("memory of the host", source.psutil.virtual_memory)
    if memory is not None and memory.total > 0:
        available = min(memory.available, memory.total)
        free = min(memory.free, available)
        reading.put(catalog.SYSTEM_MEMORY_LIMIT, memory.total)
        for state, size in (("used", memory.total - available), ("cached", available - free), ("free", free)):
            reading.put(catalog.SYSTEM_MEMORY_USAGE, size, state)
            reading.put(catalog.SYSTEM_MEMORY_UTILIZATION, size / memory.total, state)
    swap = reading.ask("swap space of the host", source.psutil.swap_memory)
    if swap is not None:
        for state, size in (("used", swap.used), ("free", swap.free)):
            reading.put(catalog.SYSTEM_PAGING_USAGE, size, state)
            if swap.total > 0:
                reading.put(catalog.SYSTEM_PAGING_UTILIZATION, size / swap.total, state)
        if swap.total == 0:  # psutil's own percentage, which DeviceStatsMonitor tells, is 0 as well
            reading.put(catalog.SYSTEM_PAGING_UTILIZATION, 0.0, "used")


def _container(reading: Reading, source: CpuSource) -> None:
    memory = reading.ask("memory of the container", source.cgroup.memory) if source.cgroup else None
    if memory is not None:
        reading.put(catalog.CONTAINER_MEMORY_USAGE, memory.usage_bytes)
        reading.put(catalog.CONTAINER_MEMORY_AVAILABLE, memory.available_bytes)
