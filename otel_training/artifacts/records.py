"""Recording rules: what the alerts, long time ranges and a fleet's overview ask for again and again.

Named ``level:metric:operation``. The dashboards do without, so that they work before the rules are loaded.
"""

from __future__ import annotations

from dataclasses import dataclass

from otel_training import catalog
from otel_training.artifacts.queries import (
    INSTANCE,
    RANK_LABELS,
    RUN_LABELS,
    Queries,
    aggregate,
    any_of,
    equals,
)

RULES = Queries(window="15m")
"""Rules look at all runs; a quarter of an hour has some steps also of runs whose step takes minutes."""


@dataclass(frozen=True)
class Record:
    """A recording rule: the name of the series and what it is."""

    name: str
    expression: str

    def __str__(self) -> str:
        return self.name


def _lifetime_mean(metric: catalog.Metric) -> str:
    parts = [aggregate("sum", RULES.series(metric, part=part), RUN_LABELS) for part in ("_sum", "_count")]
    return " / ".join(parts)


ACTIVE = Record("run:training_run_active:max", aggregate("max", RULES.series(catalog.RUN_ACTIVE), RUN_LABELS))
STEP_MEAN = Record(
    "run:training_step_duration_seconds:mean",
    _lifetime_mean(catalog.STEP_DURATION),
)
"""Mean step since the processes started: it stays when steps stop coming."""

CHECKPOINT_MEAN = Record(
    "run:training_checkpoint_duration_seconds:mean", _lifetime_mean(catalog.CHECKPOINT_DURATION)
)
STEP_MEAN_15M = Record(
    "rank:training_step_duration_seconds:mean15m", RULES.mean(catalog.STEP_DURATION, RANK_LABELS)
)
STEP_P50_15M = Record(
    "run:training_step_duration_seconds:p50_15m", RULES.quantile(0.5, catalog.STEP_DURATION, RUN_LABELS)
)
STEP_P99_15M = Record(
    "run:training_step_duration_seconds:p99_15m", RULES.quantile(0.99, catalog.STEP_DURATION, RUN_LABELS)
)


def _state_share(by: tuple[str, ...], *matchers: str) -> str:
    part = aggregate("sum", RULES.rate(catalog.TIME, *matchers), by)
    whole = aggregate("sum", RULES.rate(catalog.TIME), by)
    return f"{part} / {whole}"


def _validating() -> str:
    begun, ended = (
        aggregate("max", RULES.series(catalog.BRIDGE_EVENTS, equals(catalog.EVENT_NAME, event)), RUN_LABELS)
        for event in ("validation_start", "validation_end")
    )
    # The second is absent until the first validation has ended.
    return f"{begun} unless {ended} >= {begun}"


VALIDATING = Record("run:training_validation:begun", _validating())
"""There only while a validation is under way: how many have begun."""


def _wall() -> str:
    return aggregate(
        "max", aggregate("sum", RULES.series(catalog.TIME), (*RANK_LABELS, INSTANCE)), RUN_LABELS
    )


WALL_TIME = Record("run:training_time_seconds:max", _wall())
"""Wall time of the run's processes up to their last event."""


def _work() -> str:
    productive = aggregate(
        "sum", RULES.rate(catalog.TIME, any_of(catalog.TIME_STATE, "step", "data_wait")), RANK_LABELS
    )
    done = " or ".join(
        aggregate("sum", RULES.rate(metric), RANK_LABELS)
        for metric in (catalog.TOKENS, catalog.SAMPLES, catalog.STEPS)
    )
    return aggregate("sum", f"({done}) / {productive}", RUN_LABELS)


WORK_15M = Record("run:training_work:rate15m", _work())
"""Tokens, else samples, else steps of all ranks by second in steps and data waits: neither validation nor a
checkpoint nor a step longer than the window looks like a slow-down."""

DATA_WAIT_15M = Record(
    "rank:training_data_wait:ratio15m", _state_share(RANK_LABELS, equals(catalog.TIME_STATE, "data_wait"))
)
TIME_BY_STATE_15M = Record(
    "run:training_time:ratio15m",
    f"{aggregate('sum', RULES.rate(catalog.TIME), (*RUN_LABELS, catalog.TIME_STATE.label))}"
    f" / on ({', '.join(RUN_LABELS)}) group_left ()"
    f" {aggregate('sum', RULES.rate(catalog.TIME), RUN_LABELS)}",
)
LOSS = Record("run:training_loss:avg", aggregate("avg", RULES.series(catalog.LOSS), RUN_LABELS))
GOODPUT = Record(
    "run:training_goodput_utilization:avg",
    aggregate("avg", RULES.series(catalog.GOODPUT_UTILIZATION), RUN_LABELS),
)
RANKS_REPORTING = Record(
    "run:training_ranks:reporting",
    aggregate("count", aggregate("max", RULES.series(catalog.RUN_ACTIVE), RANK_LABELS), RUN_LABELS),
)
"""Ranks whose page or stream is there, ended ones included; each once, whatever roads it takes."""

RECORDS: tuple[Record, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Record))
"""All recording rules, in the order of this file."""
