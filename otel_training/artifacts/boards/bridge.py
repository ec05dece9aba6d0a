"""Bridge health: can what the other dashboards show be trusted?"""

from __future__ import annotations

from otel_training import catalog
from otel_training.artifacts import legends, panels
from otel_training.artifacts.boards.headline import total
from otel_training.artifacts.legends import label
from otel_training.artifacts.panels import NO_EVENTS, Panel, Query, Text, events, lines, number
from otel_training.artifacts.queries import RANK_LABELS, aggregate, equals
from otel_training.artifacts.variables import CHOSEN_RANKS as RANKS
from otel_training.catalog import Attribute, Metric, devices


def rows() -> list[tuple[str, list[Panel]]]:
    """Return the rows of the dashboard: title, and panels from left to right."""
    return [
        ("Is anything lost?", _summary()),
        ("Events", [_event_rate(), _outcomes(), _drops(), _hooks(), _custom()]),
        ("Device sources", [_read_time(), _read_failures()]),
    ]


def _summary() -> list[Panel]:
    none = ((1.0, panels.WARN),)
    lost = equals(catalog.DROP_REASON, "export")
    return [
        number(
            Text(
                "Dropped in this range",
                "In the time range, for any reason. Values that are no numbers are dropped by design.",
                panels.COUNT,
            ),
            total(catalog.BRIDGE_DROPS),
            steps=none,
            decimals=0,
            span=5,
        ),
        number(
            Text(
                "Lost in export",
                "Values and spans that could not be delivered over OTLP in the time range.",
                panels.COUNT,
            ),
            total(catalog.BRIDGE_DROPS, lost),
            steps=((1, panels.BAD),),
            decimals=0,
            span=5,
        ),
        number(
            Text(
                "Events failed",
                "Events of the time range that the bridge could not make sense of.",
                panels.COUNT,
            ),
            total(catalog.BRIDGE_EVENTS, equals(catalog.EVENT_OUTCOME, "failed")),
            steps=((1, panels.BAD),),
            decimals=0,
            span=5,
        ),
        number(
            Text("Device readings failed", "In the time range, over all sources.", panels.COUNT),
            total(devices.DEVICE_READ_FAILURES),
            steps=none,
            decimals=0,
            span=5,
        ),
        number(
            Text("Hooks failed", "Exceptions of the trainer's other hooks in the time range.", panels.COUNT),
            total(catalog.HOOK_FAILURES),
            steps=none,
            decimals=0,
        ),
    ]


def _counted(metric: Metric, by: Attribute) -> Query:
    seen = aggregate("sum", RANKS.happened(metric), (*RANK_LABELS, by.label))
    return Query(seen, f"{label(by)} {legends.RANK}")


def _event_rate() -> Panel:
    rate = aggregate("sum", RANKS.rate(catalog.BRIDGE_EVENTS), (catalog.EVENT_NAME.label,))
    return lines(
        Text("Events per second", "By name, over all chosen ranks.", panels.EVENTS_PER_SECOND),
        Query(rate, label(catalog.EVENT_NAME)),
        minimum=0.0,
    )


def _outcomes() -> Panel:
    by = (*RANK_LABELS, catalog.EVENT_OUTCOME.label)
    return lines(
        Text(
            "Events by outcome",
            "Handled, ignored (no event of the catalog), or failed, in a second.",
            panels.EVENTS_PER_SECOND,
        ),
        Query(
            aggregate("sum", RANKS.rate(catalog.BRIDGE_EVENTS), by),
            f"{label(catalog.EVENT_OUTCOME)} {legends.RANK}",
        ),
        minimum=0.0,
    )


def _drops() -> Panel:
    return events(
        Text(
            "Values dropped",
            "type: no number. cardinality: over a cap, told as `other`. queue: came faster than "
            "they left. export: the collector did not take them.",
            panels.COUNT,
            NO_EVENTS,
        ),
        _counted(catalog.BRIDGE_DROPS, catalog.DROP_REASON),
    )


def _hooks() -> Panel:
    return events(
        Text("Hooks that failed", "By name of the hook; training went on.", panels.COUNT, NO_EVENTS),
        _counted(catalog.HOOK_FAILURES, catalog.HOOK_NAME),
    )


def _custom() -> Panel:
    fields = aggregate("count", RANKS.series(catalog.CUSTOM), RANK_LABELS)
    return lines(
        Text(
            "Custom fields",
            f"Fields outside the catalog by rank, each a series; at {catalog.MAX_CUSTOM_FIELDS} "
            "further ones become `other`.",
            panels.COUNT,
            "The trainer sends no fields of its own",
        ),
        Query(fields, legends.RANK),
        minimum=0.0,
        span=8,
        height=7,
    )


def _read_time() -> Panel:
    by = (*RANK_LABELS, devices.DEVICE_SOURCE.label)
    return lines(
        Text(
            "Time of a reading",
            "Of each device source; readings run beside training, in a thread of their own.",
            panels.SECONDS,
            "No device source is on",
        ),
        Query(
            aggregate("max", RANKS.series(devices.DEVICE_READ_DURATION), by),
            f"{label(devices.DEVICE_SOURCE)} {legends.RANK}",
        ),
        minimum=0.0,
    )


def _read_failures() -> Panel:
    return events(
        Text(
            "Readings that failed",
            "By source. A source that keeps failing is asked less and less often.",
            panels.COUNT,
            NO_EVENTS,
        ),
        _counted(devices.DEVICE_READ_FAILURES, devices.DEVICE_SOURCE),
        span=12,
        height=8,
    )
