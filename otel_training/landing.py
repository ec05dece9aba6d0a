"""The landing page: which run this is, what is true of it now, and where its numbers are."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import string
from dataclasses import dataclass
from html import escape
from importlib.resources import files

from otel_training import catalog
from otel_training.catalog import Metric
from otel_training.identity import Identity
from otel_training.state import Histogram, Labels, Snapshot
from otel_training.values import Number


def render_landing(snapshot: Snapshot, identity: Identity, *, address: str, now_unix_s: float) -> str:
    """Return the landing page as one HTML document that loads nothing else.

    Everything that comes from outside is escaped; what is not known is left out.

    Args:
        snapshot: The numbers of the run.
        identity: Who is speaking.
        address: Where the page is served, such as ``http://127.0.0.1:9464``.
        now_unix_s: The present as Unix time, for the age of things.
    """
    numbers = _Numbers(snapshot)
    status = _status(numbers)
    sections = (_progress(numbers, now_unix_s), _tiles(numbers, now_unix_s), _time_by_state(numbers))
    script = _resource("landing.js")
    return string.Template(_resource("landing.html")).substitute(
        title=escape(f"{status.text} - {identity.run_name}"),
        name=escape(identity.run_name),
        status=f'<span class="pill {status.tone}">{escape(status.text)}</span>',
        who=_who(numbers, identity),
        sections="\n".join(filter(None, sections))
        or _section("", '<p class="note">Waiting for the first event.</p>'),
        scrape_config=escape(_scrape_config(address)),
        script=script,
        script_sha256=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


class _Numbers:
    """Looks numbers up in a snapshot by metric."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def value(self, metric: Metric) -> Number | None:
        """Return the value of a metric without attributes, or None."""
        return self._snapshot.values.get((metric, ()))

    def by_labels(self, metric: Metric) -> dict[Labels, Number]:
        """Return the values of a metric with attributes."""
        values = self._snapshot.values
        return {labels: number for (owner, labels), number in values.items() if owner is metric}

    def mean(self, metric: Metric) -> float | None:
        """Return the mean of what a histogram has seen, or None when it has seen nothing."""
        histogram: Histogram | None = self._snapshot.histograms.get((metric, ()))
        count = sum(histogram.counts) if histogram else 0
        return sum(histogram.sums) / count if histogram and count else None

    @property
    def active(self) -> bool:
        """Whether the run is between its start and its end."""
        return self.value(catalog.RUN_ACTIVE) == 1


@dataclass(frozen=True)
class _Status:
    text: str
    tone: str = ""


def _status(numbers: _Numbers) -> _Status:
    if numbers.active:
        return _Status("training", "good")
    ends = list(numbers.by_labels(catalog.RUNS))
    if len(ends) == 1:
        outcome, error_type = ends[0]
        text = f"{outcome}: {error_type}" if error_type else f"{outcome}"
        return _Status(text, "bad" if outcome == "failed" else "")
    if ends or numbers.value(catalog.RUN_ACTIVE) is not None:
        return _Status("ended")
    return _Status("not started")


def _who(numbers: _Numbers, identity: Identity) -> str:
    facts = [
        ("run", identity.run_id),
        ("rank", f"{identity.rank} of {identity.world_size}"),
        ("host", identity.host),
        ("restarts", str(identity.attempt)),
    ]
    for precision, device, *_ in numbers.by_labels(catalog.RUN_INFO):
        facts += [("device", device or ""), ("precision", precision or "")]
    return "\n".join(f"<li>{name} <b>{escape(value)}</b></li>" for name, value in facts if value)


def _progress(numbers: _Numbers, now_unix_s: float) -> str:
    step = numbers.value(catalog.STEP_CURRENT)
    if step is None:
        return ""
    target = numbers.value(catalog.STEP_TARGET)
    right = bar = ""
    left = f'Step <span class="large">{_count(step)}</span>'
    if target:
        done = min(max(step / target, 0.0), 1.0)
        left += f' <span class="soft">of {_count(target)}</span>'
        right = f'<span class="large">{done:.0%}</span>'
        bar = f'<div class="bar"><i style="width:{done:.2%}"></i></div>'
    notes = []
    last_step_unix_s = numbers.value(catalog.STEP_LAST_TIME)
    if last_step_unix_s is not None:
        notes.append(f"last step {_duration(now_unix_s - last_step_unix_s)} ago")
    steps_per_s = numbers.value(catalog.THROUGHPUT_STEPS)
    if numbers.active and target and steps_per_s and target > step:
        to_go = _duration((target - step) / steps_per_s).split()[:2]
        notes.append(f"about {' '.join(to_go)} to go")
    below = f'<p class="note">{", ".join(notes)}</p>' if notes else ""
    return _section("", f'<div class="between"><span>{left}</span>{right}</div>{bar}{below}')


