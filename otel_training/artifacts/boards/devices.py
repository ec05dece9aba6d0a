"""Devices: what the GPUs, the allocator, the host and the process do, each against its limit."""

from __future__ import annotations

from otel_training import catalog
from otel_training.artifacts import legends, panels
from otel_training.artifacts.boards import hosts
from otel_training.artifacts.boards.hosts import LIMIT
from otel_training.artifacts.legends import label
from otel_training.artifacts.panels import (
    NO_GPU,
    NO_NVML,
    NO_XLA,
    Panel,
    Query,
    Text,
    events,
    lines,
    number,
)
from otel_training.artifacts.queries import RUN_LABELS, Queries, aggregate, any_of, equals
from otel_training.artifacts.variables import CHOSEN_DEVICES as CUDA
from otel_training.artifacts.variables import CHOSEN_RANKS as RANKS
from otel_training.artifacts.variables import CHOSEN_RUNS as RUNS
from otel_training.artifacts.variables import CHOSEN_XLA_DEVICES as XLA
from otel_training.catalog import Attribute, Metric, devices

LARGEST = "Each the largest of the chosen devices; choose one above to see it alone."


def rows() -> list[tuple[str, list[Panel]]]:
    """Return the rows of the dashboard: title, and panels from left to right."""
    return [
        ("Near a limit?", _summary()),
        ("PyTorch's CUDA allocator", _allocator()),
        ("GPU (NVML)", _gpu()),
        ("XLA", _xla()),
        ("Host", hosts.host()),
        ("Process and Apple GPU", hosts.process()),
    ]


def _query(queries: Queries, metric: Metric, legend: str) -> Query:
    return Query(queries.series(metric), legend)


def _most(metric: Metric, name: str, *by: Attribute) -> Query:
    """Return the largest figure of each run's chosen devices; a line for each would fill the legend."""
    labels = tuple(attribute.label for attribute in by)
    return Query(aggregate("max", CUDA.series(metric), (*RUN_LABELS, *labels)), f"{name} {legends.RUN}")


def _limit(queries: Queries, metric: Metric) -> Query:
    return Query(aggregate("min", queries.series(metric), RUN_LABELS), f"limit {legends.RUN}")


def _summary() -> list[Panel]:
    used, limit = (CUDA.series(metric) for metric in (devices.CUDA_ALLOCATED, devices.CUDA_LIMIT))
    fullest = aggregate("max", f"{used} / {limit}", RUN_LABELS)
    host = RUNS.series(devices.SYSTEM_MEMORY_UTILIZATION, equals(devices.MEMORY_STATE, "used"))
    ooms = CUDA.happened(devices.CUDA_OOMS, window="$__range")
    return [
        number(
            Text(
                "Fullest GPU",
                "Memory of live tensors by the memory of the GPU, on the one that is fullest.",
                panels.FRACTION,
                NO_GPU,
            ),
            Query(fullest, legends.RUN),
            steps=((0.85, panels.WARN), (0.95, panels.BAD)),
            decimals=1,
        ),
        number(
            Text(
                "Out of memory",
                "Out-of-memory errors of the time range, survived ones included.",
                panels.COUNT,
                NO_GPU,
            ),
            Query(f"round({aggregate('sum', ooms, RUN_LABELS)})", legends.RUN, instant=True),
            steps=((1, panels.BAD),),
            decimals=0,
        ),
        number(
            Text(
                "GPU utilization",
                "Part of the time in which a kernel ran, mean over GPUs. High does not mean efficient.",
                panels.FRACTION,
                NO_NVML,
            ),
            Query(
                aggregate(
                    "avg",
                    CUDA.series(devices.GPU_UTILIZATION, equals(devices.GPU_TASK, "general")),
                    RUN_LABELS,
                ),
                legends.RUN,
            ),
            decimals=1,
        ),
        number(
            Text("Hottest GPU", "Temperature of the hottest of the chosen GPUs.", panels.CELSIUS, NO_NVML),
            Query(aggregate("max", CUDA.series(devices.HW_TEMPERATURE), RUN_LABELS), legends.RUN),
            steps=((80, panels.WARN), (90, panels.BAD)),
        ),
        number(
            Text(
                "Fullest host",
                "Memory in use on the host that is fullest, by its memory. Reported by local rank 0.",
                panels.FRACTION,
            ),
            Query(aggregate("max", host, RUN_LABELS), legends.RUN),
            steps=((0.85, panels.WARN), (0.95, panels.BAD)),
            decimals=1,
        ),
        number(
            Text("Largest process", "Physical memory of the largest of the chosen ranks.", panels.BYTES),
            Query(aggregate("max", RANKS.series(devices.PROCESS_MEMORY_USAGE), RUN_LABELS), legends.RUN),
        ),
    ]


