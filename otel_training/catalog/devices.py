"""The metrics of devices, under the names of OpenTelemetry's semantic conventions where there are any.

Source: semantic conventions 1.44 (``system``, ``process``, ``container``, ``hw``); the namespaces
``torch.cuda``, ``torch.mps`` and ``torch_xla`` are ours, called after the libraries whose figures they carry.
"""

from __future__ import annotations

from otel_training.catalog.attributes import ERROR_TYPE
from otel_training.catalog.kinds import Attribute, Metric

# fmt: off
# One entry reads as one row of a table; the formatter would make a page of each.

CPU_MODE = Attribute(
    "cpu.mode", "What the CPUs did; absent when only the sum of the busy modes is known.",
    ("user", "nice", "system", "interrupt", "steal", "iowait", "idle"),
)
MEMORY_STATE = Attribute(
    "system.memory.state", "used, cached (given back when needed) or free.", ("used", "cached", "free"),
)
PAGING_STATE = Attribute("system.paging.state", "used or free.", ("used", "free"))
DEVICE_INDEX = Attribute("torch.device.index", "Index of the device in PyTorch: the 1 of cuda:1.", cap=64)
CUDA_POOL = Attribute("torch.cuda.pool", "Pool of the caching allocator.", ("small", "large"))
CUDA_STAT = Attribute("torch.cuda.stat", "Key of torch.cuda.memory_stats.", cap=300)
HW_ID = Attribute("hw.id", "UUID of the GPU, or of its MIG instance, as NVML gives it.", cap=64)
HW_TYPE = Attribute("hw.type", "Kind of hardware.", ("gpu",))
HW_NAME = Attribute("hw.name", "Name of the product.", cap=64)
GPU_TASK = Attribute("hw.gpu.task", "Part of the GPU.", ("general", "encoder", "decoder"))
XLA_DEVICE = Attribute("torch_xla.device", "Device as torch_xla names it, such as xla:0.", cap=64)
XLA_EVENT = Attribute("torch_xla.event.name", "Name of the counter of torch_xla.", cap=100)
DEVICE_SOURCE = Attribute(
    "training.device.source", "Where device metrics are read.", ("cpu", "cuda", "mps", "xla", "nvml"),
)

_STATS = ("device_stats",)

SYSTEM_CPU_UTILIZATION = Metric(
    "system.cpu.utilization", "gauge", "1", "Part of the host's CPU time by what it went into.", (CPU_MODE,),
    _STATS,
)
SYSTEM_MEMORY_USAGE = Metric(
    "system.memory.usage", "updown", "By", "Memory of the host by state; the states add up to the limit.",
    (MEMORY_STATE,),
)
SYSTEM_MEMORY_UTILIZATION = Metric(
    "system.memory.utilization", "gauge", "1", "Part of the host's memory by state.", (MEMORY_STATE,), _STATS,
)
SYSTEM_MEMORY_LIMIT = Metric("system.memory.limit", "updown", "By", "Memory of the host.")
SYSTEM_PAGING_USAGE = Metric(
    "system.paging.usage", "updown", "By", "Swap space of the host by state.", (PAGING_STATE,),
)
SYSTEM_PAGING_UTILIZATION = Metric(
    "system.paging.utilization", "gauge", "1", "Part of the host's swap space by state.", (PAGING_STATE,),
    _STATS,
)
CONTAINER_MEMORY_USAGE = Metric(
    "container.memory.usage", "updown", "By", "Memory of the control group that has the tightest limit.",
)
CONTAINER_MEMORY_AVAILABLE = Metric(
    "container.memory.available", "updown", "By",
    "What that control group may use beyond its working set (usage without inactive file cache).",
)

PROCESS_CPU_UTILIZATION = Metric(
    "process.cpu.utilization", "gauge", "1",
    "CPU time of this process by what the CPUs available to it could have given.", (CPU_MODE,),
)
PROCESS_CPU_TIME = Metric("process.cpu.time", "counter", "s", "CPU time of this process.", (CPU_MODE,))
PROCESS_MEMORY_USAGE = Metric(
    "process.memory.usage", "updown", "By", "Physical memory that this process holds (RSS).",
)
PROCESS_THREAD_COUNT = Metric("process.thread.count", "updown", "{thread}", "Threads of this process.")

