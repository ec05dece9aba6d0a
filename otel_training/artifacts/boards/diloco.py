"""DiLoCo: do the workers deliver, and does the outer step take what they deliver?"""

from __future__ import annotations

from otel_training import catalog
from otel_training.artifacts import legends, panels
from otel_training.artifacts.boards.headline import by_run, total
from otel_training.artifacts.legends import label
from otel_training.artifacts.panels import NO_DILOCO, Panel, Query, Text, events, lines, number
from otel_training.artifacts.queries import RANK_LABELS, RUN_LABELS, aggregate, equals
from otel_training.artifacts.variables import CHOSEN_RANKS as RANKS


def rows() -> list[tuple[str, list[Panel]]]:
    """Return the rows of the dashboard: title, and panels from left to right."""
    return [
        ("Is it healthy?", _summary()),
        ("Outer steps", [_outer_step(), _candidates(), _dispositions(), _outer_time()]),
        ("Workers", [_uploads(), _upload_time(), _stale(), _active(), _inner_steps()]),
    ]


def _share(metric: catalog.Metric, one: str) -> str:
    window = "$__range"
    part, whole = (
        by_run("sum", RANKS.happened(metric, *matchers, window=window)) for matchers in ((one,), ())
    )
    return f"{part} / {whole} or 0 * {whole}"


def _summary() -> list[Panel]:
    failed = _share(catalog.DELTA_UPLOADS, equals(catalog.DELTA_OUTCOME, "failed"))
    rejected = _share(catalog.OUTER_DELTAS, equals(catalog.DISPOSITION, "rejected"))
    current = by_run("max", RANKS.series(catalog.OUTER_STEP_CURRENT))
    flying = by_run("sum", RANKS.series(catalog.DELTA_ACTIVE_UPLOADS))
    taken = by_run("sum", RANKS.happened(catalog.OUTER_STEPS, window="$__range"))
    return [
        number(
            Text("Last outer step", "Number of the last outer step.", panels.COUNT, NO_DILOCO),
            Query(current, legends.RUN),
            decimals=0,
        ),
        number(
            Text("Outer steps taken", "In the time range.", panels.COUNT, NO_DILOCO),
            Query(f"round({taken})", legends.RUN, instant=True),
            decimals=0,
        ),
        number(
            Text(
                "Uploads that failed",
                "Part of all uploads in the time range, skipped ones included.",
                panels.FRACTION,
                NO_DILOCO,
            ),
            Query(failed, legends.RUN, instant=True),
            steps=((0.05, panels.WARN), (0.25, panels.BAD)),
            decimals=1,
        ),
        number(
            Text(
                "Deltas rejected",
                "Part of the deltas that the outer steps of the time range saw.",
                panels.FRACTION,
                NO_DILOCO,
            ),
            Query(rejected, legends.RUN, instant=True),
            steps=((0.05, panels.WARN), (0.2, panels.BAD)),
            decimals=1,
        ),
        number(
            Text(
                "Stale in this range",
                "Deltas of the time range whose baseline was no longer the newest.",
                panels.COUNT,
                NO_DILOCO,
            ),
            total(catalog.DELTA_STALE),
            decimals=0,
        ),
        number(
            Text(
                "In flight now",
                "Queued and not yet answered, over all chosen ranks.",
                panels.COUNT,
                NO_DILOCO,
            ),
            Query(flying, legends.RUN),
            decimals=0,
        ),
    ]


def _outer_step() -> Panel:
    return lines(
        Text(
            "Outer step",
            "Number of the last outer step. Flat: the master waits for deltas.",
            panels.COUNT,
            NO_DILOCO,
        ),
        Query(by_run("max", RANKS.series(catalog.OUTER_STEP_CURRENT)), legends.RUN),
        minimum=0.0,
    )


def _candidates() -> Panel:
    return lines(
        Text(
            "Deltas found",
            "Found by the last outer step; some trainers count those of earlier steps again.",
            panels.COUNT,
            NO_DILOCO,
        ),
        Query(by_run("max", RANKS.series(catalog.OUTER_CANDIDATES)), legends.RUN),
        minimum=0.0,
    )


def _dispositions() -> Panel:
    seen = aggregate("sum", RANKS.happened(catalog.OUTER_DELTAS), (*RUN_LABELS, catalog.DISPOSITION.label))
    return events(
        Text(
            "Deltas included and rejected", "By what the outer steps did with them.", panels.COUNT, NO_DILOCO
        ),
        Query(seen, f"{label(catalog.DISPOSITION)} {legends.RUN}"),
        span=12,
        height=8,
    )


def _outer_time() -> Panel:
    metric = catalog.OUTER_STEP_DURATION
    return lines(
        Text("Time of an outer step", legends.ESTIMATE, panels.SECONDS, NO_DILOCO),
        Query(RANKS.mean(metric, RUN_LABELS), f"{legends.EXACT} {legends.RUN}"),
        Query(RANKS.quantile(0.5, metric, RUN_LABELS), f"{legends.P50} {legends.RUN}"),
        Query(RANKS.quantile(0.99, metric, RUN_LABELS), f"{legends.P99} {legends.RUN}"),
        minimum=0.0,
    )


def _uploads() -> Panel:
    by = (catalog.DELTA_OUTCOME, catalog.SKIP_REASON)
    seen = aggregate(
        "sum", RANKS.happened(catalog.DELTA_UPLOADS), (*RUN_LABELS, *(attribute.label for attribute in by))
    )
    return events(
        Text(
            "Uploads by outcome",
            "Skipped with the reason. Skipping is how a slow network shows.",
            panels.COUNT,
            NO_DILOCO,
        ),
        Query(legends.joined(seen, *by), f"{{{{{legends.WHAT}}}}} {legends.RUN}"),
        span=12,
        height=8,
    )


def _upload_time() -> Panel:
    metric = catalog.DELTA_UPLOAD_DURATION
    return lines(
        Text(
            "Upload time",
            f"From queueing a delta to its answer. {legends.ESTIMATE}",
            panels.SECONDS,
            NO_DILOCO,
        ),
        Query(RANKS.mean(metric, RUN_LABELS), f"{legends.EXACT} {legends.RUN}"),
        Query(RANKS.quantile(0.5, metric, RUN_LABELS), f"{legends.P50} {legends.RUN}"),
        Query(RANKS.quantile(0.99, metric, RUN_LABELS), f"{legends.P99} {legends.RUN}"),
        minimum=0.0,
    )


def _stale() -> Panel:
    return events(
        Text(
            "Stale deltas",
            "By rank: their baseline was no longer the newest when they arrived.",
            panels.COUNT,
            NO_DILOCO,
        ),
        Query(aggregate("sum", RANKS.happened(catalog.DELTA_STALE), RANK_LABELS), legends.RANK),
        height=8,
    )


def _active() -> Panel:
    return lines(
        Text("Uploads in flight", "By rank.", panels.COUNT, NO_DILOCO),
        Query(aggregate("sum", RANKS.series(catalog.DELTA_ACTIVE_UPLOADS), RANK_LABELS), legends.RANK),
        minimum=0.0,
        span=8,
    )


def _inner_steps() -> Panel:
    return lines(
        Text("Inner step", "Last step by rank; workers need not keep in step.", panels.COUNT),
        Query(aggregate("max", RANKS.series(catalog.STEP_CURRENT), RANK_LABELS), legends.RANK),
        minimum=0.0,
        span=8,
    )
