"""For tests of code that trains: what telemetry a piece of code made, without a server.

Importing this module is cheap, and pytest loads it as a plugin: take the fixture ``telemetry_capture``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from otel_training.clock import Clock
    from otel_training.hook import OTelHook


class TelemetryCapture:
    """An ``OTelHook`` on providers of its own, and what it made.

    Args:
        clock: When events arrive; the machine's clock when None.

    Attributes:
        hook: The hook to attach or to call.
        meter_provider: Where the hook's metrics go.
        tracer_provider: Where its spans go.
    """

    hook: OTelHook

    def __init__(self, clock: Clock | None = None, **hook_arguments: Any) -> None:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        from otel_training.hook import OTelHook

        self._exporter = InMemorySpanExporter()
        self.tracer_provider = TracerProvider(shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.meter_provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self.hook = OTelHook(
            meter_provider=self.meter_provider,
            tracer_provider=self.tracer_provider,
            clock=clock,
            **hook_arguments,
        )

    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        """Return the finished spans in the order of their ends, those of one name when ``name`` is given."""
        return [span for span in self._exporter.get_finished_spans() if name in (None, span.name)]

    def points(self, name: str | None = None) -> dict[tuple[str, frozenset[tuple[str, Any]]], Any]:
        """Return the data points by metric name and attributes, those of one metric when ``name`` is given.

        The identity attributes, the same on every point, are left out of the keys.
        """
        from otel_training import catalog

        identity = {attribute.name for attribute in catalog.IDENTITY}
        found = {}
        data = self._reader.get_metrics_data()
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    if name in (None, metric.name):
                        for point in metric.data.data_points:
                            attributes = (point.attributes or {}).items()
                            key = frozenset(item for item in attributes if item[0] not in identity)
                            found[metric.name, key] = point
        return found

    def value(self, name: str, **attributes: Any) -> Any:
        """Return the value of a gauge or counter, the count of a histogram, or None without such a point.

        Args:
            name: OpenTelemetry name of the metric, such as ``training.loss``.
            **attributes: Attributes of the point with ``_`` for each dot (``training_state="step"``); all its
                points that match are added up.
        """
        wanted = set(attributes.items())
        values = [
            point.value if hasattr(point, "value") else point.count
            for (_, key), point in self.points(name).items()
            if wanted <= {(attribute.replace(".", "_"), value) for attribute, value in key}
        ]
        return sum(values) if values else None

    def close(self) -> None:
        """End the hook and the provider."""
        self.hook.close()
        self.meter_provider.shutdown()
        self.tracer_provider.shutdown()


@pytest.fixture
def telemetry_capture() -> Iterator[TelemetryCapture]:
    """A hook on in-memory providers, closed after the test."""
    capture = TelemetryCapture()
    yield capture
    capture.close()
