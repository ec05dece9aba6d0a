"""``DeviceStatsMonitor``: the state of the machine as events, at the start and end of batches."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from otel_training import device_keys
from otel_training.devices import cpu, xla
from otel_training.devices.reading import MIN_RATE_INTERVAL_S
from otel_training.guard import Guard, Notices, attempt, logger

_STAGES = ("fit", "validate", "test")


class MisconfigurationException(Exception):  # noqa: N818 - the name that callers of Lightning's monitor know
    """The monitor was given to a trainer that has no logger, so that nobody would see what it reads."""


class StatsPayload(dict[str, Any]):
    """A payload that says which of its fields are too many for a line of text.

    Attributes:
        json_only: Names of fields that the text log leaves out; JSON lines and hooks have them.
    """

    def __init__(self, fields: Mapping[str, Any], json_only: frozenset[str]) -> None:
        super().__init__(fields)
        self.json_only = json_only


class DeviceStatsMonitor:
    """A callback that emits ``device_stats`` events through each of the trainer's loggers.

    Keys are ``DeviceStatsMonitor.{hook}/{base}``. Bases: ``cpu_percent``, ``cpu_vm_percent``,
    ``cpu_swap_percent``; each key of ``torch.cuda.memory_stats``; ``memory.free.xla:0``,
    ``memory.used.xla:0`` (MB of 2^20 bytes), ``memory.percent.xla:0`` and ``{counter}.xla``; ``M1_percent``,
    ``M1_vm_percent``, ``M1_swap_percent`` on MPS. What they mean as metrics: ``docs/metrics.md``.

    In fit it follows the cadence of each logger by the step in progress, with one event before the step's
    first micro-batch and one after its last. In validation and test it takes the first batch and then every
    ``every_steps``-th. The host is read at most ten times a second; in between, its last values are told.

    It works with any trainer that calls the batch hooks and has ``loggers`` with ``emit(event, payload)``,
    ``step`` (or ``global_step``) and, for accumulation, ``accumulation_steps``.

    Args:
        cpu_stats: None = CPU stats only when the accelerator is the CPU; True = always; False = never.
        filter_keys: Bases to keep, a set or a list of them; None = all.
        clock: Monotonic seconds.
        sleep: Waits for so many seconds.

    Raises:
        ValueError: An argument is not accepted.
    """

    def __init__(
        self,
        cpu_stats: bool | None = None,
        filter_keys: Collection[str] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if cpu_stats is not None and not isinstance(cpu_stats, bool):
            raise ValueError(f"cpu_stats={cpu_stats!r} is not accepted: None, True, False")
        if isinstance(filter_keys, str) or not all(isinstance(key, str) for key in filter_keys or ()):
            raise ValueError(f"filter_keys={filter_keys!r} is not accepted: a set of keys, or None")
        self._cpu_stats = cpu_stats
        self._filter_keys = None if filter_keys is None else frozenset(filter_keys)
        self._clock = clock
        self._sleep = sleep
        self._guard = Guard(Notices())
        self._host: _Host | None = None
        self._filter_checked = False
        self._micro_batch = 0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Get ready for a stage; ``predict`` and ``tune`` do nothing.

        The first utilization of the CPU takes two readings 0.1 s apart, so this may take as long, once.

        Raises:
            MisconfigurationException: The trainer has no logger.
            ModuleNotFoundError: CPU stats are wanted and psutil is not installed.
        """
        if str(getattr(stage, "value", stage)) not in _STAGES:
            return
        if not trainer.loggers:
            raise MisconfigurationException(
                "DeviceStatsMonitor emits through the trainer's loggers and this trainer has none;"
                " leave out logger=False or the monitor"
            )
        self._micro_batch = 0
        kind = _device_of(trainer, pl_module).partition(":")[0]
        if self._host is None and (self._wants_cpu(kind) or (kind == "mps" and self._cpu_stats is not False)):
            self._host = _Host(_load_psutil(), self._clock)
            self._sleep(MIN_RATE_INTERVAL_S)
        if self._filter_keys is not None and not self._filter_checked:
            self._guard.run("filter_keys of DeviceStatsMonitor", self._check_filter, trainer, pl_module)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Emit before the first micro-batch of a step."""
        self._micro_batch += 1
        if self._micro_batch == 1:
            step = _applied_steps(trainer) + 1
            self._emit(trainer, pl_module, "on_train_batch_start", "fit", step, step)

    def on_train_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        outputs: Any,  # noqa: ARG002
        batch: Any,  # noqa: ARG002
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        """Emit after the last micro-batch of a step, before the optimizer."""
        if self._micro_batch >= getattr(trainer, "accumulation_steps", 1):
            self._micro_batch = 0
            step = _applied_steps(trainer) + 1
            self._emit(trainer, pl_module, "on_train_batch_end", "fit", step, step)

    def on_validation_batch_start(
        self,
        trainer: Any,
        pl_module: Any,
        batch: Any,  # noqa: ARG002
        batch_idx: int,
        dataloader_idx: int = 0,  # noqa: ARG002
    ) -> None:
        """Emit before a validation batch."""
        self._emit_held_out(trainer, pl_module, "on_validation_batch_start", "validation", batch_idx)

    def on_validation_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        outputs: Any,  # noqa: ARG002
        batch: Any,  # noqa: ARG002
        batch_idx: int,
        dataloader_idx: int = 0,  # noqa: ARG002
    ) -> None:
        """Emit after a validation batch."""
        self._emit_held_out(trainer, pl_module, "on_validation_batch_end", "validation", batch_idx)

    def on_test_batch_start(
        self,
        trainer: Any,
        pl_module: Any,
        batch: Any,  # noqa: ARG002
        batch_idx: int,
        dataloader_idx: int = 0,  # noqa: ARG002
    ) -> None:
        """Emit before a test batch."""
        self._emit_held_out(trainer, pl_module, "on_test_batch_start", "test", batch_idx)

    def on_test_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        outputs: Any,  # noqa: ARG002
        batch: Any,  # noqa: ARG002
        batch_idx: int,
        dataloader_idx: int = 0,  # noqa: ARG002
    ) -> None:
        """Emit after a test batch."""
        self._emit_held_out(trainer, pl_module, "on_test_batch_end", "test", batch_idx)

    def _emit_held_out(self, trainer: Any, pl_module: Any, hook: str, stage: str, batch_idx: int) -> None:
        self._emit(trainer, pl_module, hook, stage, _applied_steps(trainer), batch_idx)

    def _emit(self, trainer: Any, pl_module: Any, hook: str, stage: str, step: int, position: int) -> None:
        """Emit through the loggers whose cadence ``position`` meets."""
        due = [log for log in trainer.loggers if position % getattr(log, "every_steps", 1) == 0]
        if due:
            self._guard.run("DeviceStatsMonitor", self._emit_to, due, trainer, pl_module, hook, stage, step)

    def _emit_to(
        self, loggers: list[Any], trainer: Any, pl_module: Any, hook: str, stage: str, step: int
    ) -> None:
        stats = self._read(_device_of(trainer, pl_module))
        if self._filter_keys is not None:
            stats = {base: value for base, value in stats.items() if base in self._filter_keys}
        if not stats:
            return
        prefix = f"{device_keys.PREFIX}{hook}/"
        fields = {"step": step, "stage": stage, **{prefix + base: value for base, value in stats.items()}}
        json_only = frozenset(prefix + base for base in stats if not _is_for_text(base))
        for log in loggers:
            log.emit("device_stats", StatsPayload(fields, json_only))

    def _check_filter(self, trainer: Any, pl_module: Any) -> None:
        device = _device_of(trainer, pl_module)
        available = self._read(device)
        if available:  # nothing is known of a device that is not in use yet
            self._filter_checked = True
            unknown = sorted((self._filter_keys or frozenset()) - set(available))
            if unknown:
                logger.warning("DeviceStatsMonitor: filter_keys %s name nothing on %s", unknown, device)

    def _wants_cpu(self, kind: str) -> bool:
        return kind == "cpu" if self._cpu_stats is None else self._cpu_stats

    def _read(self, device: str) -> dict[str, Any]:
        kind = device.partition(":")[0]
        stats: dict[str, Any] = {}
        if kind == "cuda":
            stats |= _cuda_stats(device)
        elif kind == "xla":
            stats |= _xla_stats(device)
        elif kind == "mps" and self._host is not None:
            stats |= {f"M1_{base.removeprefix('cpu_')}": value for base, value in self._host.read().items()}
        if self._host is not None and self._wants_cpu(kind):
            stats |= self._host.read()
        return stats


class _Host:
    """CPU, memory and swap of the host in percent, 0 to 100.

    Args:
        psutil: The library.
        clock: Monotonic seconds.
    """

    def __init__(self, psutil: Any, clock: Callable[[], float]) -> None:
        self._psutil = psutil
        self._clock = clock
        self._at_s = clock()
        self._times = cpu.by_mode(psutil.cpu_times())
        self._stats: dict[str, float] = {}

    def read(self) -> dict[str, float]:
        """Read anew, or return what was read less than a tenth of a second ago."""
        now_s = self._clock()
        if now_s - self._at_s >= MIN_RATE_INTERVAL_S:
            times = cpu.by_mode(self._psutil.cpu_times())
            part = cpu.busy(cpu.fractions(self._times, times))
            self._at_s, self._times = now_s, times
            self._stats = {} if part is None else {"cpu_percent": round(100 * part, 1)}
            self._stats["cpu_vm_percent"] = self._psutil.virtual_memory().percent
            self._stats["cpu_swap_percent"] = self._psutil.swap_memory().percent
        return self._stats


def _is_for_text(base: str) -> bool:
    return device_keys.has_metric(base) and not base.endswith(".xla")


def _cuda_stats(device: str) -> dict[str, Any]:
    cuda = importlib.import_module("torch").cuda
    return dict(cuda.memory_stats(device))  # empty as long as CUDA is not in use


def _xla_stats(device: str) -> dict[str, Any]:
    metrics = importlib.import_module("torch_xla.debug.metrics")
    stats: dict[str, Any] = {}
    info = attempt(importlib.import_module("torch_xla.core.xla_model").get_memory_info, device)
    if info is not None:
        memory = xla.memory_of(info)
        for base, size in (("free", memory.free_bytes), ("used", memory.used_bytes)):
            if size is not None:
                stats[f"memory.{base}.{device}"] = size / device_keys.MEBIBYTE
        if memory.utilization is not None:
            stats[f"memory.percent.{device}"] = 100 * memory.utilization
    return stats | {f"{name}.xla": metrics.counter_value(name) for name in metrics.counter_names()}


def _load_psutil() -> Any:
    try:
        return importlib.import_module("psutil")
    except ImportError as error:
        raise ModuleNotFoundError(
            "DeviceStatsMonitor reads the CPU with psutil, which is not installed;"
            " pip install psutil, or pass cpu_stats=False"
        ) from error


def _device_of(trainer: Any, pl_module: Any) -> str:
    """Return the device that is trained on, as PyTorch names it."""
    for owner in (trainer, pl_module):
        device = getattr(owner, "device", None)
        if device is not None:
            return str(device)
    parameter = next(iter(pl_module.parameters()), None)
    return "cpu" if parameter is None else str(parameter.device)


def _applied_steps(trainer: Any) -> int:
    step = getattr(trainer, "step", None)
    return int(getattr(trainer, "global_step", 0) if step is None else step)
