"""Devices, second half: the host, its container, and the process."""

from __future__ import annotations

from otel_training import catalog
from otel_training.artifacts import legends, panels
from otel_training.artifacts.legends import label
from otel_training.artifacts.panels import NO_MPS, Panel, Query, Text, areas, lines
from otel_training.artifacts.queries import INSTANCE, RUN_LABELS, aggregate
from otel_training.artifacts.variables import CHOSEN_RANKS as RANKS
from otel_training.artifacts.variables import CHOSEN_RUNS as RUNS
from otel_training.catalog import Metric, devices

LIMIT = ("^limit.*",)
"""Legends of limits, which are drawn dashed."""

HOST_LABELS = (*RUN_LABELS, INSTANCE)


def host() -> list[Panel]:
    """Return the panels of the host: CPU, memory, container, swap."""

    def by_host(metric: Metric, *by: catalog.Attribute) -> str:
        return aggregate("max", RUNS.series(metric), (*HOST_LABELS, *(attribute.label for attribute in by)))

    busy = RUNS.series(devices.SYSTEM_CPU_UTILIZATION, f'{devices.CPU_MODE.label}!="idle"')
    return [
        areas(
            Text(
                "CPU",
                "Part of the hosts' CPU time by mode, mean over hosts, without idle time. From local rank 0.",
                panels.FRACTION,
            ),
            Query(
                aggregate("avg", busy, (*RUN_LABELS, devices.CPU_MODE.label)),
                f"{label(devices.CPU_MODE)} {legends.RUN}",
            ),
            maximum=1.0,
        ),
        lines(
            Text(
                "Host memory against the limit",
                "By state, and the host's memory (dashed). Cached memory is given back when needed.",
                panels.BYTES,
            ),
            Query(
                by_host(devices.SYSTEM_MEMORY_USAGE, devices.MEMORY_STATE),
                f"{label(devices.MEMORY_STATE)} {legends.HOST}",
            ),
            Query(by_host(devices.SYSTEM_MEMORY_LIMIT), f"limit {legends.HOST}"),
            minimum=0.0,
            dashed=LIMIT,
        ),
        lines(
            Text(
                "Container memory",
                "In use, and what may be used beyond: at 0 the kernel ends the process.",
                panels.BYTES,
                "No memory limit of a control group here",
            ),
            Query(by_host(devices.CONTAINER_MEMORY_USAGE), f"in use {legends.HOST}"),
            Query(by_host(devices.CONTAINER_MEMORY_AVAILABLE), f"available {legends.HOST}"),
            minimum=0.0,
        ),
        lines(
            Text(
                "Swap",
                "Swap space by state. Swap in use slows the loaders first.",
                panels.BYTES,
                "No swap space",
            ),
            Query(
                by_host(devices.SYSTEM_PAGING_USAGE, devices.PAGING_STATE),
                f"{label(devices.PAGING_STATE)} {legends.HOST}",
            ),
            minimum=0.0,
        ),
    ]


def process() -> list[Panel]:
    """Return the panels of the process, and those of an Apple GPU, which shares its memory."""
    cpu_time = aggregate("sum", RANKS.rate(devices.PROCESS_CPU_TIME), (*HOST_LABELS, catalog.RANK.label))
    share = aggregate(
        "sum", RANKS.series(devices.PROCESS_CPU_UTILIZATION), (*HOST_LABELS, catalog.RANK.label)
    )
    return [
        lines(
            Text("CPU of the process", "Part of the CPUs that the process may use.", panels.FRACTION),
            Query(share, legends.RANK),
            minimum=0.0,
            span=6,
        ),
        lines(
            Text("CPUs in use", "CPU time of the process in a second: 2 is two CPUs.", panels.COUNT),
            Query(cpu_time, legends.RANK),
            minimum=0.0,
            span=6,
        ),
        lines(
            Text(
                "Memory of the process",
                "Physical memory (RSS). A line that climbs for hours is a leak.",
                panels.BYTES,
            ),
            Query(RANKS.series(devices.PROCESS_MEMORY_USAGE), legends.RANK),
            minimum=0.0,
            span=6,
        ),
        lines(
            Text("Threads", "Threads of the process.", panels.COUNT),
            Query(RANKS.series(devices.PROCESS_THREAD_COUNT), legends.RANK),
            minimum=0.0,
            span=6,
        ),
        lines(
            Text(
                "Memory of Apple's GPU",
                "Live tensors, and what Metal holds for the process.",
                panels.BYTES,
                NO_MPS,
            ),
            Query(RANKS.series(devices.MPS_ALLOCATED), f"allocated {legends.RANK}"),
            Query(RANKS.series(devices.MPS_DRIVER_ALLOCATED), f"driver {legends.RANK}"),
            minimum=0.0,
            span=24,
        ),
    ]
