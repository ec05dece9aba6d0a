import ast
import inspect
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from otel_training.artifacts import thresholds
from otel_training.artifacts.alerts import alerts
from otel_training.artifacts.dashboards import BOARDS, dashboard
from otel_training.artifacts.records import RECORDS
from otel_training.artifacts.thresholds import Thresholds

RUNBOOK = Path(__file__).resolve().parents[3] / "docs" / "runbook.md"
NAMES = [
    "TrainingStalled", "NonFiniteLoss", "LossDiverging", "ThroughputDropped", "CheckpointTooOld",
    "GoodputLow", "DataWaitHigh", "GpuMemoryNearLimit", "AllocatorRetriesRising", "OutOfMemory",
    "StragglerRank", "RanksMissing", "DeltaUploadsFailing", "DeltasRejected", "TelemetryDropping",
    "TrainingFailed",
]  # fmt: skip


def test_all_alerts_are_there():
    assert [alert.name for alert in alerts()] == NAMES


def test_the_runbook_has_a_heading_for_each_alert_and_no_other():
    text = RUNBOOK.read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == NAMES
    for section, alert in zip(text.split("\n## ")[1:], alerts(), strict=True):
        assert f"*{alert.severity}.*" in section
        assert "**Look at**" in section
        assert "**Do**" in section


def test_panels_that_the_runbook_names_exist():
    titles = {panel["title"] for board in BOARDS for panel in dashboard(board)["panels"]}
    text = " ".join(RUNBOOK.read_text(encoding="utf-8").split())
    quoted = set(re.findall(r'"([A-Z][^"]+)"', text)) - {"Silent"}
    assert {title for title in quoted if not any(full.startswith(title) for full in titles)} == set()


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)
def test_annotations_use_labels_that_the_expression_keeps(alert):
    used = set(re.findall(r"\$labels\.(\w+)", alert.summary + alert.description))
    kept = {
        label for labels in re.findall(r"by \(([^)]*)\)", alert.expression) for label in labels.split(", ")
    }
    recorded = {record.name: record for record in RECORDS if record.name in alert.expression}
    kept |= {
        label
        for record in recorded.values()
        for labels in re.findall(r"by \(([^)]*)\)", record.expression)
        for label in labels.split(", ")
    }
    assert used <= kept
    assert "training_run_id" in used


def test_each_threshold_has_its_reason():
    [definition] = [
        node for node in ast.parse(inspect.getsource(thresholds)).body if isinstance(node, ast.ClassDef)
    ]
    reasons = {
        before.target.id: after.value.value
        for before, after in zip(definition.body, definition.body[1:], strict=False)
        if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr)
    }
    assert set(reasons) == {field.name for field in fields(Thresholds)}
    assert all(len(reason.split()) > 5 for reason in reasons.values())


@pytest.mark.parametrize("field", fields(Thresholds), ids=lambda field: field.name)
def test_each_threshold_changes_an_alert(field):
    changed = replace(Thresholds(), **{field.name: 7 * field.default + 1})
    assert alerts(changed) != alerts()
