"""How series are called in legends, and the texts that several dashboards share."""

from otel_training import catalog
from otel_training.artifacts.queries import INSTANCE
from otel_training.catalog import Attribute, devices


def label(attribute: Attribute) -> str:
    """Return what Grafana replaces by the value of an attribute."""
    return "{{" + attribute.label + "}}"


WHAT = "what"
"""Label that ``joined`` makes."""


def joined(expression: str, *attributes: Attribute) -> str:
    """Return series with the values of some attributes side by side in a label of their own.

    Where a series lacks a label, Grafana would write the label's name into its legend.
    """
    labels = ", ".join(f'"{attribute.label}"' for attribute in attributes)
    return f'label_join({expression}, "{WHAT}", " ", {labels})'


RUN = f"{label(catalog.RUN_NAME)} {label(catalog.RUN_ID)}"
RANK = f"{label(catalog.RUN_NAME)} rank {label(catalog.RANK)}"
HOST = "{{" + INSTANCE + "}}"
CUDA = f"{RANK} cuda:{label(devices.DEVICE_INDEX)}"
XLA = f"{RANK} {label(devices.XLA_DEVICE)}"

ESTIMATE = "Quantiles are estimates from histogram buckets; the mean is exact."
EXACT = "mean (exact)"
P50, P99 = "p50 (bucket estimate)", "p99 (bucket estimate)"
