"""The cells of the state that hold device metrics: one per series, whoever writes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from otel_training import catalog
from otel_training.catalog import Metric
from otel_training.devices.cpu import with_busy
from otel_training.devices.reading import Sample
from otel_training.rank_device import RankDevice
from otel_training.state import State
from otel_training.values import Number

_Key = tuple[Metric, tuple[str | None, ...]]


class DeviceCells:
    """Where the sampler and ``device_stats`` events write; the newest value wins.

    Called with the state's lock held.

    Args:
        state: The numbers of the run.

    Attributes:
        device: The device of this process.
        all_stats: Whether statistics without a metric of their own are kept.
        on_device_known: Called when more is known about the device, on the thread that trains.
    """

    def __init__(self, state: State) -> None:
        self.device = RankDevice()
        self.all_stats = False
        self.on_device_known: Callable[[], None] | None = None
        self._state = state
        self._current: dict[str, set[_Key]] = {}
        self._totals: dict[_Key, Number] = {}
        # What a run of the same identity counted before: the totals of the source go on, and so do ours.
        self._counted = {
            series: total for series, total in state.snapshot().values.items() if series[0].kind == "counter"
        }

    def learn(self, device: Any = None) -> None:
        """Take what an event of the thread that trains says of the device; None when it says nothing."""
        if self.device.learn(device) and self.on_device_known is not None:
            self.on_device_known()

    def replace(self, source: str, samples: Iterable[Sample]) -> None:
        """Write all that a source says now, and withdraw what it says no longer.

        Counters stay: their total up to the last reading is still true.
        """
        before = self._current.get(source, set())
        self._current[source] = set()
        for sample in samples:
            self._write(source, sample)
        for metric, labels in before - self._current[source]:
            self._state.withdraw(metric, *labels)

    def put(self, source: str, sample: Sample) -> None:
        """Write one number beside what the source said before."""
        if sample.metric is catalog.SYSTEM_CPU_UTILIZATION and self._by_mode(source):
            for mode, part in with_busy(self._by_mode(source), sample.value).items():
                self._write(source, Sample(sample.metric, part, (mode,)))
        else:
            self._write(source, sample)

    def _by_mode(self, source: str) -> dict[str, Number]:
        """Return the parts of the host's CPU time that are known by mode."""
        metric = catalog.SYSTEM_CPU_UTILIZATION
        modes = [labels[0] for owner, labels in self._current.get(source, ()) if owner is metric]
        return {mode: self._state.get(metric, mode) or 0 for mode in modes if mode is not None}

    def _write(self, source: str, sample: Sample) -> None:
        metric, labels = sample.metric, sample.labels
        key = (metric, labels)
        if metric.kind == "counter":
            # Added up from differences, so that a source that begins anew does not take ours back.
            last = self._totals.get(key, self._counted.pop(key, 0))
            self._totals[key] = sample.value
            self._state.add(metric, sample.value - (last if sample.value >= last else 0), *labels)
        else:
            self._state.set(metric, sample.value, *labels)
            self._current.setdefault(source, set()).add(key)
