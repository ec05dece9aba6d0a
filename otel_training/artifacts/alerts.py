"""The alert rules: what is wrong, how bad it is, and in which words a person is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from otel_training import catalog
from otel_training.artifacts import records
from otel_training.artifacts.queries import INSTANCE, RANK_LABELS, RUN_LABELS, aggregate, any_of, equals
from otel_training.artifacts.records import RULES
from otel_training.artifacts.thresholds import Thresholds
from otel_training.catalog import devices

Severity = Literal["critical", "warning"]
"""``critical`` calls somebody now: the run loses its time. ``warning`` can wait for the morning."""

ON_RUN = f"on ({', '.join(RUN_LABELS)})"
RUN = f"{{{{ $labels.{catalog.RUN_NAME.label} }}}} ({{{{ $labels.{catalog.RUN_ID.label} }}}})"
RANK = f"rank {{{{ $labels.{catalog.RANK.label} }}}} of {RUN}"
DEVICE_LABELS = (*RANK_LABELS, devices.DEVICE_INDEX.label)
DEVICE = f"cuda:{{{{ $labels.{devices.DEVICE_INDEX.label} }}}} of {RANK}"
DURATION, PERCENT = "{{ $value | humanizeDuration }}", "{{ $value | humanizePercentage }}"
NUMBER = "{{ $value | humanize }}"


@dataclass(frozen=True)
class Alert:
    """An alert rule.

    Args:
        name: Name of the alert and of its heading in ``docs/runbook.md``.
        severity: Whether it calls somebody now.
        expression: PromQL that has a value while something is wrong.
        hold_s: How long it must be wrong before anybody is told.
        summary: What is wrong with what; Prometheus fills in labels and value.
        description: What it means and where to look first.
    """

    name: str
    severity: Severity
    expression: str
    hold_s: float
    summary: str
    description: str


def alerts(limits: Thresholds | None = None) -> tuple[Alert, ...]:
    """Return all alert rules, under the usual thresholds unless others are given."""
    return tuple(make(limits or Thresholds()) for make in ALERTS)


def _by_run(operator: str, expression: str) -> str:
    return aggregate(operator, expression, RUN_LABELS)


def _by_rank(operator: str, expression: str) -> str:
    return aggregate(operator, expression, RANK_LABELS)


ACTIVE = f"{records.ACTIVE} == 1"
AT_WORK = f"and {ON_RUN} {ACTIVE}"


def _minutes(seconds: float) -> str:
    return f"{seconds:g}s" if seconds % 60 else f"{seconds / 60:g}m"


def _active_for(seconds: float, without: catalog.Metric) -> str:
    """A run was at work so long ago and is still, but has had no sample of a metric since."""
    seen = _by_run("max", RULES.last(without, window=_minutes(seconds)))
    return f"{seconds:g} * ({records.ACTIVE} offset {_minutes(seconds)} == 1 unless {seen})"


def training_stalled(limits: Thresholds) -> Alert:
    """No step for a multiple of the usual step time, outside of checkpoints and validations."""
    since = f"(time() - {_by_run('max', RULES.series(catalog.STEP_LAST_TIME))})"
    usual = f"clamp_min({limits.stalled_steps_ratio:g} * {records.STEP_MEAN}, {limits.stalled_floor_s:g})"
    allowed = (
        f"({usual} + ({limits.stalled_checkpoints_ratio:g} * {records.CHECKPOINT_MEAN}"
        f" or 0 * {records.STEP_MEAN}))"
    )
    return Alert(
        "TrainingStalled", "critical",
        f"(\n  {since} > {allowed}\n"
        f"  unless ({since} < {limits.stalled_validation_s:g} and {records.VALIDATING})\n"
        f"  or\n  {_active_for(limits.stalled_start_s, catalog.STEP_LAST_TIME)}\n)\n"
        f"{AT_WORK}",
        limits.stalled_hold_s,
        f"{RUN} has made no step for {DURATION}",
        "The process is alive and answers, but training stands still. A hung collective, a data loader or a "
        "file system are the usual causes.",
    )  # fmt: skip


def nonfinite_loss(limits: Thresholds) -> Alert:
    """NaN or infinity in a loss, or in the gradient norm of most steps."""
    window = _minutes(limits.nonfinite_window_s)

    def seen(pattern: str) -> str:
        return _by_run(
            "sum",
            RULES.happened(catalog.NONFINITE_VALUES, f'{catalog.FIELD.label}=~"{pattern}"', window=window),
        )

    steps = _by_run("sum", RULES.happened(catalog.STEPS, window=window))
    return Alert(
        "NonFiniteLoss", "critical",
        f"{seen('.*loss.*')} > 0\nor\n"
        f"{seen('.*grad.*norm.*')} > {limits.nonfinite_gradient_ratio:g} * {steps}",
        0.0,
        f"The loss or the gradients of {RUN} are NaN or infinite",
        f"{NUMBER} values in {window}. Training seldom recovers from this, and each further step is wasted.",
    )  # fmt: skip


def loss_diverging(limits: Thresholds) -> Alert:
    """The loss has risen well above what it was an hour ago."""
    now = f"avg_over_time({records.LOSS}[10m])"
    before = f"{records.LOSS}[1h] offset 10m"
    rise = f"{now} - avg_over_time({before})"
    return Alert(
        "LossDiverging", "critical",
        f"({rise}) > {limits.diverging_deviations:g} * stddev_over_time({before})\n"
        f"and ({rise}) > {limits.diverging_rise_ratio:g} * abs(avg_over_time({before}))\n"
        f"and count_over_time({before}) >= {limits.diverging_samples:g}\n"
        f"{AT_WORK}",
        limits.diverging_hold_s,
        f"The loss of {RUN} is rising",
        f"Its mean of 10 minutes is {NUMBER} above that of the hour before, more than its noise explains.",
    )  # fmt: skip


def throughput_dropped(limits: Thresholds) -> Alert:
    """Fewer tokens, samples or steps by second of training than usual."""
    usual = f"{records.WORK_15M}[6h]"
    return Alert(
        "ThroughputDropped", "warning",
        f"{records.WORK_15M} / quantile_over_time(0.5, {usual}) < {limits.throughput_ratio:g}\n"
        f"and count_over_time({usual}) >= {limits.throughput_samples:g}\n"
        f"{AT_WORK}",
        limits.throughput_hold_s,
        f"{RUN} trains at {PERCENT} of its usual speed",
        "Compared with the median of 6 hours, validation and checkpoints left out.",
    )  # fmt: skip


def checkpoint_too_old(limits: Thresholds) -> Alert:
    """No checkpoint for a multiple of the usual interval, or none at all for hours."""
    age = f"(time() - {_by_run('max', RULES.series(catalog.CHECKPOINT_LAST_TIME))})"
    # From what the process did up to its last checkpoint: the wait for the next one must not count as usual.
    saves = _by_run("max", aggregate("sum", RULES.series(catalog.CHECKPOINTS), (*RANK_LABELS, INSTANCE)))
    interval = f"clamp_min({records.WALL_TIME} - {age}, 0) / {saves}"
    return Alert(
        "CheckpointTooOld", "warning",
        f"(\n  {age} > clamp_min({limits.checkpoint_intervals_ratio:g} * {interval},"
        f" {limits.checkpoint_floor_s:g})\n"
        f"  or\n  {_active_for(limits.checkpoint_first_s, catalog.CHECKPOINT_LAST_TIME)}\n)\n"
        f"{AT_WORK}",
        limits.checkpoint_hold_s,
        f"{RUN} has saved no checkpoint for {DURATION}",
        "All that was trained since would be lost with the process.",
    )  # fmt: skip


def goodput_low(limits: Thresholds) -> Alert:
    """Little of the wall time goes into steps that are kept."""
    return Alert(
        "GoodputLow", "warning",
        f"{records.GOODPUT} < {limits.goodput_ratio:g}\n"
        f"and {records.WALL_TIME} > {limits.goodput_after_s:g}\n{AT_WORK}",
        limits.goodput_hold_s,
        f"Only {PERCENT} of the time of {RUN} goes into steps that are kept",
        "The rest went into starting, waiting, saving, validating or work lost to restarts.",
    )  # fmt: skip


def data_wait_high(limits: Thresholds) -> Alert:
    """A rank spends much of its time waiting for data, and the others wait for it."""
    return Alert(
        "DataWaitHigh", "warning",
        f"{_by_run('max', str(records.DATA_WAIT_15M))} > {limits.data_wait_ratio:g}\n{AT_WORK}",
        limits.data_wait_hold_s,
        f"{RUN} waits for data {PERCENT} of its time",
        "The figure is that of the rank that waits most; ranks that train together all wait for it.",
    )  # fmt: skip


def gpu_memory_near_limit(limits: Thresholds) -> Alert:
    """Live tensors nearly fill the GPU."""
    most = aggregate("max", f"max_over_time({RULES.series(devices.CUDA_ALLOCATED)}[10m])", DEVICE_LABELS)
    limit = aggregate("max", RULES.series(devices.CUDA_LIMIT), DEVICE_LABELS)
    return Alert(
        "GpuMemoryNearLimit", "warning",
        f"{most} / {limit} > {limits.memory_ratio:g}",
        limits.memory_hold_s,
        f"Tensors fill {PERCENT} of the memory of {DEVICE}",
        "A slightly larger batch or sequence will end the run with an out-of-memory error.",
    )  # fmt: skip


def allocator_retries_rising(limits: Thresholds) -> Alert:
    """The caching allocator runs out of memory and recovers, again and again."""
    retries = aggregate("sum", RULES.happened(devices.CUDA_RETRIES), DEVICE_LABELS)
    return Alert(
        "AllocatorRetriesRising", "warning",
        f"{retries} > {limits.retries:g}",
        0.0,
        f"The allocator of {DEVICE} emptied its cache {NUMBER} times in {RULES.window}",
        "Memory is short or in fragments; each retry stops the GPU, and an out-of-memory error may be next.",
    )  # fmt: skip


def out_of_memory(_limits: Thresholds) -> Alert:
    """An out-of-memory error, whether or not the run survived it."""
    raised = _by_rank("sum", RULES.happened(devices.CUDA_OOMS))
    ended = _by_rank(
        "sum", RULES.happened(catalog.RUNS, f'{catalog.ERROR_TYPE.label}=~".*OutOfMemory.*|MemoryError"')
    )
    return Alert(
        "OutOfMemory", "critical",
        f"{raised} > 0\nor\n{ended} > 0",
        0.0,
        f"{RANK} ran out of memory",
        f"{NUMBER} errors in {RULES.window}.",
    )  # fmt: skip


def straggler_rank(limits: Thresholds) -> Alert:
    """One rank waits, works or lags much more than the median of its run."""
    wait, step = records.DATA_WAIT_15M, records.STEP_MEAN_15M
    wait_median, step_median = (_by_run("quantile", f"0.5, {record}") for record in (wait, step))
    current = _by_rank("max", RULES.series(catalog.STEP_CURRENT))
    behind = f"({_by_run('max', RULES.series(catalog.STEP_CURRENT))} - {ON_RUN} group_right () {current})"
    return Alert(
        "StragglerRank", "warning",
        f"{wait} > {ON_RUN} group_left () ({wait_median} + {limits.straggler_wait_ratio:g})\n"
        f"or\n{step} > {ON_RUN} group_left () ({limits.straggler_step_ratio:g} * {step_median})\n"
        f"or\n{behind} * on ({', '.join(RANK_LABELS)}) {step} > {limits.straggler_behind_s:g}",
        limits.straggler_hold_s,
        f"{RANK} is slower than the others",
        "It waits for data, takes longer for a step, or lies behind. Ranks that train together wait for the "
        "slowest.",
    )  # fmt: skip


def ranks_missing(limits: Thresholds) -> Alert:
    """Fewer ranks report than the run has."""
    ranks = _by_run("max", RULES.series(catalog.RUN_RANKS))
    return Alert(
        "RanksMissing", "critical",
        f"{records.RANKS_REPORTING} < {ranks}\n{AT_WORK}",
        limits.ranks_hold_s,
        f"Only {{{{ $value }}}} ranks of {RUN} report",
        "The others have died, hang so hard that they do not answer, or are not scraped.",
    )  # fmt: skip


def delta_uploads_failing(limits: Thresholds) -> Alert:
    """Workers of DiLoCo cannot deliver."""
    failed = RULES.happened(catalog.DELTA_UPLOADS, equals(catalog.DELTA_OUTCOME, "failed"), window="30m")
    tried = RULES.happened(
        catalog.DELTA_UPLOADS, any_of(catalog.DELTA_OUTCOME, "uploaded", "failed"), window="30m"
    )
    return Alert(
        "DeltaUploadsFailing", "warning",
        f"{_by_run('sum', failed)} / {_by_run('sum', tried)} > {limits.uploads_failed_ratio:g}\n"
        f"and {_by_run('sum', failed)} >= {limits.uploads_failed:g}",
        0.0,
        f"{PERCENT} of the delta uploads of {RUN} fail",
        "Over 30 minutes and all workers. What does not arrive is not part of the outer step.",
    )  # fmt: skip


def deltas_rejected(limits: Thresholds) -> Alert:
    """The outer step of DiLoCo throws deltas away."""
    rejected = RULES.happened(catalog.OUTER_DELTAS, equals(catalog.DISPOSITION, "rejected"), window="1h")
    seen = RULES.happened(catalog.OUTER_DELTAS, window="1h")
    return Alert(
        "DeltasRejected", "warning",
        f"{_by_run('sum', rejected)} / {_by_run('sum', seen)} > {limits.deltas_rejected_ratio:g}\n"
        f"and {_by_run('sum', rejected)} >= {limits.deltas_rejected:g}",
        0.0,
        f"The outer steps of {RUN} reject {PERCENT} of the deltas",
        "Over an hour. The inner steps behind a rejected delta were for nothing.",
    )  # fmt: skip


def telemetry_dropping(_limits: Thresholds) -> Alert:
    """Telemetry loses values on its way, or cannot make sense of an event."""
    # Values of a type that is no number are dropped by design in many runs, and told once in the log.
    drops = RULES.happened(
        catalog.BRIDGE_DROPS, any_of(catalog.DROP_REASON, "queue", "export", "cardinality")
    )
    failed = RULES.happened(catalog.BRIDGE_EVENTS, equals(catalog.EVENT_OUTCOME, "failed"))
    return Alert(
        "TelemetryDropping", "warning",
        f"{_by_rank('sum', drops)} > 0\nor\n{_by_rank('sum', failed)} > 0",
        0.0,
        f"Telemetry of {RANK} is incomplete",
        f"{NUMBER} values or events lost in {RULES.window}. Training itself is not affected.",
    )  # fmt: skip


def training_failed(_limits: Thresholds) -> Alert:
    """A run ended with an error."""
    ended = RULES.happened(catalog.RUNS, equals(catalog.OUTCOME, "failed"))
    labels = (*RUN_LABELS, catalog.ERROR_TYPE.label)
    return Alert(
        "TrainingFailed", "critical",
        f"{aggregate('sum', ended, labels)} > 0",
        0.0,
        f"{RUN} failed with {{{{ $labels.{catalog.ERROR_TYPE.label} }}}}",
        f"{NUMBER} ranks ended so within {RULES.window}.",
    )  # fmt: skip


ALERTS: tuple[Callable[[Thresholds], Alert], ...] = (
    training_stalled,
    nonfinite_loss,
    loss_diverging,
    throughput_dropped,
    checkpoint_too_old,
    goodput_low,
    data_wait_high,
    gpu_memory_near_limit,
    allocator_retries_rising,
    out_of_memory,
    straggler_rank,
    ranks_missing,
    delta_uploads_failing,
    deltas_rejected,
    telemetry_dropping,
    training_failed,
)
"""The makers of all alert rules, in the order of the file and of the runbook."""
