"""Training overview: is the run healthy, how far is it, and what happened to it?"""

from __future__ import annotations

from otel_training import catalog
from otel_training.artifacts import legends, panels
from otel_training.artifacts.boards import headline
from otel_training.artifacts.boards.headline import by_run, of_run
from otel_training.artifacts.legends import label
from otel_training.artifacts.panels import Panel, Query, Text, areas, events, lines
from otel_training.artifacts.queries import RANK_LABELS, RUN_LABELS, aggregate
from otel_training.artifacts.variables import CHOSEN_RANKS as RANKS
from otel_training.artifacts.variables import CHOSEN_RUNS as RUNS
from otel_training.catalog import Metric

COLORS = dict(
    zip(
        catalog.TIME_STATE.values,
        ("green", "orange", "blue", "light-blue", "purple", "yellow", "light-purple", "text", "red"),
        strict=True,
    )
)
"""Colour of each state of the training thread: steps are green, and red is time that goes into nothing."""


def rows() -> list[tuple[str, list[Panel]]]:
    """Return the rows of the dashboard: title, and panels from left to right."""
    return [
        ("Is it healthy?", [*headline.health(), *headline.figures()]),
        ("Learning", [_loss(), _gradient_norm(), _learning_rate(), _progress()]),
        ("Speed", [_step_time(), _time_by_state(), _throughput(), _samples(), _efficiency()]),
        ("Checkpoints and incidents", [_checkpoint_time(), _checkpoint_size(), *_incidents()]),
    ]


def _loss() -> Panel:
    validation = aggregate("avg", RANKS.series(catalog.VALIDATION_LOSS), (*RUN_LABELS, catalog.STAGE.label))
    return lines(
        Text(
            "Loss",
            "Training loss (mean over ranks) and validation losses. A gap is a value that was not finite.",
            panels.PLAIN,
        ),
        Query(by_run("avg", RANKS.series(catalog.LOSS)), f"train {legends.RUN}"),
        Query(validation, f"{label(catalog.STAGE)} {legends.RUN}"),
    )


def _gradient_norm() -> Panel:
    return lines(
        Text(
            "Gradient norm",
            "Before clipping, largest of the ranks. Spikes come before a loss that diverges.",
            panels.PLAIN,
            "The trainer reports no gradient norm",
        ),
        of_run("max", catalog.GRADIENT_NORM),
    )


def _learning_rate() -> Panel:
    return lines(
        Text("Learning rate", "Of the last step.", panels.PLAIN),
        of_run("max", catalog.LEARNING_RATE),
        minimum=0.0,
    )


def _samples() -> Panel:
    samples, batches = (
        by_run("sum", RANKS.rate(metric)) for metric in (catalog.SAMPLES, catalog.MICRO_BATCHES)
    )
    return lines(
        Text(
            "Samples per second",
            "Samples and micro-batches of all chosen ranks together.",
            panels.COUNT,
            "The trainer reports no samples",
        ),
        Query(samples, f"samples {legends.RUN}"),
        Query(batches, f"micro-batches {legends.RUN}"),
        minimum=0.0,
        span=8,
    )


def _throughput() -> Panel:
    return lines(
        Text(
            "Tokens per second",
            "Of all chosen ranks together, validation and checkpoints included.",
            panels.COUNT,
            "The trainer reports no tokens",
        ),
        Query(by_run("sum", RANKS.rate(catalog.TOKENS)), legends.RUN),
        span=8,
        minimum=0.0,
    )


def _step_time() -> Panel:
    metric = catalog.STEP_DURATION
    return lines(
        Text(
            "Step time",
            "Wall time between steps, validation and checkpoints left out. " + legends.ESTIMATE,
            panels.SECONDS,
        ),
        Query(RANKS.mean(metric, RUN_LABELS), f"{legends.EXACT} {legends.RUN}"),
        Query(RANKS.quantile(0.5, metric, RUN_LABELS), f"{legends.P50} {legends.RUN}"),
        Query(RANKS.quantile(0.99, metric, RUN_LABELS), f"{legends.P99} {legends.RUN}"),
        minimum=0.0,
    )


