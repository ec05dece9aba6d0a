"""What several tests of the telemetry need: a clock that a test sets, and spans kept in memory."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_training.clock import Moment

UNIX_S = 1_700_000_000.0


class SetClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.monotonic_s = 1000.0

    def now(self) -> Moment:
        return Moment(self.monotonic_s, UNIX_S + self.monotonic_s)

    def after(self, seconds: float) -> Moment:
        self.monotonic_s += seconds
        return self.now()


class SpanBox:
    """A tracer, and the spans that it ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    def all(self, name=None):
        return [span for span in self._exporter.get_finished_spans() if name in (None, span.name)]

    def names(self):
        return [span.name for span in self.all()]

    def one(self, name):
        [span] = self.all(name)
        return span


@pytest.fixture
def set_clock():
    return SetClock()


@pytest.fixture
def span_box():
    return SpanBox()
