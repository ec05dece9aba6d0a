"""The numbers at the top of the overview, and queries that give one series for each run."""

from __future__ import annotations

from otel_training import catalog
from otel_training.artifacts import legends, panels
from otel_training.artifacts.panels import Panel, Query, Text, number
from otel_training.artifacts.queries import RUN_LABELS, aggregate, equals
from otel_training.artifacts.variables import CHOSEN_RANKS as RANKS
from otel_training.artifacts.variables import CHOSEN_RUNS as RUNS
from otel_training.catalog import Metric

RANGE = "$__range"
"""All of the time that the dashboard shows."""

SILENT_S = 300
"""A run without a step for so long is shown as such; validation and checkpoints mostly take less."""

SILENCE = ((SILENT_S, panels.WARN), (1800, panels.BAD))
"""Colours of the time without a step."""


def by_run(operator: str, expression: str) -> str:
    """Return one series for each run."""
    return aggregate(operator, expression, RUN_LABELS)


def of_run(operator: str, metric: Metric) -> Query:
    """Return the query of one series for each run."""
    return Query(by_run(operator, RANKS.series(metric)), legends.RUN)


def latest(operator: str, metric: Metric) -> Query:
    """Return the query of the value now, or of the last one of runs that are over.

    A run that goes on and has withdrawn a value, as it does when a loss is NaN, has none.
    """
    now, last = by_run(operator, RANKS.series(metric)), by_run(operator, RANKS.last(metric, window=RANGE))
    active = by_run("max", RUNS.series(catalog.RUN_ACTIVE))
    return Query(f"{now} or ({last} unless {active} == 1)", legends.RUN, instant=True)


def in_motion(expression: str) -> str:
    """Return series of runs that make steps: gauges stand still with a run and look as if it went on."""
    return f"{expression} unless {_silent()}"


def _silent() -> str:
    return f"time() - {by_run('max', RUNS.series(catalog.STEP_LAST_TIME))} > {SILENT_S}"


def age(metric: Metric) -> Query:
    """Return the time since a unix time that the run reported, until the run has said that it ended."""
    last = by_run("max", RUNS.last(metric, window=RANGE))
    ended = by_run("max", RUNS.last(catalog.RUN_ACTIVE, window=RANGE))
    return Query(f"time() - {last} unless {ended} == 0", legends.RUN, instant=True)


def total(metric: Metric, *matchers: str) -> Query:
    """Return how often something happened in the time range; 0 for runs to which it did not."""
    seen = by_run("sum", RANKS.happened(metric, *matchers, window=RANGE))
    none = by_run("max", RANKS.last(catalog.RUN_ACTIVE, window=RANGE))
    return Query(f"round({seen}) or 0 * {none}", legends.RUN, instant=True)


def _state() -> str:
    """1 running, 0 ended, 2 gone without a word; 3, 4 and 5 the outcomes that were reported; 6 no steps."""
    active = by_run("max", RUNS.series(catalog.RUN_ACTIVE))
    known = [f"6 * ({active} == 1 and {_silent()})", f"{active} == 1"]
    for value, outcome in ((3, "completed"), (4, "failed"), (5, "interrupted")):
        seen = by_run("max", RUNS.last(catalog.RUNS, equals(catalog.OUTCOME, outcome), window=RANGE))
        known.append(f"{value} + 0 * {seen}")
    gone = by_run("max", RUNS.last(catalog.RUN_ACTIVE, window=RANGE))
    return " or ".join([*known, active, f"2 * ({gone} == 1)", gone])


