"""What devices say in the recorded hour: the figures are made up, their names and shapes are the readers'."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from otel_training.catalog import devices
from otel_training.devices.reading import Sample

GIB = 1 << 30
Reader = Callable[[float], dict[str, Iterable[Sample]]]


def gpu(rank: int) -> Reader:
    """A GPU of 80 GiB under load; that of rank 1 is nearly full, that of rank 3 is hot."""
    index = str(rank % 2)
    card = (f"GPU-{rank:08x}-1f2e", "gpu", "NVIDIA H100 80GB HBM3", index)
    most = 78.2 if rank == 1 else 66.0 + 0.3 * rank

    def read(at_s: float) -> dict[str, Iterable[Sample]]:
        busy = min(1.0, at_s / 150.0)
        wave = math.sin(at_s / 97.0 + rank)
        used = (most * busy + 0.25 * wave) * GIB
        power_w = 110.0 + busy * (520.0 + 25.0 * wave)
        retries = max(0, int((at_s - 1500) / 400)) if rank == 1 else 0
        cuda = [
            Sample(devices.CUDA_ALLOCATED, used - 1.5 * GIB, (index,)),
            Sample(devices.CUDA_RESERVED, used, (index,)),
            Sample(devices.CUDA_ACTIVE, used - 1.2 * GIB, (index,)),
            Sample(devices.CUDA_REQUESTED, used - 1.9 * GIB, (index,)),
            Sample(devices.CUDA_INACTIVE_SPLIT, 0.9 * GIB, (index,)),
            Sample(devices.CUDA_LIMIT, 79.1 * GIB, (index,)),
            Sample(devices.CUDA_PEAK_ALLOCATED, (most - 0.9) * GIB, (index,)),
            Sample(devices.CUDA_PEAK_RESERVED, most * GIB, (index,)),
            Sample(devices.CUDA_PEAK_ACTIVE, (most - 0.7) * GIB, (index,)),
            Sample(devices.CUDA_POOL_ALLOCATED, 0.4 * GIB, (index, "small")),
            Sample(devices.CUDA_POOL_ALLOCATED, used - 1.9 * GIB, (index, "large")),
            Sample(devices.CUDA_RETRIES, retries, (index,)),
            Sample(devices.CUDA_OOMS, 0, (index,)),
            Sample(devices.CUDA_ALLOCATIONS, 900 + 40 * retries + int(60 * busy), (index,)),
            Sample(devices.CUDA_FREES, 40 * retries, (index,)),
        ]
        nvml = [
            Sample(devices.GPU_UTILIZATION, max(0.0, 0.97 * busy + 0.02 * wave), (*card, "general")),
            Sample(devices.GPU_UTILIZATION, 0.0, (*card, "encoder")),
            Sample(devices.GPU_UTILIZATION, 0.0, (*card, "decoder")),
            Sample(devices.GPU_MEMORY_USAGE, used + 0.7 * GIB, card),
            Sample(devices.GPU_MEMORY_LIMIT, 80.0 * GIB, card),
            Sample(
                devices.HW_TEMPERATURE,
                round(34 + busy * (30 + 2 * wave) + (14 * busy if rank == 3 else 0)),
                card,
            ),
            Sample(devices.HW_POWER, power_w, card),
            Sample(devices.HW_ENERGY, 1e7 + 610.0 * at_s, card),
            Sample(devices.HW_ERRORS, 3 + int(at_s > 2000) if rank == 3 else 0, (*card, "corrected")),
            Sample(devices.HW_ERRORS, 0, (*card, "uncorrected")),
        ]
        return {"cuda": cuda, "nvml": nvml}

    return read


def cluster_host(reader: Reader, *, with_host: bool) -> Reader:
    """Add what the CPU source says: of the process always, of the host from its first rank."""

    def read(at_s: float) -> dict[str, Iterable[Sample]]:
        wave = math.sin(at_s / 61.0)
        process = [
            Sample(devices.PROCESS_CPU_UTILIZATION, 0.11 + 0.01 * wave, ("user",)),
            Sample(devices.PROCESS_CPU_UTILIZATION, 0.02, ("system",)),
            Sample(devices.PROCESS_CPU_TIME, 3.1 * at_s, ("user",)),
            Sample(devices.PROCESS_CPU_TIME, 0.4 * at_s, ("system",)),
            Sample(devices.PROCESS_MEMORY_USAGE, (21.0 + at_s / 3600.0) * GIB),
            Sample(devices.PROCESS_THREAD_COUNT, 140),
        ]
        host = [
            Sample(devices.SYSTEM_CPU_UTILIZATION, 0.48 + 0.05 * wave, ("user",)),
            Sample(devices.SYSTEM_CPU_UTILIZATION, 0.09, ("system",)),
            Sample(devices.SYSTEM_CPU_UTILIZATION, 0.02, ("iowait",)),
            Sample(devices.SYSTEM_CPU_UTILIZATION, 0.41 - 0.05 * wave, ("idle",)),
            Sample(devices.SYSTEM_MEMORY_USAGE, 310 * GIB, ("used",)),
            Sample(devices.SYSTEM_MEMORY_USAGE, (500 + 20 * wave) * GIB, ("cached",)),
            Sample(devices.SYSTEM_MEMORY_USAGE, (197 - 20 * wave) * GIB, ("free",)),
            Sample(devices.SYSTEM_MEMORY_UTILIZATION, 310 / 1007, ("used",)),
            Sample(devices.SYSTEM_MEMORY_LIMIT, 1007 * GIB),
            Sample(devices.SYSTEM_PAGING_USAGE, 0, ("used",)),
            Sample(devices.SYSTEM_PAGING_USAGE, 8 * GIB, ("free",)),
            Sample(devices.CONTAINER_MEMORY_USAGE, 420 * GIB),
            Sample(devices.CONTAINER_MEMORY_AVAILABLE, 480 * GIB),
        ]
        times = [
            Sample(devices.DEVICE_READ_DURATION, seconds + 1e-4 * wave, (source,))
            for source, seconds in (("cpu", 6e-4), ("cuda", 4e-4), ("nvml", 2.1e-3))
        ]
        failures = [Sample(devices.DEVICE_READ_FAILURES, int(at_s > 2400) + int(at_s > 2500), ("nvml",))]
        cpu = process + (host if with_host else [])
        return {**reader(at_s), "cpu": cpu, "bridge": times + (failures if with_host else [])}

    return read


def xla(at_s: float) -> dict[str, Iterable[Sample]]:
    """A TPU that compiles again after half an hour, for the shapes changed."""
    compiles = min(6, int(at_s / 20)) + max(0, int((at_s - 1800) / 90))
    return {
        "xla": [
            Sample(devices.XLA_USAGE, (11.0 + 0.2 * math.sin(at_s / 50.0)) * GIB, ("xla:0",)),
            Sample(devices.XLA_LIMIT, 15.75 * GIB, ("xla:0",)),
            Sample(devices.XLA_COMPILES, compiles),
            Sample(devices.XLA_COMPILE_TIME, 7.5 * compiles),
            Sample(devices.XLA_EXECUTIONS, int(at_s / 0.9)),
            Sample(devices.XLA_EXECUTE_TIME, 0.85 * at_s),
            Sample(devices.XLA_EVENTS, compiles, ("UncachedCompile",)),
            Sample(devices.XLA_EVENTS, int(at_s / 0.9), ("CachedCompile",)),
            Sample(devices.XLA_EVENTS, int(at_s / 30), ("aten::nonzero",)),
        ]
    }


def apple(at_s: float) -> dict[str, Iterable[Sample]]:
    """A laptop with a GPU that shares its memory."""
    return {
        "mps": [
            Sample(devices.MPS_ALLOCATED, (3.1 + 0.1 * math.sin(at_s / 40.0)) * GIB),
            Sample(devices.MPS_DRIVER_ALLOCATED, 4.2 * GIB),
        ]
    }