def _tiles(numbers: _Numbers, now_unix_s: float) -> str:
    tiles = [
        _tile(numbers, catalog.LOSS, "Loss", "{:.4g}"),
        *(
            _shown(f"Loss, {stage or 'validation'}", f"{loss:.4g}")
            for (stage,), loss in numbers.by_labels(catalog.VALIDATION_LOSS).items()
        ),
        _tile(numbers, catalog.LEARNING_RATE, "Learning rate", "{:.3g}"),
        _tile(numbers, catalog.GRADIENT_NORM, "Gradient norm", "{:.3g}"),
        _tile(numbers, catalog.THROUGHPUT_TOKENS, "Tokens per second", "{:,.0f}", "over the last minute"),
        _tile(numbers, catalog.TOKENS, "Tokens", "{:,.0f}", "by this process"),
    ]
    mean_step_s = numbers.mean(catalog.STEP_DURATION)
    if mean_step_s is not None:
        tiles.append(_shown("Step time", _duration(mean_step_s), "mean"))
    tiles.append(_tile(numbers, catalog.GOODPUT_UTILIZATION, "Goodput", "{:.0%}", "of the wall time"))
    checkpoint_unix_s = numbers.value(catalog.CHECKPOINT_LAST_TIME)
    if checkpoint_unix_s is not None:
        step = numbers.value(catalog.CHECKPOINT_LAST_STEP)
        note = "ago" if step is None else f"ago, at step {_count(step)}"
        tiles.append(_shown("Last checkpoint", _duration(now_unix_s - checkpoint_unix_s), note))
    nonfinite = sum(numbers.by_labels(catalog.NONFINITE_VALUES).values())
    if nonfinite:
        fields = sorted({field or "" for field, _ in numbers.by_labels(catalog.NONFINITE_VALUES)})
        tiles.append(_shown("NaN or infinite", _count(nonfinite), f"in {', '.join(fields)}", css="warn"))
    shown = "".join(tiles)
    return _section("", f'<dl class="tiles">{shown}</dl>') if shown else ""


def _tile(numbers: _Numbers, metric: Metric, name: str, form: str, note: str = "") -> str:
    value = numbers.value(metric)
    return "" if value is None else _shown(name, form.format(value), note)


def _shown(name: str, value: str, note: str = "", css: str = "") -> str:
    small = f"<small>{escape(note)}</small>" if note else ""
    return f'<div class="{css}"><dt>{escape(name)}</dt><dd>{escape(value)}{small}</dd></div>'


def _time_by_state(numbers: _Numbers) -> str:
    found = {
        str(state): spent_s for (state,), spent_s in numbers.by_labels(catalog.TIME).items() if spent_s > 0
    }
    states = [state for state in (*catalog.TIME_STATE.values, catalog.OTHER) if state in found]
    total_s = sum(found[state] for state in states)
    if not total_s:
        return ""
    colour = "background:var(--{}, var(--idle))".format
    bar = "".join(f'<i style="flex:{found[state] / total_s:.4f};{colour(state)}"></i>' for state in states)
    legend = "".join(
        f'<li><i style="{colour(state)}"></i>{state.replace("_", " ")} <b>{_duration(found[state])}</b>'
        f' <span class="soft">{found[state] / total_s:.1%}</span></li>'
        for state in states
    )
    return _section("Where the time went", f'<div class="bar">{bar}</div><ul class="legend">{legend}</ul>')


def _section(title: str, content: str) -> str:
    heading = f"<h2>{title}</h2>" if title else ""
    return f"<section>{heading}{content}</section>"


def _scrape_config(address: str) -> str:
    scheme, _, target = address.rpartition("://")
    lines = ["scrape_configs:", "  - job_name: training"]
    if scheme == "https":
        lines.append("    scheme: https")
    return "\n".join([*lines, "    static_configs:", f"      - targets: [{json.dumps(target)}]"])


def _count(number: Number) -> str:
    return f"{number:,.0f}"


def _duration(seconds: float) -> str:
    """Return a duration in the two units that say most, such as ``3 min 20 s``; below a second in ms."""
    if seconds < 1:
        return f"{max(seconds, 0.0) * 1000:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole_s = round(seconds)
    for unit_s, unit, part_s, part in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole_s >= unit_s:
            rest = whole_s % unit_s // part_s
            return f"{whole_s // unit_s} {unit}" + (f" {rest} {part}" if rest else "")
    return f"{whole_s} s"


@functools.cache
def _resource(name: str) -> str:
    return files("otel_training").joinpath(name).read_text(encoding="utf-8")
