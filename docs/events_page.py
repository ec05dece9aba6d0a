"""Write docs/events.md: every event with its payload, its metrics and spans, and the time it accounts for.

``make docs`` runs it; a test holds that docs/events.md is what it would write. Payloads come from
``trainer/events.py``, metrics and spans from the catalog of ``otel_training``, and what becomes of the time
is asked of the recorder itself.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from otel_training import catalog  # noqa: E402 - found by the line above, also when nothing is installed
from otel_training.catalog.spans import SPANS  # noqa: E402
from otel_training.clock import Moment  # noqa: E402
from otel_training.identity import Identity  # noqa: E402
from otel_training.recorder import Recorder  # noqa: E402
from otel_training.state import State  # noqa: E402
from trainer.events import EVENTS, LOGGER_FIELDS, Event, Field  # noqa: E402

PAGE = ROOT / "docs" / "events.md"

INTRODUCTION = """\
# Events

<!-- Written by docs/events_page.py (make docs) from trainer/events.py and the catalog; do not edit. -->

A trainer tells what happens as events: `on_event(event, payload)`, a name and a dict. Any trainer that
makes this call gets the metrics and spans below. Fields marked *optional* may be missing; other trainers
may leave out more, and a value may be `None`. Unknown events are counted, and numbers in unknown fields
reach `training.custom`.

The first 14 events are shared with other trainers; the rest, marked *ours*, is this project's.
"""

DURATIONS_S = {"data_wait_s": 1.0, "step_s": 2.0, "duration_s": 4.0}
"""Fields with which an event says how long something took; the values add up to nothing twice."""

INTERVAL_S = 100.0

TIME = """\
## Which event accounts for which time

`training.time` splits the wall time of the training thread into states that do not overlap and add up to
it. Each event accounts for the time since the event before: first what its own durations say, never more
than has passed, then the rest. A `train_step` that stands for several steps tells the durations of its last
one only: then all but the data wait is booked as step. Events that are not in this table leave the clock
alone; those of DiLoCo's threads are among them.

| event | its durations are booked as | the rest, before training starts | the rest, in training |
| --- | --- | --- | --- |
"""

GOODPUT = """\

`training.goodput.utilization` is (`prior_kept_s` + step time up to the last checkpoint + step time since
then) / (`prior_elapsed_s` + time of this process). A `checkpoint` without an error, and a `train_end` that
is `completed`, turn the step time since the one before into kept time; `train_end` with the outcome
`failed` drops it, and so does a `train_start` that comes later. The trainer owns both prior figures: it
keeps them in `run.json` and in each checkpoint and sends them in `train_start`. What a killed attempt did
after its last checkpoint is known to within 5 seconds.

`training.flops.utilization` is `training.throughput.tokens` x `flops_per_token` / `peak_flops_per_s`, both
from `train_start`: the model knows the first (6 N + 12 layers width context, from the PaLM paper, appendix
B), and the configuration the second (`run.peak_flops_per_s`).
"""


def page() -> str:
    """Return the page as it should be today."""
    parts = [INTRODUCTION, overview(), "## Added to every event\n\n" + fields_table(LOGGER_FIELDS.values())]
    parts += [section(event) for event in EVENTS.values()]
    return "\n".join([*parts, TIME + "".join(time_rows()) + GOODPUT])


def overview() -> str:
    """Return the table of all events."""
    rows = ["| event | producer | when |\n| --- | --- | --- |\n"]
    for event in EVENTS.values():
        ours = "" if event.in_catalog else " (ours)"
        rows.append(f"| [{event.name}](#{event.name}){ours} | {event.producer} | {event.brief} |\n")
    return "".join(rows)


def section(event: Event) -> str:
    """Return what there is to know about one event."""
    lines = [
        f"## {event.name}\n",
        f"{event.brief}. Producer: {event.producer}.\n",
        fields_table(event.fields.values()),
    ]
    if event.open_keys:
        lines.append(f"Further keys: `{event.open_keys}`.\n")
    metrics = [metric.name for metric in catalog.METRICS if event.name in metric.events]
    spans = [span.name for span in SPANS if event.name in span.events]
    lines.append(f"Metrics: {listed(metrics)}\n")
    lines.append(f"Spans: {listed(spans)}\n")
    return "\n".join(lines)


def fields_table(fields: Iterable[Field]) -> str:
    """Return a payload as a table."""
    rows = ["| field | type | unit | meaning |\n| --- | --- | --- | --- |\n"]
    for field in fields:
        values = f": {', '.join(f'`{value}`' for value in field.values)}" if field.values else ""
        alias = f"; also `{field.alias}`" if field.alias else ""
        optional = "" if field.required else " *(optional)*"
        unit = f"`{field.unit}`" if field.unit else ""
        rows.append(f"| `{field.name}`{optional} | {field.type} | {unit} | {field.brief}{values}{alias} |\n")
    return "".join(rows)


def listed(names: list[str]) -> str:
    """Return names as a line of text."""
    return ", ".join(f"`{name}`" for name in names) + "." if names else "none of its own."


def time_rows() -> Iterator[str]:
    """Yield a row for each event that accounts for time."""
    for event in EVENTS.values():
        durations_s = {name: value for name, value in DURATIONS_S.items() if name in event.fields}
        before, during = (
            booked(event.name, durations_s, started=False),
            booked(event.name, durations_s, started=True),
        )
        if not during:
            continue
        fields = {seconds: name for name, seconds in durations_s.items()}
        claims = [f"`{fields[s]}` as {state}" for state, s in during.items() if s in fields]
        yield f"| `{event.name}` | {', '.join(claims)} | {rest(before, fields)} | {rest(during, fields)} |\n"


def rest(times_s: dict[str, float], claimed: dict[float, str]) -> str:
    """Return the state that the time was booked as which no duration claims."""
    return ", ".join(state for state, seconds in times_s.items() if seconds not in claimed)


def booked(event: str, durations_s: dict[str, float], *, started: bool) -> dict[str, float]:
    """Return the seconds by state that the recorder books for an event, 100 s after the one before."""
    state = State()
    recorder = Recorder(state, Identity(run_id="docs", run_name="docs"), Moment(0.0, 0.0))
    if started:
        recorder.record("train_start", {"start_step": 0}, Moment(0.0, 0.0))
    recorder.record(event, {"step": 1, **durations_s}, Moment(INTERVAL_S, INTERVAL_S))
    return {str(labels[0]): float(seconds) for labels, seconds in state.values_of(catalog.TIME).items()}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
