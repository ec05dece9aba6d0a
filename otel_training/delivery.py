"""Exporters under watch: failures are counted and told in few lines, and no exception leaves an export."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_training.guard import Guard, attempt

RETRY_FOR_S = 600.0
"""How long a batch of spans that failed is tried again, while the queue has room for it."""


class Watch:
    """Tells how the deliveries to one destination go.

    Args:
        destination: What is exported where, for the log.
        guard: Where it is told.
    """

    def __init__(self, destination: str, guard: Guard) -> None:
        self._destination = destination
        self._guard = guard
        self._quiet = QuietThread(self._warn)

    def _warn(self, reason: str) -> None:
        self._guard.notices.warn(self._destination, f"{self._destination} fails, training goes on: {reason}")

    def deliver(self, export: Callable[[], object], success: object) -> bool:
        """Call ``export`` and return whether it returned ``success``."""
        results: list[object] = []
        with self._quiet:
            came_back = self._guard.run(self._destination, lambda: results.append(export()))
        if results == [success]:
            self._guard.notices.recovered(self._destination, f"{self._destination}: delivered again")
            return True
        if came_back:
            self._warn("the exporter reported a failure")
        return False

    def close(self) -> None:
        """Stop listening to the exporters' loggers."""
        self._quiet.close()


class QuietThread(logging.Filter):
    """Takes what the SDK logs during an export, a line for each retry, out of the log.

    Records of all other threads, such as those of exporters that the user runs, pass.

    Args:
        tell: Takes the text of warnings and errors instead.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell
        self._thread: int | None = None
        # A filter works on the very logger that a module logs to, not on its parents.
        names = [
            name
            for name in logging.root.manager.loggerDict
            if name.startswith(("opentelemetry.", "urllib3."))
        ]
        self._loggers = [logging.getLogger(name) for name in names]
        for logger in self._loggers:
            logger.addFilter(self)

    def close(self) -> None:
        """Leave the loggers as they were."""
        for logger in self._loggers:
            logger.removeFilter(self)

    def __enter__(self) -> QuietThread:
        self._thread = threading.get_ident()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Let a record pass unless it was made by the export in progress."""
        if record.thread != self._thread:
            return True
        if record.levelno >= logging.WARNING:
            self._tell(" ".join((attempt(record.getMessage) or record.name).split()))
        return False


class WatchedMetricExporter(MetricExporter):
    """An exporter for a reader without a thread.

    Args:
        exporter: The exporter that does the work.
        watch: Tells how it goes.
        on_loss: Called with 1 for each export that failed.
    """

    def __init__(self, exporter: MetricExporter, watch: Watch, on_loss: Callable[[int], None]) -> None:
        super().__init__(exporter._preferred_temporality, exporter._preferred_aggregation)
        self._exporter = exporter
        self._watch = watch
        self._on_loss = on_loss
        self.delivered = True
        """Whether the last export was successful."""

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        """Export; never raises."""
        self.delivered = self._watch.deliver(
            lambda: self._exporter.export(metrics_data, timeout_millis, **kwargs), MetricExportResult.SUCCESS
        )
        if not self.delivered:
            self._on_loss(1)
        return MetricExportResult.SUCCESS if self.delivered else MetricExportResult.FAILURE

    def force_flush(self, timeout_millis: float = 10_000) -> bool:  # noqa: ARG002 - the SDK's signature
        """Nothing is kept here."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Shut the exporter down."""
        self._exporter.shutdown(timeout_millis, **kwargs)
        self._watch.close()


class SpanDelivery(SpanProcessor):
    """A bounded queue of ended spans, exported in batches when somebody calls ``export``.

    Args:
        exporter: Where the spans go.
        watch: Tells how it goes.
        queue_size: Most spans that wait.
        batch_size: Most spans in one export.
        on_full: Called when a batch is ready.
        on_loss: Called with the number of spans given up and the reason: ``queue`` or ``export``.
    """

    def __init__(
        self,
        exporter: SpanExporter,
        watch: Watch,
        *,
        queue_size: int,
        batch_size: int,
        on_full: Callable[[], None],
        on_loss: Callable[[int, str], None],
    ) -> None:
        self._exporter = exporter
        self._watch = watch
        self._queue_size = queue_size
        self._batch_size = batch_size
        self._on_full = on_full
        self._on_loss = on_loss
        self._waiting: deque[ReadableSpan] = deque()
        self._failed: deque[tuple[float, Sequence[ReadableSpan]]] = deque()
        self._failed_count = 0

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing happens at a start."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a sampled span, or count it as lost when there is no room."""
        context = span.context
        if context is None or not context.trace_flags.sampled:
            return
        if len(self._waiting) + self._failed_count >= self._queue_size:
            self._on_loss(1, "queue")
            return
        self._waiting.append(span)
        if len(self._waiting) == self._batch_size:
            self._on_full()

    def export(self) -> bool:
        """Export what waits, then what failed before, and return whether nothing is left."""
        delivered_any = False
        while self._waiting:
            count = min(self._batch_size, len(self._waiting))
            batch = [self._waiting.popleft() for _ in range(count)]
            if not self._deliver(batch):
                self._keep(time.monotonic(), batch)
                return False
            delivered_any = True
        return self._export_failed(delivered_any)

    def _export_failed(self, delivered_any: bool) -> bool:
        while self._failed:
            since_s, batch = self._failed.popleft()
            self._failed_count -= len(batch)
            if self._deliver(batch):
                delivered_any = True
            elif delivered_any or time.monotonic() - since_s > RETRY_FOR_S:
                self._on_loss(len(batch), "export")  # others pass: it is this batch that is refused
            else:
                self._keep(since_s, batch)
                return False
        return True

    def _deliver(self, batch: Sequence[ReadableSpan]) -> bool:
        return self._watch.deliver(lambda: self._exporter.export(batch), SpanExportResult.SUCCESS)

    def _keep(self, since_s: float, batch: Sequence[ReadableSpan]) -> None:
        self._failed.append((since_s, batch))
        self._failed_count += len(batch)

    def finish(self) -> None:
        """Give up what is left and shut the exporter down."""
        left = len(self._waiting) + self._failed_count
        if left:
            self._on_loss(left, "export")
        self._exporter.shutdown()
        self._watch.close()

    def shutdown(self) -> None:
        """Nothing: the thread that exports ends this."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002 - the SDK's signature
        """Nothing: ``Telemetry.flush`` asks the thread that exports."""
        return True
