"""Exporters under watch: failures are counted and told in few lines, and no exception leaves an export."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, Context, attach, detach, set_value
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    MetricExporter,
    MetricExportResult,
    MetricsData,
)
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_training.guard import Guard, Notices, attempt, describe, failure

MAX_REFUSALS = 3
"""How often a batch of spans is tried while others pass; then it is the batch that is refused."""

MAX_UNSENT_DELTAS = 120
"""Exports of delta metrics that wait for a receiver; each is a part of the sum that no later one repeats."""


class Watch:
    """Tells how the deliveries to one destination go.

    Args:
        subject: What is exported where, for the log.
        notices: Where it is told.
        hide: Takes secrets out of what exporters say, which may quote a URL or an answer.
    """

    def __init__(self, subject: str, notices: Notices, hide: Callable[[str], str] = str) -> None:
        self._subject = subject
        self._notices = notices
        self._hide = hide
        self._quiet = QuietThread(self._warn)

    def deliver(self, export: Callable[[], object], success: object) -> bool:
        """Call ``export`` and return whether it returned ``success``."""
        results: list[object] = []
        # As the SDK's own processors do: requests of an exporter are no subject of the user's telemetry.
        token = attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))
        with self._quiet:
            error = failure(lambda: results.append(export()))
        detach(token)
        if results == [success]:
            self._notices.recovered(self._subject, f"{self._subject}: delivered again")
            return True
        self._warn(describe(error) if error else "the exporter reported a failure")
        return False

    def close(self) -> None:
        """Stop listening to the exporters' loggers."""
        self._quiet.close()

    def _warn(self, reason: str) -> None:
        text = f"{self._subject} fails, training goes on: {self._hide(reason)[:300]}"
        self._notices.warn(self._subject, text)


class QuietThread(logging.Filter):
    """Takes what the SDK logs during an export, a line for each retry, out of the log.

    Records of all other threads, such as those of exporters that the user runs, pass.

    Args:
        tell: Takes the text of warnings and errors instead.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell
        self._here = threading.local()
        # A filter works on the very logger that a module logs to, not on its parents.
        names = [name for name in list(logging.root.manager.loggerDict) if name.startswith(_LOGGERS)]
        self._loggers = [logging.getLogger(name) for name in names]
        for logger in self._loggers:
            logger.filters.insert(0, self)  # the SDK's own filter would keep from us what it had a minute ago

    def close(self) -> None:
        """Leave the loggers as they were."""
        for logger in self._loggers:
            logger.removeFilter(self)

    def __enter__(self) -> QuietThread:
        self._here.exports = True
        return self

    def __exit__(self, *_: object) -> None:
        self._here.exports = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Let a record pass unless it was made by the export in progress."""
        if not getattr(self._here, "exports", False):
            return True
        if record.levelno >= logging.WARNING:
            self._tell(" ".join((attempt(record.getMessage) or record.name).split()))
        return False


_LOGGERS = ("opentelemetry.", "urllib3.", "grpc.")


class WatchedMetricExporter(MetricExporter):
    """An exporter for a reader without a thread.

    What is cumulative is in the next export as well; deltas that failed are kept and go before the next.

    Args:
        exporter: The exporter that does the work.
        watch: Tells how it goes.
        on_loss: Called with 1 for each export that was given up.
    """

    def __init__(self, exporter: MetricExporter, watch: Watch, on_loss: Callable[[int], None]) -> None:
        super().__init__(exporter._preferred_temporality, exporter._preferred_aggregation)
        self._exporter = exporter
        self._watch = watch
        self._on_loss = on_loss
        has_deltas = AggregationTemporality.DELTA in (exporter._preferred_temporality or {}).values()
        self._max_unsent = MAX_UNSENT_DELTAS if has_deltas else 0
        self._unsent: deque[MetricsData] = deque()
        self.delivered = True
        """Whether the last export was successful."""

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        """Export; never raises."""

        def send() -> object:
            return self._exporter.export(self._unsent[0], timeout_millis, **kwargs)

        self._unsent.append(metrics_data)
        self.delivered = True
        while self._unsent and self.delivered:
            self.delivered = self._watch.deliver(send, MetricExportResult.SUCCESS)
            if self.delivered:
                self._unsent.popleft()
        while len(self._unsent) > self._max_unsent:
            self._unsent.popleft()
            self._on_loss(1)
        return MetricExportResult.SUCCESS if self.delivered else MetricExportResult.FAILURE

    def force_flush(self, timeout_millis: float = 10_000) -> bool:  # noqa: ARG002 - the SDK's signature
        """Nothing: whoever wants an export collects."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Give up what is left and shut the exporter down."""
        if self._unsent:
            self._on_loss(len(self._unsent))
        try:
            self._exporter.shutdown(timeout_millis, **kwargs)
        finally:
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
        on_full: Callable[[], object],
        on_loss: Callable[[int, str], None],
    ) -> None:
        self._exporter = exporter
        self._watch = watch
        self._queue_size = queue_size
        self._batch_size = batch_size
        self._on_full = on_full
        self._on_loss = on_loss
        self._waiting: deque[ReadableSpan] = deque()
        self._failed: deque[_Failed] = deque()
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
        others_pass = False
        while self._waiting:
            count = min(self._batch_size, len(self._waiting))
            batch = [self._waiting.popleft() for _ in range(count)]
            if not self._deliver(batch):
                self._keep(_Failed(batch))
                return False
            others_pass = True
        return self._export_failed(others_pass)

    def _export_failed(self, others_pass: bool) -> bool:
        for _ in range(len(self._failed)):
            failed = self._failed.popleft()
            self._failed_count -= len(failed.batch)
            if self._deliver(failed.batch):
                others_pass = True
                continue
            failed.refusals += others_pass
            if failed.refusals >= MAX_REFUSALS:
                self._on_loss(len(failed.batch), "export")
                continue
            self._keep(failed)
            if not others_pass:
                break
        return not self._failed

    def _deliver(self, batch: Sequence[ReadableSpan]) -> bool:
        return self._watch.deliver(lambda: self._exporter.export(batch), SpanExportResult.SUCCESS)

    def _keep(self, failed: _Failed) -> None:
        self._failed.append(failed)
        self._failed_count += len(failed.batch)

    def finish(self) -> None:
        """Give up what is left and shut the exporter down."""
        left = len(self._waiting) + self._failed_count
        if left:
            self._on_loss(left, "export")
        try:
            self._exporter.shutdown()
        finally:
            self._watch.close()

    def shutdown(self) -> None:
        """Nothing: the thread that exports ends this."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002 - the SDK's signature
        """Nothing: ``Telemetry.flush`` asks the thread that exports."""
        return True


class _Failed:
    """A batch that could not be delivered, and how often it was refused while others passed."""

    def __init__(self, batch: Sequence[ReadableSpan]) -> None:
        self.batch = batch
        self.refusals = 0


class GuardedProcessor(SpanProcessor):
    """A span processor of the user whose exceptions end neither an event nor the spans of others.

    Args:
        processor: The user's.
        guard: Takes what it raises.
    """

    def __init__(self, processor: SpanProcessor, guard: Guard) -> None:
        self._processor = processor
        self._guard = guard
        self._part = f"span processor {type(processor).__name__}"

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Pass it on."""
        self._guard.run(self._part, self._processor.on_start, span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        """Pass it on."""
        self._guard.run(self._part, self._processor.on_end, span)

    def shutdown(self) -> None:
        """Nothing: a thread of its own shuts the processor down."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002 - the SDK's signature
        """Nothing: a thread of its own flushes the processor."""
        return True
