"""The variables at the top of every dashboard, and the selector that follows from them."""

from __future__ import annotations

import json

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from otel_training import catalog
from otel_training.artifacts.queries import JOB, Queries
from otel_training.catalog import devices

DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")

_CHOSEN = {
    "job": f'{JOB}=~"$job"',
    "name": f'{catalog.RUN_NAME.label}=~"$name"',
    "run": f'{catalog.RUN_ID.label}=~"$run"',
    "rank": f'{catalog.RANK.label}=~"$rank"',
}
"""Matcher of each variable; each variable offers what those before it leave."""

_ALL = VariableOption(selected=True, text=["All"], value=["$__all"])

WINDOW = "$__rate_interval"
CHOSEN_RUNS = Queries(*list(_CHOSEN.values())[:3], window=WINDOW)
"""All ranks of the chosen runs: for figures of the run or the host, which not every rank reports."""

CHOSEN_RANKS = Queries(*_CHOSEN.values(), window=WINDOW)
"""The chosen ranks of the chosen runs."""

CHOSEN_DEVICES = Queries(*_CHOSEN.values(), f'{devices.DEVICE_INDEX.label}=~"$device"', window=WINDOW)
CHOSEN_XLA_DEVICES = Queries(*_CHOSEN.values(), f'{devices.XLA_DEVICE.label}=~"$device"', window=WINDOW)


def datasource() -> builders.DatasourceVariable:
    """Return the choice of the Prometheus to ask, so that no dashboard is bound to one."""
    variable = builders.DatasourceVariable("datasource")
    variable.label("Data source").type("prometheus")
    return variable


def of_runs() -> list[builders.QueryVariable]:
    """Return the choices of job, run name, run and rank."""
    labels = {
        "job": ("Job", JOB),
        "name": ("Run name", catalog.RUN_NAME.label),
        "run": ("Run", catalog.RUN_ID.label),
        "rank": ("Rank", catalog.RANK.label),
    }
    # Every rank of every trainer counts its events, whatever else it may not report.
    variables = []
    for position, (name, (title, label)) in enumerate(labels.items()):
        seen = Queries(*list(_CHOSEN.values())[:position], window=WINDOW).series(catalog.BRIDGE_EVENTS)
        variables.append(_choice(name, title, f"label_values({seen}, {label})"))
    return variables


def device() -> builders.QueryVariable:
    """Return the choice of devices: the index of CUDA devices and the name of XLA devices."""
    seen = " or ".join(
        f'label_join(last_over_time({CHOSEN_RANKS.series(metric)}[$__range]), "device", "", "{label}")'
        for metric, label in (
            (devices.CUDA_ALLOCATED, devices.DEVICE_INDEX.label),
            (devices.GPU_MEMORY_USAGE, devices.DEVICE_INDEX.label),
            (devices.XLA_USAGE, devices.XLA_DEVICE.label),
        )
    )
    variable = _choice("device", "Device", f"query_result(count by (device) ({seen}))")
    variable.regex('/device="([^"]+)"/')
    return variable


def _choice(name: str, title: str, query: str) -> builders.QueryVariable:
    variable = builders.QueryVariable(name)
    variable.label(title).datasource(DATASOURCE).query(query)
    # Asked again when the time range moves, so that it offers the runs of that time.
    variable.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.NUMERICAL_ASC)
    # The value of "All" also matches series without the label, and stays short with a thousand ranks.
    variable.multi(True).include_all(True).all_value(".*").current(_ALL)
    return variable


def interpolated(text: str, values: dict[str, str]) -> str:
    """Return PromQL as Grafana sends it, for tests and tools without one.

    Args:
        text: PromQL with variables.
        values: Value of each variable by name; ``__range`` and the like included.
    """
    for name in sorted(values, key=len, reverse=True):
        text = text.replace("${" + name + "}", values[name]).replace("$" + name, values[name])
    if "$" in text:
        raise ValueError(f"no value for a variable in {json.dumps(text)}")
    return text
