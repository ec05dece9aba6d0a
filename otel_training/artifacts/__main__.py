"""Write the dashboards and rules: ``python -m otel_training.artifacts``."""

from __future__ import annotations

import argparse
from pathlib import Path

from otel_training.artifacts import files, rule_files


def main() -> None:
    """Write all files, into ``grafana/`` of the current folder unless told otherwise."""
    parser = argparse.ArgumentParser(prog=files.COMMAND, description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("grafana"), help="where to write (grafana)")
    parser.add_argument(
        "--runbook-url",
        default=rule_files.RUNBOOK,
        help="address of your copy of docs/runbook.md, for the links of the alerts",
    )
    arguments = parser.parse_args()
    files.write(arguments.folder, arguments.runbook_url)


if __name__ == "__main__":
    main()
