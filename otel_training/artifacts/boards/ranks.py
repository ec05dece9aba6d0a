"""Ranks and stragglers: who is behind, who waits, and since when?"""

from __future__ import annotations

from otel_training import catalog
from otel_training.artifacts import legends, panels
from otel_training.artifacts.boards import headline
from otel_training.artifacts.boards.headline import by_run
from otel_training.artifacts.panels import Panel, Query, Text, lines, number, ranking
from otel_training.artifacts.queries import RANK_LABELS, RUN_LABELS, aggregate, equals
from otel_training.artifacts.variables import CHOSEN_RANKS as RANKS
from otel_training.artifacts.variables import CHOSEN_RUNS as RUNS

MOST = 20
"""Bars in a ranking; with a thousand ranks, the rest would push the worst off the screen."""

WAITS = ((0.05, panels.WARN), (0.2, panels.BAD))
"""From which share of its time on a rank's wait for data is worth a look, and from which it is bad."""

ASYNCHRONOUS_ONLY = (
    "For workers that do not wait for each other (DiLoCo). Ranks that train together (DDP, FSDP) all take as "
    "long as the slowest: look at the wait for data and at checkpoints instead."
)


def rows() -> list[tuple[str, list[Panel]]]:
    """Return the rows of the dashboard: title, and panels from left to right."""
    return [
        ("Are all there?", _summary()),
        ("Who is behind?", [_behind(), _silent(), _waiting()]),
        ("Since when?", [_data_wait(), _data_wait_share(), _checkpoint_time(), _last_step()]),
        ("Asynchronous workers", [_step_time(), _tokens(), _step()]),
    ]


def _by_rank(operator: str, expression: str) -> str:
    return aggregate(operator, expression, RANK_LABELS)


def _steps_behind() -> str:
    first = by_run("max", RUNS.series(catalog.STEP_CURRENT))
    own = _by_rank("max", RANKS.series(catalog.STEP_CURRENT))
    return f"{first} - on ({', '.join(RUN_LABELS)}) group_right () {own}"


def _share_of_wait() -> str:
    wait = _by_rank("sum", RANKS.rate(catalog.TIME, equals(catalog.TIME_STATE, "data_wait")))
    return f"{wait} / {_by_rank('sum', RANKS.rate(catalog.TIME))}"


def _summary() -> list[Panel]:
    reporting = by_run("count", _by_rank("max", f"{RUNS.series(catalog.RUN_ACTIVE)} == 1"))
    ranks = by_run("max", RUNS.series(catalog.RUN_RANKS))
    return [
        number(
            Text(
                "Ranks missing",
                "Ranks of the run that do not report. They died, hang, or are not scraped.",
                panels.COUNT,
                "No run is active",
            ),
            Query(f"clamp_min({ranks} - {reporting}, 0)", legends.RUN),
            steps=((1, panels.BAD),),
            span=6,
        ),
        number(
            Text("Ranks training", "Ranks that report and have not ended.", panels.COUNT, "No run is active"),
            Query(reporting, legends.RUN),
            span=6,
        ),
        number(
            Text(
                "Largest lag",
                "Steps between the first rank and the last. Ranks are scraped at different moments: "
                "a lag of one scrape interval is none.",
                panels.COUNT,
            ),
            Query(by_run("max", _steps_behind()), legends.RUN),
            span=6,
        ),
        number(
            Text(
                "Longest wait for data",
                "Part of its time that the rank which waits most waits for data.",
                panels.FRACTION,
            ),
            Query(by_run("max", _share_of_wait()), legends.RUN),
            steps=WAITS,
            decimals=1,
            span=6,
        ),
    ]


def _behind() -> Panel:
    return ranking(
        Text(
            "Steps behind the first",
            f"The {MOST} ranks that are furthest behind, as last scraped.",
            panels.COUNT,
        ),
        Query(f"topk({MOST}, {_steps_behind()})", legends.RANK, instant=True),
    )


def _silent() -> Panel:
    since = f"time() - {_by_rank('max', RANKS.series(catalog.STEP_LAST_TIME))}"
    return ranking(
        Text(
            "Silent for",
            f"The {MOST} ranks that have been silent longest. In a hang, the rank that "
            "stopped first is the one to look at.",
            panels.SECONDS,
            "No rank reports now",
        ),
        Query(f"topk({MOST}, {since})", legends.RANK, instant=True),
        steps=headline.SILENCE,
        maximum=headline.SILENT_S,
    )


def _waiting() -> Panel:
    return ranking(
        Text(
            "Waits most for data",
            f"The {MOST} ranks that wait most.",
            panels.FRACTION,
            "No rank reports now",
        ),
        Query(f"topk({MOST}, {_share_of_wait()})", legends.RANK, instant=True),
        steps=WAITS,
        maximum=1.0,
    )


def _data_wait() -> Panel:
    return lines(
        Text(
            "Wait for data in a step",
            "Mean by rank. The one above the others has the slow loader or disk.",
            panels.SECONDS,
        ),
        Query(RANKS.mean(catalog.DATA_WAIT_DURATION, RANK_LABELS), legends.RANK),
        minimum=0.0,
    )


def _data_wait_share() -> Panel:
    return lines(
        Text("Share of time waiting for data", "By rank.", panels.FRACTION),
        Query(_share_of_wait(), legends.RANK),
        minimum=0.0,
    )


def _checkpoint_time() -> Panel:
    return lines(
        Text(
            "Checkpoint time",
            "Mean by rank. The others wait for the slowest.",
            panels.SECONDS,
            "No checkpoint in this time range",
        ),
        Query(RANKS.mean_of_rare(catalog.CHECKPOINT_DURATION, RANK_LABELS), legends.RANK),
        minimum=0.0,
        dots=True,
    )


def _last_step() -> Panel:
    return lines(
        Text("Time since the last step", "By rank. It climbs where training hangs.", panels.SECONDS),
        Query(f"time() - {_by_rank('max', RANKS.series(catalog.STEP_LAST_TIME))}", legends.RANK),
        minimum=0.0,
    )


def _step_time() -> Panel:
    return lines(
        Text("Step time (asynchronous workers only)", f"Mean by rank. {ASYNCHRONOUS_ONLY}", panels.SECONDS),
        Query(RANKS.mean(catalog.STEP_DURATION, RANK_LABELS), legends.RANK),
        minimum=0.0,
        span=8,
    )


def _tokens() -> Panel:
    return lines(
        Text(
            "Tokens per second (asynchronous workers only)",
            f"By rank. {ASYNCHRONOUS_ONLY}",
            panels.COUNT,
            "The trainer reports no tokens",
        ),
        Query(_by_rank("sum", RANKS.rate(catalog.TOKENS)), legends.RANK),
        minimum=0.0,
        span=8,
    )


def _step() -> Panel:
    return lines(
        Text("Step", "Last step by rank.", panels.COUNT),
        Query(_by_rank("max", RANKS.series(catalog.STEP_CURRENT)), legends.RANK),
        minimum=0.0,
        span=8,
    )
