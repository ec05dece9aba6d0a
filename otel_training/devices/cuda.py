"""PyTorch's caching allocator on one CUDA device: what this process itself holds of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from otel_training import catalog
from otel_training.catalog import Metric
from otel_training.devices.reading import Reading, Unavailable

STATS: Mapping[str, tuple[Metric, str | None]] = {
    "allocated_bytes.all.current": (catalog.CUDA_ALLOCATED, None),
    "reserved_bytes.all.current": (catalog.CUDA_RESERVED, None),
    "active_bytes.all.current": (catalog.CUDA_ACTIVE, None),
    "inactive_split_bytes.all.current": (catalog.CUDA_INACTIVE_SPLIT, None),
    "requested_bytes.all.current": (catalog.CUDA_REQUESTED, None),
    "allocated_bytes.all.peak": (catalog.CUDA_PEAK_ALLOCATED, None),
    "reserved_bytes.all.peak": (catalog.CUDA_PEAK_RESERVED, None),
    "active_bytes.all.peak": (catalog.CUDA_PEAK_ACTIVE, None),
    "allocated_bytes.small_pool.current": (catalog.CUDA_POOL_ALLOCATED, "small"),
    "allocated_bytes.large_pool.current": (catalog.CUDA_POOL_ALLOCATED, "large"),
    "reserved_bytes.small_pool.current": (catalog.CUDA_POOL_RESERVED, "small"),
    "reserved_bytes.large_pool.current": (catalog.CUDA_POOL_RESERVED, "large"),
    "active_bytes.small_pool.current": (catalog.CUDA_POOL_ACTIVE, "small"),
    "active_bytes.large_pool.current": (catalog.CUDA_POOL_ACTIVE, "large"),
    "allocated_bytes.small_pool.peak": (catalog.CUDA_POOL_PEAK_ALLOCATED, "small"),
    "allocated_bytes.large_pool.peak": (catalog.CUDA_POOL_PEAK_ALLOCATED, "large"),
    "reserved_bytes.small_pool.peak": (catalog.CUDA_POOL_PEAK_RESERVED, "small"),
    "reserved_bytes.large_pool.peak": (catalog.CUDA_POOL_PEAK_RESERVED, "large"),
    "active_bytes.small_pool.peak": (catalog.CUDA_POOL_PEAK_ACTIVE, "small"),
    "active_bytes.large_pool.peak": (catalog.CUDA_POOL_PEAK_ACTIVE, "large"),
    "num_ooms": (catalog.CUDA_OOMS, None),
    "num_alloc_retries": (catalog.CUDA_RETRIES, None),
    "num_device_alloc": (catalog.CUDA_ALLOCATIONS, None),
    "num_device_free": (catalog.CUDA_FREES, None),
}
"""Keys of ``torch.cuda.memory_stats`` that have a metric of their own, with their pool."""


@dataclass(frozen=True)
class CudaSource:
    """What is read.

    Args:
        cuda: The module ``torch.cuda``.
        index: The device of this process; None when nobody has said.
        all_stats: Whether keys without a metric of their own are wanted.
    """

    cuda: Any
    index: int | None
    all_stats: bool


def read(source: CudaSource, _previous: Reading | None) -> Reading:
    """Read the allocator's statistics; nothing here initialises CUDA.

    Raises:
        Unavailable: CUDA is not in use, or it is not known which of its devices is this process's.
    """
    cuda, index = source.cuda, source.index
    # An empty dict until CUDA is in use: of all calls this is the one that never initialises it.
    stats = cuda.memory_stats() if index is None else cuda.memory_stats(index)
    if not stats:
        raise Unavailable("CUDA is not in use in this process")
    if index is None:
        # The current device is each thread's own, so that of the training thread cannot be asked from here.
        if cuda.device_count() != 1:
            raise Unavailable("nobody said which CUDA device is this process's; pass device=")
        index = 0
    reading = Reading()
    label = str(index)
    for key, value in stats.items():
        put_stat(reading, key, value, label, all_stats=source.all_stats)
    if cuda.is_initialized():
        properties = reading.ask("properties of the device", cuda.get_device_properties, index)
        reading.put(catalog.CUDA_LIMIT, getattr(properties, "total_memory", None), label)
    return reading


def put_stat(reading: Reading, key: str, value: object, index: str, *, all_stats: bool) -> None:
    """Add one entry of ``torch.cuda.memory_stats``: to its own metric, else to the one for all others.

    Args:
        reading: Where it is added.
        key: Its key.
        value: Its value.
        index: Index of the device.
        all_stats: Whether keys without a metric of their own are wanted.
    """
    metric, pool = STATS.get(key, (None, None))
    if metric is not None:
        reading.put(metric, value, *((index,) if pool is None else (index, pool)))
    elif all_stats:
        reading.put(catalog.CUDA_OTHER_STAT, value, index, key)
