"""The dashboards as the files that Grafana provisions."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, DashboardLinkType

from otel_training.artifacts import variables
from otel_training.artifacts.annotations import all_annotations
from otel_training.artifacts.boards import bridge, devices, diloco, overview, ranks
from otel_training.artifacts.panels import Panel

TAG = "otel-training"
Rows = Callable[[], list[tuple[str, list[Panel]]]]


@dataclass(frozen=True)
class Board:
    """A dashboard.

    Args:
        uid: Its identity in Grafana, the name of its file, and the end of its address.
        title: Its name.
        question: What it answers.
        rows: Makes its rows.
        has_devices: Whether one can choose devices.
    """

    uid: str
    title: str
    question: str
    rows: Rows
    has_devices: bool = False


BOARDS = (
    Board(
        "training-overview",
        "Training overview",
        "Is the run healthy, how far is it, and what happened to it?",
        overview.rows,
    ),
    Board("training-devices", "Devices", "Which device or host is near a limit?", devices.rows, True),
    Board("training-ranks", "Ranks and stragglers", "Who is behind, and since when?", ranks.rows),
    Board("training-diloco", "DiLoCo", "Do workers deliver, and are their deltas taken?", diloco.rows),
    Board("training-bridge", "Bridge health", "Can what the other dashboards show be trusted?", bridge.rows),
)


def dashboard(board: Board) -> dict[str, Any]:
    """Return a dashboard as the content of its file."""
    built = builders.Dashboard(board.title)
    built.uid(board.uid).description(board.question).tags([TAG]).editable()
    built.time("now-1h", "now").refresh("30s").timezone("browser")
    built.tooltip(DashboardCursorSync(1))
    others = builders.DashboardLink("Training dashboards")
    others.type(DashboardLinkType("dashboards")).tags([TAG]).as_dropdown(True)
    # The chosen runs and the time range go along.
    others.include_vars(True).keep_time(True)
    built.link(others)
    built.with_variable(variables.datasource())
    for variable in variables.of_runs():
        built.with_variable(variable)
    if board.has_devices:
        built.with_variable(variables.device())
    for annotation in all_annotations():
        built.annotation(annotation)
    for title, panels in board.rows():
        built.with_row(builders.Row(title))
        for panel in panels:
            built.with_panel(panel)
    content: dict[str, Any] = _without_nulls(json.loads(JSONEncoder().encode(built.build())))
    # Grafana tells panels apart by their ids, also in links; the SDK numbers none of them.
    for number, panel in enumerate(content["panels"], start=1):
        panel["id"] = number
    # The SDK gives every variable the fields of an interval variable.
    for variable in content["templating"]["list"]:
        for field in ("auto", "auto_min", "auto_count"):
            variable.pop(field, None)
    return content


def dashboard_file(board: Board) -> str:
    """Return the text of a dashboard's file."""
    return json.dumps(dashboard(board), indent=2, ensure_ascii=False) + "\n"


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        # The first threshold begins at minus infinity, which Grafana takes an absent value for, too.
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