def health() -> list[Panel]:
    """Return the first row: does it run, does it move, how far is it, and is anything broken?"""
    step, target = (
        by_run("max", RUNS.series(metric)) for metric in (catalog.STEP_CURRENT, catalog.STEP_TARGET)
    )
    speed = in_motion(by_run("max", RUNS.series(catalog.THROUGHPUT_STEPS)))
    return [
        number(
            Text(
                "Run",
                "What the run does now, or how it ended. No steps: it runs, but has made none for "
                f"{SILENT_S // 60} minutes. Silent: it was running and is no longer seen.",
                panels.PLAIN,
            ),
            Query(_state(), legends.RUN, instant=True),
            values={
                0: ("Ended", "text"),
                1: ("Running", "green"),
                2: ("Silent", panels.WARN),
                3: ("Completed", "blue"),
                4: ("Failed", panels.BAD),
                5: ("Interrupted", panels.WARN),
                6: ("No steps", panels.BAD),
            },
            span=3,
        ),
        number(
            Text("Step now", "Last optimizer step of the run.", panels.DIGITS),
            latest("max", catalog.STEP_CURRENT),
            decimals=0,
            span=3,
        ),
        number(
            Text("Progress", "Last step by target step.", panels.FRACTION),
            Query(f"{step} / {target}", legends.RUN),
            decimals=1,
            span=3,
        ),
        number(
            Text(
                "Time left",
                "Steps to go by the steps per second of the last minute.",
                panels.SECONDS,
                "No steps now",
            ),
            Query(f"clamp_min({target} - {step}, 0) / ({speed})", legends.RUN, instant=True),
            decimals=0,
            span=3,
        ),
        number(
            Text(
                "Since last step",
                "Time since the last optimizer step of any rank. Far above the step time: it hangs.",
                panels.SECONDS,
                "No step yet, or the run has ended",
            ),
            age(catalog.STEP_LAST_TIME),
            steps=SILENCE,
            span=3,
        ),
        number(
            Text(
                "Checkpoint age",
                "Time since the last checkpoint: what a crash now would cost.",
                panels.SECONDS,
                "No checkpoint yet, or the run has ended",
            ),
            age(catalog.CHECKPOINT_LAST_TIME),
            steps=((3600, panels.WARN), (21600, panels.BAD)),
            span=3,
        ),
        number(
            Text(
                "NaN or infinite",
                "Non-finite values in the time range, such as a loss, over all ranks and fields.",
                panels.DIGITS,
            ),
            total(catalog.NONFINITE_VALUES),
            steps=((1, panels.BAD),),
            decimals=0,
            span=3,
        ),
        number(
            Text("Restarts", "Restarts of the run before the present attempt.", panels.COUNT),
            of_run("max", catalog.RESTARTS),
            steps=((1, panels.WARN),),
            decimals=0,
            span=3,
        ),
    ]


def figures() -> list[Panel]:
    """Return the second row: how well it learns and how fast."""
    mean = RANKS.mean(catalog.STEP_DURATION, RUN_LABELS)
    return [
        number(
            Text(
                "Loss now",
                "Training loss last reported, mean over ranks.",
                panels.PLAIN,
                "None reported, or not finite",
            ),
            latest("avg", catalog.LOSS),
            decimals=3,
            span=5,
        ),
        number(
            Text(
                "Tokens per second now",
                "Of all chosen ranks together.",
                panels.COUNT,
                "The trainer reports no tokens",
            ),
            Query(by_run("sum", RANKS.rate(catalog.TOKENS)), legends.RUN),
            span=5,
        ),
        number(
            Text(
                "Step time now",
                "Mean wall time of a step, validation and checkpoints left out.",
                panels.SECONDS,
                "No steps now",
            ),
            # Without steps, 0 / 0 is not a number, and no number is >= 0.
            Query(f"{mean} >= 0", legends.RUN, instant=True),
            span=5,
        ),
        number(
            Text(
                "Goodput",
                "Part of the wall time since the first attempt that went into steps which were kept.",
                panels.FRACTION,
            ),
            of_run("avg", catalog.GOODPUT_UTILIZATION),
            decimals=1,
            span=5,
        ),
        number(
            Text(
                "Model FLOPs utilization",
                "Useful arithmetic by the peak of the devices (MFU), mean over ranks.",
                panels.FRACTION,
                "No steps now, or peak not configured",
            ),
            mfu(instant=True),
            decimals=1,
        ),
    ]


def mfu(legend: str = legends.RUN, *, instant: bool = False) -> Query:
    """Return the query of the MFU of runs that make steps."""
    return Query(in_motion(by_run("avg", RANKS.series(catalog.FLOPS_UTILIZATION))), legend, instant)