def _allocator() -> list[Panel]:
    return [
        lines(
            Text(
                "Live tensors against the limit",
                "Memory of live tensors, and the memory of the GPU (dashed).",
                panels.BYTES,
                NO_GPU,
            ),
            _query(CUDA, devices.CUDA_ALLOCATED, legends.CUDA),
            _limit(CUDA, devices.CUDA_LIMIT),
            minimum=0.0,
            dashed=LIMIT,
        ),
        lines(
            Text(
                "Allocator",
                f"{LARGEST} Reserved: held from the driver. Active: live or still used by a stream. "
                "Requested: before rounding up. Inactive split: fragments that cannot be given back.",
                panels.BYTES,
                NO_GPU,
            ),
            _most(devices.CUDA_RESERVED, "reserved"),
            _most(devices.CUDA_ACTIVE, "active"),
            _most(devices.CUDA_REQUESTED, "requested"),
            _most(devices.CUDA_INACTIVE_SPLIT, "inactive split"),
            minimum=0.0,
        ),
        lines(
            Text(
                "Peaks",
                f"{LARGEST} The most since the last reset of PyTorch's peak statistics, or since the start.",
                panels.BYTES,
                NO_GPU,
            ),
            _most(devices.CUDA_PEAK_ALLOCATED, "allocated"),
            _most(devices.CUDA_PEAK_RESERVED, "reserved"),
            _most(devices.CUDA_PEAK_ACTIVE, "active"),
            minimum=0.0,
            span=8,
        ),
        lines(
            Text(
                "Pools",
                f"{LARGEST} Memory of live tensors in the pools of small (up to 1 MiB) and large blocks.",
                panels.BYTES,
                NO_GPU,
            ),
            _most(devices.CUDA_POOL_ALLOCATED, label(devices.CUDA_POOL), devices.CUDA_POOL),
            minimum=0.0,
            span=8,
        ),
        events(
            Text(
                "Retries and out-of-memory errors",
                "A retry empties the cache and stops the GPU; it comes before the error.",
                panels.COUNT,
                NO_GPU,
            ),
            Query(CUDA.happened(devices.CUDA_RETRIES), f"retries {legends.CUDA}"),
            Query(CUDA.happened(devices.CUDA_OOMS), f"out of memory {legends.CUDA}"),
            height=8,
        ),
        lines(
            Text(
                "Driver calls",
                "Blocks taken from and given back to the driver, in a second. Near 0 after warm-up.",
                panels.PER_SECOND,
                NO_GPU,
            ),
            Query(aggregate("sum", CUDA.rate(devices.CUDA_ALLOCATIONS), RUN_LABELS), f"taken {legends.RUN}"),
            Query(aggregate("sum", CUDA.rate(devices.CUDA_FREES), RUN_LABELS), f"given back {legends.RUN}"),
            minimum=0.0,
        ),
        lines(
            Text(
                "Device memory in the trainer's log",
                "What the trainer's own log reads, whatever the device.",
                panels.BYTES,
                "The trainer reports no device memory",
            ),
            _query(RANKS, catalog.DEVICE_MEMORY_USAGE, legends.RANK),
            minimum=0.0,
        ),
    ]


