"""Which files there are, and how they come to be up to date."""

from __future__ import annotations

from pathlib import Path

from otel_training.artifacts import rule_files
from otel_training.artifacts.dashboards import BOARDS, dashboard_file

COMMAND = "python -m otel_training.artifacts"
FOLDERS = ("dashboards", "rules")


def contents(runbook: str = rule_files.RUNBOOK) -> dict[str, str]:
    """Return the text of each file by its path below ``grafana/``.

    Args:
        runbook: Address of the runbook that alerts link to.
    """
    dashboards = {f"dashboards/{board.uid}.json": dashboard_file(board) for board in BOARDS}
    return {
        **dashboards,
        "rules/records.yaml": rule_files.recording_rules(),
        "rules/alerts.yaml": rule_files.alert_rules(runbook=runbook),
    }


def differences(folder: Path) -> list[str]:
    """Return which files in ``folder`` are missing, differ, or are not ours to have."""
    wanted = contents()
    found = {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for name in FOLDERS
        for path in sorted((folder / name).glob("*"))
    }
    return sorted(path for path in {*wanted, *found} if wanted.get(path) != found.get(path))


def write(folder: Path, runbook: str = rule_files.RUNBOOK) -> list[Path]:
    """Write all files below ``folder`` and return where they are."""
    paths = []
    for name, text in contents(runbook).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths
