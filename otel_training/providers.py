"""The OpenTelemetry providers of a pipeline of our own, whose exporters are driven by our threads."""

from __future__ import annotations

import math
import os
import random
import re
import secrets
import sys
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator

from otel_training import exporters
from otel_training.delivery import GuardedProcessor, SpanDelivery, Watch, WatchedMetricExporter
from otel_training.endpoint import GRPC
from otel_training.export_loop import ExportLoop
from otel_training.grpc_import import import_grpc
from otel_training.guard import Guard, attempt
from otel_training.identity import Identity
from otel_training.otlp import Otlp
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

    def is_trace_id_random(self) -> bool:
        """Say that samplers may rely on the ids, as newer SDKs ask."""
        return True


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


class Metrics:
    """A meter provider with the configured exporters and the user's readers.

    Args:
        settings: Which exporters, how often.
        about: The resource.
        readers: The user's own.
        guard: Keeps failures away from training.
        on_loss: Told what was lost.

    Raises:
        ValueError: A reader is none.
    """

    def __init__(
        self,
        settings: Settings,
        about: Resource,
        readers: Sequence[MetricReader],
        guard: Guard,
        on_loss: OnLoss,
    ) -> None:
        _check("metric_readers", readers, MetricReader)
        self._readers = readers
        self._timeout_ms = settings.export_timeout_s * 1000
        self._guard = guard
        if settings.metrics_otlp and settings.metrics_otlp.protocol == GRPC:
            import_grpc()
        made = exporters.metric_exporters(settings)
        self._exporters = [
            WatchedMetricExporter(
                exporter,
                _watch("metrics", name, settings.metrics_otlp, guard),
                lambda count: on_loss(count, "export"),
            )
            for exporter, name in zip(made, settings.metrics_exporters, strict=True)
        ]
        _leave_random_numbers_alone()
        # An infinite interval: the reader starts no thread, neither here nor in a forked child.
        self._pushed = [PeriodicExportingMetricReader(exporter, math.inf) for exporter in self._exporters]
        self.provider = MeterProvider([*self._pushed, *readers], about, shutdown_on_exit=False)
        self.loops = [_loop_of_user(reader, guard) for reader in readers]
        """The threads that deliver."""
        if self._pushed:
            self.loops.append(
                ExportLoop("metrics", self._export, self._finish, settings.export_interval_s, guard)
            )

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


class Traces:
    """A tracer provider with the configured exporters and the user's processors.

    Args:
        settings: Which exporters, how often, which sampler.
        about: The resource.
        processors: The user's own.
        guard: Keeps failures away from training.
        on_loss: Told what was lost.

    Raises:
        ValueError: A processor is none.
    """

    def __init__(
        self,
        settings: Settings,
        about: Resource,
        processors: Sequence[SpanProcessor],
        guard: Guard,
        on_loss: OnLoss,
    ) -> None:
        _check("span_processors", processors, SpanProcessor)
        self._guard = guard
        self.provider = TracerProvider(
            exporters.sampler(settings), about, shutdown_on_exit=False, id_generator=PrivateIds()
        )
        self.loops: list[ExportLoop] = []
        """The threads that deliver."""
        if settings.traces_otlp and settings.traces_otlp.protocol == GRPC:
            import_grpc()
        made = exporters.span_exporters(settings)
        self._deliveries = [
            SpanDelivery(
                exporter,
                _watch("spans", name, settings.traces_otlp, guard),
                queue_size=settings.span_queue_size,
                batch_size=settings.span_batch_size,
                on_full=self.wake,
                on_loss=on_loss,
            )
            for exporter, name in zip(made, settings.traces_exporters, strict=True)
        ]
        _leave_random_numbers_alone()
        for delivery in self._deliveries:
            self.provider.add_span_processor(delivery)
        if self._deliveries:
            self.loops.append(ExportLoop("spans", self._export, self._finish, settings.span_delay_s, guard))
        self.add(processors)

    def add(self, processors: Sequence[SpanProcessor]) -> list[ExportLoop]:
        """Hand the spans to further processors of the user, and return the threads that will deliver them."""
        _check("span_processors", processors, SpanProcessor)
        loops = [_loop_of_user(processor, self._guard) for processor in processors]
        for processor in processors:
            self.provider.add_span_processor(GuardedProcessor(processor, self._guard))
        self.loops += loops
        return loops

    def wake(self) -> None:
        """Export soon."""
        for loop in self.loops:
            loop.ask()

    def _export(self) -> bool:
        went = [delivery.export() for delivery in self._deliveries]
        return all(went)

    def _finish(self) -> None:
        for delivery in self._deliveries:
            self._guard.run("shutdown of spans", delivery.finish)


def _check(setting: str, given: Sequence[object], kind: type) -> None:
    for one in given:
        if not isinstance(one, kind):
            raise ValueError(f"{setting} holds {one!r}"[:200] + f": accepted are objects of {kind.__name__}")


def _loop_of_user(user: MetricReader | SpanProcessor, guard: Guard) -> ExportLoop:
    """Return a thread for what the user attached: its own timing stays, but flush and shutdown may hang."""

    def export() -> bool:
        # A user's force_flush that returns nothing has not failed.
        return user.force_flush() is not False

    return ExportLoop(type(user).__name__, export, user.shutdown, None, guard)


def _watch(signal: str, exporter: str, otlp: Otlp | None, guard: Guard) -> Watch:
    if otlp is None or exporter != "otlp":
        return Watch(f"export of {signal} to the {exporter}", guard.notices)
    secret_values = [value for value in otlp.headers.values() if value]

    def hide(text: str) -> str:
        for value in secret_values:
            text = text.replace(value, "***")
        return re.sub(r"\?\S+", "?***", text)

    return Watch(f"export of {signal} to {otlp.endpoint}", guard.notices, hide)


def _leave_random_numbers_alone() -> None:
    """Give the exporters random numbers of their own for the time between two tries.

    They would draw them from Python's one generator, at moments that depend on the network: a seeded training
    would not be the same twice.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("opentelemetry.exporter.otlp") and getattr(module, "random", None) is random:
            module.__dict__["random"] = random.Random()
