"""The rules as the files that Prometheus loads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from otel_training.artifacts.alerts import Alert, alerts
from otel_training.artifacts.records import RECORDS

RUNBOOK = "docs/runbook.md"
"""Where alerts link to: a page of this repository; ``--runbook-url`` writes the address of your own copy."""

INTERVAL_S = 30
"""How often rules are evaluated; some thresholds count recorded values and rely on it."""


def recording_rules(interval_s: float = INTERVAL_S) -> str:
    """Return the file of recording rules, to be evaluated every ``interval_s`` seconds."""
    rules = [{"record": record.name, "expr": record.expression} for record in RECORDS]
    return _file("otel-training-records", rules, interval_s)


def alert_rules(
    rules: Iterable[Alert] | None = None, runbook: str = RUNBOOK, interval_s: float = INTERVAL_S
) -> str:
    """Return the file of alert rules.

    Args:
        rules: The alerts; all under the usual thresholds when None.
        runbook: Address of the runbook, without a heading.
        interval_s: How often they are evaluated, in seconds.
    """
    written = [_alert_rule(alert, runbook) for alert in rules or alerts()]
    return _file("otel-training-alerts", written, interval_s)


def _alert_rule(alert: Alert, runbook: str) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        **({"for": f"{alert.hold_s:g}s"} if alert.hold_s else {}),
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook_url": f"{runbook}#{alert.name.lower()}",
        },
    }


def _file(group: str, rules: list[dict[str, Any]], interval_s: float) -> str:
    content = {"groups": [{"name": group, "interval": f"{interval_s:g}s", "rules": rules}]}
    header = "# Written by `python -m otel_training.artifacts`; edit otel_training/artifacts/ instead.\n"
    return header + yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Writes strings of several lines as blocks, as a person would."""


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _string)
