"""The OpenTelemetry providers of a pipeline of our own, whose exporters are driven by our threads."""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator

from otel_training import bounded, exporters
from otel_training.delivery import SpanDelivery, Watch, WatchedMetricExporter
from otel_training.export_loop import ExportLoop
from otel_training.guard import Guard, attempt
from otel_training.identity import Identity
from otel_training.settings import Settings

OnLoss = Callable[[int, str], None]
"""Takes how many values were lost, and why: ``queue`` or ``export``."""


class PrivateIds(IdGenerator):
    """Ids from the system's randomness; the SDK's would use up the random numbers of the training code."""

    def generate_span_id(self) -> int:
        """Return 64 random bits, not 0."""
        return secrets.randbelow(2**64 - 1) + 1

    def generate_trace_id(self) -> int:
        """Return 128 random bits, not 0."""
        return secrets.randbelow(2**128 - 1) + 1


def resource(settings: Settings, identity: Identity) -> Resource:
    """Return who speaks: the identity, what the user adds, and the host unless the user names one."""
    return Resource.create(
        {
            "host.name": identity.host,
            "process.pid": os.getpid(),
            **settings.attributes,
            "service.name": settings.service_name,
            "service.instance.id": identity.instance_id,
            **identity.resource_attributes,
        }
    )


class Signal:
    """What metrics and spans have in common: a thread that exports, and what the user attached.

    Args:
        guard: Keeps failures away from training.
        users: The user's own readers or processors.
    """

    def __init__(self, guard: Guard, users: Sequence[MetricReader] | Sequence[SpanProcessor]) -> None:
        self._guard = guard
        self._users = users
        self.loop: ExportLoop | None = None
        """The thread that exports; None when no exporter is configured."""

    def flush_users(self, deadline_s: float) -> bool:
        """Let the user's own hand over what they have, until a moment of ``time.monotonic``."""
        return self._call_users("flush", [user.force_flush for user in self._users], deadline_s)

    def shut_down_users(self, deadline_s: float) -> bool:
        """Shut the user's own down, which delivers what they have, until a moment of ``time.monotonic``."""
        return self._call_users("shutdown", [user.shutdown for user in self._users], deadline_s)

    def _call_users(self, part: str, calls: Sequence[Callable[[], object]], deadline_s: float) -> bool:
        done = [bounded.call(self._guard, part, call, deadline_s - time.monotonic()) for call in calls]
        return all(done)


class Metrics(Signal):
    """A meter provider with the configured exporters and the user's readers.

    Args:
        settings: Which exporters, how often.
        about: The resource.
        readers: The user's own.
        guard: Keeps failures away from training.
        on_loss: Told what was lost.
    """

    def __init__(
        self,
        settings: Settings,
        about: Resource,
        readers: Sequence[MetricReader],
        guard: Guard,
        on_loss: OnLoss,
    ) -> None:
        super().__init__(guard, readers)
        self._readers = readers
        self._timeout_ms = settings.export_timeout_s * 1000
        self._exporters = [
            WatchedMetricExporter(
                exporter,
                Watch(f"export of metrics by {type(exporter).__name__}", guard),
                lambda count: on_loss(count, "export"),
            )
            for exporter in exporters.metric_exporters(settings)
        ]
        # An infinite interval: the reader starts no thread, neither here nor in a forked child.
        self._pushed = [PeriodicExportingMetricReader(exporter, math.inf) for exporter in self._exporters]
        self.provider = MeterProvider([*self._pushed, *readers], about, shutdown_on_exit=False)
        if self._pushed:
            self.loop = ExportLoop("metrics", self._export, self._finish, settings.export_interval_s, guard)
            self.loop.start()

    def _export(self) -> bool:
        for reader in self._pushed:
            reader.collect(self._timeout_ms)
        return all(exporter.delivered for exporter in self._exporters)

    def _finish(self) -> None:
        for exporter in self._exporters:
            self._guard.run("shutdown of metrics", exporter.shutdown)

    def abandon_in_child(self) -> None:
        """Leave the user's readers nothing to read in a forked child: the SDK restarts their threads."""
        for reader in self._readers:
            attempt(reader._set_collect_callback, _collect_nothing)


def _collect_nothing(*_: Any, **__: Any) -> Any:
    return None


class Traces(Signal):
    """A tracer provider with the configured exporters and the user's processors.

    Args:
        settings: Which exporters, how often, which sampler.
        about: The resource.
        processors: The user's own.
        guard: Keeps failures away from training.
        on_loss: Told what was lost.
    """

    def __init__(
        self,
        settings: Settings,
        about: Resource,
        processors: Sequence[SpanProcessor],
        guard: Guard,
        on_loss: OnLoss,
    ) -> None:
        super().__init__(guard, processors)
        self.provider = TracerProvider(
            exporters.sampler(settings), about, shutdown_on_exit=False, id_generator=PrivateIds()
        )
        self._deliveries = [
            SpanDelivery(
                exporter,
                Watch(f"export of spans by {type(exporter).__name__}", guard),
                queue_size=settings.span_queue_size,
                batch_size=settings.span_batch_size,
                on_full=self.wake,
                on_loss=on_loss,
            )
            for exporter in exporters.span_exporters(settings)
        ]
        for processor in (*self._deliveries, *processors):
            self.provider.add_span_processor(processor)
        if self._deliveries:
            self.loop = ExportLoop("spans", self._export, self._finish, settings.span_delay_s, guard)
            self.loop.start()

    def wake(self) -> None:
        """Export soon."""
        if self.loop is not None:
            self.loop.wake()

    def _export(self) -> bool:
        went = [delivery.export() for delivery in self._deliveries]
        return all(went)

    def _finish(self) -> None:
        for delivery in self._deliveries:
            self._guard.run("shutdown of spans", delivery.finish)