def _time_by_state() -> Panel:
    part = aggregate("sum", RANKS.rate(catalog.TIME), (catalog.TIME_STATE.label,))
    return areas(
        Text(
            "Where the time goes",
            "Wall time of the training threads of all chosen ranks by what they did; the parts make 100 %.",
            panels.FRACTION,
        ),
        Query(f"{part} / scalar(sum({RANKS.rate(catalog.TIME)}))", label(catalog.TIME_STATE)),
        maximum=1.0,
        colors=COLORS,
    )


def _efficiency() -> Panel:
    return lines(
        Text(
            "Goodput and utilization",
            "Goodput: part of the time since the first attempt in steps that were kept. MFU: useful "
            "arithmetic by the peak, where both are configured.",
            panels.FRACTION,
        ),
        Query(by_run("avg", RANKS.series(catalog.GOODPUT_UTILIZATION)), f"goodput {legends.RUN}"),
        headline.mfu(f"MFU {legends.RUN}"),
        span=8,
        minimum=0.0,
        maximum=1.0,
    )


def _checkpoint_time() -> Panel:
    metric = catalog.CHECKPOINT_DURATION
    return lines(
        Text(
            "Checkpoint time",
            "Time to save a checkpoint: mean over ranks, and the rank that took longest.",
            panels.SECONDS,
            "No checkpoint in this time range",
        ),
        Query(RANKS.mean_of_rare(metric, RUN_LABELS), f"mean {legends.RUN}"),
        Query(by_run("max", RANKS.mean_of_rare(metric, RANK_LABELS)), f"slowest rank {legends.RUN}"),
        minimum=0.0,
        dots=True,
    )


def _checkpoint_size() -> Panel:
    return lines(
        Text(
            "Checkpoint size",
            "Size of the last checkpoint.",
            panels.BYTES,
            "No checkpoint in this time range",
        ),
        of_run("max", catalog.CHECKPOINT_SIZE),
        minimum=0.0,
    )


def _progress() -> Panel:
    target, saved = (catalog.STEP_TARGET, catalog.CHECKPOINT_LAST_STEP)
    return lines(
        Text(
            "Step",
            "Last step, step of the last checkpoint, and target. A fall is a resume from a checkpoint.",
            panels.COUNT,
        ),
        Query(by_run("max", RUNS.series(catalog.STEP_CURRENT)), f"step {legends.RUN}"),
        Query(by_run("max", RUNS.series(saved)), f"checkpoint {legends.RUN}"),
        Query(by_run("max", RUNS.series(target)), f"target {legends.RUN}"),
        minimum=0.0,
        dashed=("^target.*",),
    )


def _incidents() -> list[Panel]:
    def counted(metric: Metric, *by: catalog.Attribute) -> Query:
        labels = tuple(attribute.label for attribute in by)
        seen = aggregate("sum", RANKS.happened(metric), (*RUN_LABELS, *labels))
        return Query(legends.joined(seen, *by), f"{{{{{legends.WHAT}}}}} {legends.RUN}")

    return [
        events(
            Text(
                "NaN or infinite values",
                "By field and kind, over all ranks. They are counted and never sent.",
                panels.COUNT,
                panels.NO_EVENTS,
            ),
            counted(catalog.NONFINITE_VALUES, catalog.FIELD, catalog.NONFINITE_KIND),
        ),
        events(
            Text(
                "Steps skipped or done again",
                "Skipped by reason; done again after a resume. Of the rank that has most.",
                panels.COUNT,
                panels.NO_EVENTS,
            ),
            Query(
                aggregate(
                    "max", RANKS.happened(catalog.STEP_SKIPS), (*RUN_LABELS, catalog.SKIP_REASON.label)
                ),
                f"skipped: {label(catalog.SKIP_REASON)} {legends.RUN}",
            ),
            Query(by_run("max", RANKS.happened(catalog.STEP_REPLAYS)), f"done again {legends.RUN}"),
        ),
        events(
            Text(
                "Runs that ended",
                "By outcome and type of the error, one for each rank.",
                panels.COUNT,
                panels.NO_EVENTS,
            ),
            counted(catalog.RUNS, catalog.OUTCOME, catalog.ERROR_TYPE),
        ),
    ]
