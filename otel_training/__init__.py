"""OpenTelemetry metrics and spans, and a Prometheus scrape page, for PyTorch training."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_training.device_stats import DeviceStatsMonitor, MisconfigurationException
    from otel_training.hook import OTelHook
    from otel_training.pipeline import Telemetry, start

__all__ = ["OTelHook", "Telemetry", "start", "DeviceStatsMonitor", "MisconfigurationException"]

# Looked up at first use, so that importing this package costs nothing where telemetry is not used.
_HOMES = {
    "DeviceStatsMonitor": "otel_training.device_stats",
    "MisconfigurationException": "otel_training.device_stats",
    "OTelHook": "otel_training.hook",
    "Telemetry": "otel_training.pipeline",
    "start": "otel_training.pipeline",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