def _gpu() -> list[Panel]:
    errors = CUDA.happened(devices.HW_ERRORS)
    coding = CUDA.series(devices.GPU_UTILIZATION, any_of(devices.GPU_TASK, "encoder", "decoder"))
    return [
        lines(
            Text(
                "Utilization",
                "Part of the time in which the GPU ran something; encoder and decoder only where they do.",
                panels.FRACTION,
                NO_NVML,
            ),
            Query(CUDA.series(devices.GPU_UTILIZATION, equals(devices.GPU_TASK, "general")), legends.CUDA),
            Query(f"{coding} > 0", f"{label(devices.GPU_TASK)} {legends.CUDA}"),
            minimum=0.0,
            maximum=1.0,
        ),
        lines(
            Text(
                "GPU memory against the limit",
                "Memory in use by all processes, and the memory of the GPU (dashed).",
                panels.BYTES,
                NO_NVML,
            ),
            _query(CUDA, devices.GPU_MEMORY_USAGE, legends.CUDA),
            _limit(CUDA, devices.GPU_MEMORY_LIMIT),
            minimum=0.0,
            dashed=LIMIT,
        ),
        lines(
            Text("Temperature", "Near 90 °C most GPUs slow down.", panels.CELSIUS, NO_NVML),
            _query(CUDA, devices.HW_TEMPERATURE, legends.CUDA),
            span=8,
        ),
        lines(
            Text(
                "Power",
                "Power as read, and from the energy counter, which misses no peak.",
                panels.WATTS,
                NO_NVML,
            ),
            _query(CUDA, devices.HW_POWER, legends.CUDA),
            Query(CUDA.rate(devices.HW_ENERGY), f"by energy {legends.CUDA}"),
            minimum=0.0,
            span=8,
        ),
        events(
            Text(
                "ECC errors",
                "Corrected ones are harmless in small numbers; uncorrected ones spoil the result.",
                panels.COUNT,
                NO_NVML,
            ),
            Query(errors, f"{label(catalog.ERROR_TYPE)} {legends.CUDA}"),
            height=8,
        ),
    ]


def _xla() -> list[Panel]:
    return [
        lines(
            Text(
                "XLA memory against the limit",
                "In use, and the device's memory (dashed).",
                panels.BYTES,
                NO_XLA,
            ),
            _query(XLA, devices.XLA_USAGE, legends.XLA),
            _limit(XLA, devices.XLA_LIMIT),
            minimum=0.0,
            dashed=LIMIT,
            span=8,
        ),
        lines(
            Text(
                "Compiles and executions",
                "Graphs in a second. Compiles after warm-up mean shapes that change.",
                panels.PER_SECOND,
                NO_XLA,
            ),
            Query(RANKS.rate(devices.XLA_COMPILES), f"compiles {legends.RANK}"),
            Query(RANKS.rate(devices.XLA_EXECUTIONS), f"executions {legends.RANK}"),
            minimum=0.0,
            span=8,
        ),
        lines(
            Text(
                "Time in compiles and executions",
                "Part of the wall time. Threads work side by side, so that it may exceed 100 %.",
                panels.FRACTION,
                NO_XLA,
            ),
            Query(RANKS.rate(devices.XLA_COMPILE_TIME), f"compiles {legends.RANK}"),
            Query(RANKS.rate(devices.XLA_EXECUTE_TIME), f"executions {legends.RANK}"),
            minimum=0.0,
            span=8,
        ),
        lines(
            Text(
                "Counters of torch_xla",
                "Each in a second; those named aten:: ran on the CPU for want of a lowering.",
                panels.PER_SECOND,
                NO_XLA,
            ),
            Query(RANKS.rate(devices.XLA_EVENTS), f"{label(devices.XLA_EVENT)} {legends.RANK}"),
            minimum=0.0,
            span=24,
        ),
    ]
