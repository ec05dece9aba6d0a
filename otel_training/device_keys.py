"""From the keys of ``DeviceStatsMonitor``, Lightning's and ours, to the metrics that the sampler writes.

Keys are ``DeviceStatsMonitor.{hook}/{base}``; this is the table of the bases, one row per form, and
``docs/metrics.md`` shows it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from otel_training import catalog
from otel_training.catalog import Metric
from otel_training.devices import cuda
from otel_training.devices.reading import Sample, plausible
from otel_training.rank_device import RankDevice

PREFIX = "DeviceStatsMonitor."
MEBIBYTE = 1 << 20

_CUDA_STAT = re.compile(
    r".+\.(all|small_pool|large_pool)\.(current|peak|allocated|freed)|num_\w+|max_split_size|oversize_\w+\..+"
)


@dataclass(frozen=True)
class Form:
    """A form of bases and the metric it goes to.

    Args:
        base: The base; ``{device}`` and ``{counter}`` stand for what differs.
        source: Whose cells these are, as in ``start(devices=...)``.
        metric: The metric.
        labels: Values of its attributes; ``{device}``, ``{counter}`` from the base, ``{index}`` and ``{xla}``
            from the device of the process, None for an attribute that is absent.
        scale: What the value is multiplied by.
        comes_in: Unit of the value, in words.
    """

    base: str
    source: str
    metric: Metric
    labels: tuple[str | None, ...]
    scale: float
    comes_in: str

    @property
    def pattern(self) -> re.Pattern[str]:
        """What bases of this form look like."""
        escaped = re.escape(self.base)
        escaped = escaped.replace(r"\{device\}", r"(?P<device>xla:\d+)")
        return re.compile(escaped.replace(r"\{counter\}", "(?P<counter>.+)"))


def _percent(base: str, metric: Metric, *labels: str | None, source: str = "cpu") -> Form:
    return Form(base, source, metric, labels, 0.01, "percent, 0 to 100")


def _xla(base: str, metric: Metric, label: str, scale: float, comes_in: str) -> Form:
    return Form(base, "xla", metric, (label,), scale, comes_in)


FORMS: tuple[Form, ...] = (
    *(
        form
        for cpu, memory, swap in (
            ("cpu_percent", "cpu_vm_percent", "cpu_swap_percent"),
            ("M1_percent", "M1_vm_percent", "M1_swap_percent"),  # what Lightning calls them on Apple's GPUs
        )
        for form in (
            _percent(cpu, catalog.SYSTEM_CPU_UTILIZATION, None),
            _percent(memory, catalog.SYSTEM_MEMORY_UTILIZATION, "used"),
            _percent(swap, catalog.SYSTEM_PAGING_UTILIZATION, "used"),
        )
    ),
    *(
        Form(
            key,
            "cuda",
            metric,
            ("{index}",) if pool is None else ("{index}", pool),
            1,
            "bytes" if metric.unit == "By" else "a running total",
        )
        for key, (metric, pool) in cuda.STATS.items()
    ),
    # What Lightning documents for XLA, and what we emit.
    _xla("memory.free.{device}", catalog.XLA_FREE, "{device}", MEBIBYTE, "MB of 2^20 bytes"),
    _xla("memory.used.{device}", catalog.XLA_USAGE, "{device}", MEBIBYTE, "MB of 2^20 bytes"),
    _percent("memory.percent.{device}", catalog.XLA_UTILIZATION, "{device}", source="xla"),
    _xla("{counter}.xla", catalog.XLA_EVENTS, "{counter}", 1, "a running total"),
    # What Lightning 2.6 emits for XLA: KiB under a name that says MB, and the used memory as the peak.
    _xla("avg. free memory (MB)", catalog.XLA_FREE, "{xla}", 1024, "KiB, whatever the key says"),
    _xla("avg. peak memory (MB)", catalog.XLA_USAGE, "{xla}", 1024, "KiB in use, whatever the key says"),
)
"""All forms; the first that fits counts."""

_EXACT = {form.base: form for form in FORMS if "{" not in form.base}
_PATTERNS = [(form.pattern, form) for form in FORMS if "{" in form.base]


def is_monitor_key(field: object) -> bool:
    """Return whether a field of an event is a key of ``DeviceStatsMonitor``."""
    return isinstance(field, str) and field.startswith(PREFIX)


def base_of(key: str) -> str:
    """Return the base of ``DeviceStatsMonitor.{hook}/{base}``."""
    return key.partition("/")[2] or key


def has_metric(base: str) -> bool:
    """Return whether a base is one of the curated, which have a metric of their own."""
    return base in _EXACT or any(pattern.fullmatch(base) for pattern, _ in _PATTERNS)


def is_cuda_stat(base: str) -> bool:
    """Return whether a base has the form of a key of ``torch.cuda.memory_stats``."""
    return _CUDA_STAT.fullmatch(base) is not None


def sample_of(base: str, value: object, device: RankDevice) -> tuple[str, Sample] | None:
    """Return the source and the number that a base means, or None when it means nothing or is impossible.

    Args:
        base: The base.
        value: Its value.
        device: The device of the process that emitted it.
    """
    form, found = _EXACT.get(base), {}
    if form is None:
        for pattern, candidate in _PATTERNS:
            if match := pattern.fullmatch(base):
                form, found = candidate, match.groupdict()
                break
    if form is None:
        return None
    plain = plausible(value)
    index, xla = device.index_of("cuda"), device.name if device.kind == "xla" else None
    found |= {"index": None if index is None else str(index), "xla": xla}
    labels = tuple(_fill(label, found) for label in form.labels)
    if plain is None or (form.metric.unit == "1" and plain * form.scale > 1):
        return None
    return form.source, Sample(form.metric, plain * form.scale, labels)


def other_cuda_stat(base: str, value: object, device: RankDevice) -> Sample | None:
    """Return the number of a key of ``torch.cuda.memory_stats`` that has no metric of its own."""
    plain, index = plausible(value), device.index_of("cuda")
    if plain is None:
        return None
    return Sample(catalog.CUDA_OTHER_STAT, plain, (None if index is None else str(index), base))


def _fill(label: str | None, found: dict[str, str | None]) -> str | None:
    if label is not None and label.startswith("{"):
        return found[label.strip("{}")]
    return label