CUDA_ALLOCATED = Metric(
    "torch.cuda.memory.allocated", "updown", "By", "GPU memory of live tensors.", (DEVICE_INDEX,), _STATS,
)
CUDA_RESERVED = Metric(
    "torch.cuda.memory.reserved", "updown", "By", "GPU memory that PyTorch's allocator holds.",
    (DEVICE_INDEX,), _STATS,
)
CUDA_ACTIVE = Metric(
    "torch.cuda.memory.active", "updown", "By",
    "GPU memory of live tensors and of blocks that a stream still uses.", (DEVICE_INDEX,), _STATS,
)
CUDA_INACTIVE_SPLIT = Metric(
    "torch.cuda.memory.inactive_split", "updown", "By",
    "GPU memory in free parts of split blocks, which cannot be given back: fragmentation.",
    (DEVICE_INDEX,), _STATS,
)
CUDA_REQUESTED = Metric(
    "torch.cuda.memory.requested", "updown", "By", "GPU memory asked for, before rounding up to blocks.",
    (DEVICE_INDEX,), _STATS,
)
CUDA_LIMIT = Metric("torch.cuda.memory.limit", "updown", "By", "Memory of the GPU.", (DEVICE_INDEX,))
CUDA_PEAK_ALLOCATED = Metric(
    "torch.cuda.memory.peak.allocated", "gauge", "By", "Most memory of live tensors since the last reset.",
    (DEVICE_INDEX,), _STATS,
)
CUDA_PEAK_RESERVED = Metric(
    "torch.cuda.memory.peak.reserved", "gauge", "By", "Most memory held by the allocator likewise.",
    (DEVICE_INDEX,), _STATS,
)
CUDA_PEAK_ACTIVE = Metric(
    "torch.cuda.memory.peak.active", "gauge", "By", "Most active memory likewise.", (DEVICE_INDEX,), _STATS,
)
CUDA_POOL_ALLOCATED = Metric(
    "torch.cuda.memory.pool.allocated", "updown", "By", "GPU memory of live tensors by pool.",
    (DEVICE_INDEX, CUDA_POOL), _STATS,
)
CUDA_POOL_RESERVED = Metric(
    "torch.cuda.memory.pool.reserved", "updown", "By", "GPU memory held by the allocator by pool.",
    (DEVICE_INDEX, CUDA_POOL), _STATS,
)
CUDA_POOL_ACTIVE = Metric(
    "torch.cuda.memory.pool.active", "updown", "By", "Active GPU memory by pool.", (DEVICE_INDEX, CUDA_POOL),
    _STATS,
)
CUDA_POOL_PEAK_ALLOCATED = Metric(
    "torch.cuda.memory.pool.peak.allocated", "gauge", "By", "Most memory of live tensors by pool.",
    (DEVICE_INDEX, CUDA_POOL), _STATS,
)
CUDA_POOL_PEAK_RESERVED = Metric(
    "torch.cuda.memory.pool.peak.reserved", "gauge", "By", "Most memory held by the allocator by pool.",
    (DEVICE_INDEX, CUDA_POOL), _STATS,
)
CUDA_POOL_PEAK_ACTIVE = Metric(
    "torch.cuda.memory.pool.peak.active", "gauge", "By", "Most active memory by pool.",
    (DEVICE_INDEX, CUDA_POOL), _STATS,
)
CUDA_OOMS = Metric(
    "torch.cuda.allocator.ooms", "counter", "{error}", "Out-of-memory errors that PyTorch raised.",
    (DEVICE_INDEX,), _STATS,
)
CUDA_RETRIES = Metric(
    "torch.cuda.allocator.retries", "counter", "{retry}",
    "Allocations that had to empty the cache and try again: memory is short.", (DEVICE_INDEX,), _STATS,
)
CUDA_ALLOCATIONS = Metric(
    "torch.cuda.allocator.allocations", "counter", "{allocation}", "Allocations from the driver.",
    (DEVICE_INDEX,), _STATS,
)
CUDA_FREES = Metric(
    "torch.cuda.allocator.frees", "counter", "{free}", "Blocks given back to the driver.", (DEVICE_INDEX,),
    _STATS,
)
CUDA_OTHER_STAT = Metric(
    "torch.cuda.memory.stat", "gauge", "", 'Every other key of torch.cuda.memory_stats; with devices="all".',
    (DEVICE_INDEX, CUDA_STAT), _STATS,
)

_GPU = (HW_ID, HW_TYPE, HW_NAME, DEVICE_INDEX)
GPU_UTILIZATION = Metric(
    "hw.gpu.utilization", "gauge", "1", "Part of the time in which the GPU ran something.", (*_GPU, GPU_TASK),
)
GPU_MEMORY_USAGE = Metric(
    "hw.gpu.memory.usage", "updown", "By", "GPU memory in use by all processes.", _GPU,
)
GPU_MEMORY_LIMIT = Metric("hw.gpu.memory.limit", "updown", "By", "Memory of the GPU.", _GPU)
GPU_MEMORY_UTILIZATION = Metric(
    "hw.gpu.memory.utilization", "gauge", "1", "Part of the GPU's memory that is in use.", _GPU,
)
HW_TEMPERATURE = Metric("hw.temperature", "gauge", "Cel", "Temperature of the GPU.", _GPU)
HW_POWER = Metric("hw.power", "gauge", "W", "Power that the GPU draws.", _GPU)
HW_ENERGY = Metric(
    "hw.energy", "counter", "J", "Energy that the GPU has used since its driver was loaded.", _GPU,
)
HW_ERRORS = Metric(
    "hw.errors", "counter", "{error}", "ECC errors of the GPU's memory since its driver was loaded.",
    (*_GPU, ERROR_TYPE),
)

MPS_ALLOCATED = Metric(
    "torch.mps.memory.allocated", "updown", "By", "Memory of live tensors on Apple's GPU.", (), (),
)
MPS_DRIVER_ALLOCATED = Metric(
    "torch.mps.memory.driver_allocated", "updown", "By", "Memory that Metal holds for this process.",
)

XLA_USAGE = Metric(
    "torch_xla.memory.usage", "updown", "By", "Memory in use on the XLA device.", (XLA_DEVICE,), _STATS,
)
XLA_FREE = Metric(
    "torch_xla.memory.free", "updown", "By", "Memory of the XLA device that is free.", (XLA_DEVICE,), _STATS,
)
XLA_LIMIT = Metric("torch_xla.memory.limit", "updown", "By", "Memory of the XLA device.", (XLA_DEVICE,))
XLA_UTILIZATION = Metric(
    "torch_xla.memory.utilization", "gauge", "1", "Part of the XLA device's memory that is in use.",
    (XLA_DEVICE,), _STATS,
)
XLA_EVENTS = Metric(
    "torch_xla.events", "counter", "{event}", "Counters of torch_xla: compiles, cache misses, operations.",
    (XLA_EVENT,), _STATS,
)
XLA_COMPILES = Metric("torch_xla.compiles", "counter", "{compile}", "Graphs that XLA compiled.")
XLA_COMPILE_TIME = Metric("torch_xla.compile.time", "counter", "s", "Time that compiling took.")
XLA_EXECUTIONS = Metric("torch_xla.executions", "counter", "{execution}", "Graphs that XLA executed.")
XLA_EXECUTE_TIME = Metric("torch_xla.execute.time", "counter", "s", "Time that executing took.")

DEVICE_READ_DURATION = Metric(
    "training.device.read.duration", "gauge", "s", "Time that the last reading of a source took.",
    (DEVICE_SOURCE,),
)
DEVICE_READ_FAILURES = Metric(
    "training.device.read.failures", "counter", "{failure}",
    "Readings that raised; what a device does not support is absent and no failure.", (DEVICE_SOURCE,),
)
# fmt: on

DEVICE_METRICS: tuple[Metric, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Metric)
)
"""The metrics of devices and of reading them."""
