"""The telemetry of one run with a pipeline of its own: what it is made of, and how it ends in time."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from otel_training import catalog, process
from otel_training.clock import Clock
from otel_training.devices.sources import make_sources
from otel_training.guard import Guard, Notices, logger
from otel_training.hook import Attachment
from otel_training.identity import Identity
from otel_training.rank_device import RankDevice
from otel_training.run import Run
from otel_training.sampler import Sampler
from otel_training.scrape import Scrape
from otel_training.settings import Settings
from otel_training.state import State
from otel_training.tracing import Tracing, TracingOptions
from otel_training.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.trace import SpanProcessor

    from otel_training.export_loop import ExportLoop
    from otel_training.providers import Metrics, Traces
    from otel_training.scrape_server import ScrapeServer


LAST_READING_S = 0.5
"""Longest that closing waits for a last reading of the devices, which the last export is to have."""


class Pipeline:
    """Providers, threads and page of one run, whose telemetry may be started more than once.

    Args:
        key: The run's identity in this process.
        number: The first hook of the run.
        settings: What to make.
        identity: Who speaks.
        metric_readers: The user's own.
        span_processors: The user's own.

    Raises:
        ValueError: Something cannot be made from the settings.
    """

    def __init__(
        self,
        key: process.RunKey,
        number: int,
        settings: Settings,
        identity: Identity,
        metric_readers: Sequence[MetricReader],
        span_processors: Sequence[SpanProcessor],
    ) -> None:
        self._key = key
        self._settings = settings
        self._identity = identity
        self._guard = Guard(Notices())
        self._clock = Clock()
        self._metrics: list[Metrics] = []
        self._traces: Traces | None = None
        self._deadline_s: float | None = None
        self._loops: list[ExportLoop] = []
        if not settings.disabled:
            self._make_providers(settings, metric_readers, span_processors)
        self._run = process.join(key, number, self._make_run)
        with ExitStack() as undo:
            undo.callback(process.leave, key, number, keep_totals=False)
            self._scrape = Scrape(settings, identity, self._run.state, self._guard)
            undo.pop_all()
        # Last, so that whatever is refused leaves no thread behind.
        for metrics in self._metrics:
            process.instruments(metrics.provider, self._guard).attach(self._run)
        self._start(self._loops)
        self._sampler = self._make_sampler()
        if self._sampler is not None:
            self._sampler.start()

    @property
    def page(self) -> ScrapeServer | None:
        """The scrape page; None when there is none."""
        return self._scrape.page

    def _make_sampler(self) -> Sampler | None:
        settings, cells = self._settings, self._run.devices
        if settings.disabled:
            return None
        if settings.device is not None:
            cells.device = RankDevice(settings.device)
        cells.all_stats = settings.devices == "all"
        sources = make_sources(settings.devices, cells.device, host=self._identity.local_rank == 0)
        if not sources:
            return None
        return Sampler(sources, cells, self._run.state, settings.device_interval_s)

    def _make_providers(
        self,
        settings: Settings,
        metric_readers: Sequence[MetricReader],
        span_processors: Sequence[SpanProcessor],
    ) -> None:
        wants_metrics = bool(settings.metrics_exporters or metric_readers)
        wants_traces = bool(settings.traces_exporters or span_processors)
        if wants_metrics or wants_traces:
            from otel_training import providers  # the SDK is not needed for the page alone

            about = providers.resource(settings, self._identity)
            if wants_traces:
                self._traces = providers.Traces(settings, about, span_processors, self._guard, self._lost)
                self._loops += self._traces.loops
            if wants_metrics:
                self._add_metrics(providers.Metrics(settings, about, metric_readers, self._guard, self._lost))

    def _add_metrics(self, metrics: Metrics) -> None:
        self._metrics.append(metrics)
        self._loops += metrics.loops

    def _make_run(self, state: State) -> Run:
        return Run(self._identity, state, self._guard, self._clock, {}, self._make_tracing())

    def _make_tracing(self) -> Tracing | None:
        if self._traces is None:
            return None
        settings, identity = self._settings, self._identity
        options = TracingOptions(
            step_span_ratio=settings.step_span_ratio,
            slow_step_factor=settings.slow_step_factor,
            window_s=settings.window_s,
        )
        return Tracing(
            self._traces.provider.get_tracer(catalog.SCOPE, VERSION),
            identity.point_attributes,
            identity.rank,
            options,
            os.environ,
            self._clock.now(),
            self._traces.wake,
        )

    @staticmethod
    def _start(loops: Sequence[ExportLoop]) -> None:
        for loop in loops:
            loop.start()

    def _lost(self, count: int, reason: str) -> None:
        with self._run.state.lock:
            self._run.state.add(catalog.BRIDGE_DROPS, count, reason)

    def attach(self, number: int) -> Attachment:
        """Return what the hook of this number feeds and how it leaves."""
        self._run.join(number)
        return Attachment(
            run=self._run,
            number=number,
            guard=self._guard,
            flush=self._flush,
            close=partial(self._close, number),
            location=f"scrape page at {self.page.address}/" if self.page and self.page.address else None,
        )

    def add(
        self,
        settings: Settings,
        metric_readers: Sequence[MetricReader],
        span_processors: Sequence[SpanProcessor],
    ) -> None:
        """Attach what a further ``start()`` for this run brings; what there is exports each number once."""
        if settings != self._settings:
            logger.warning(
                "telemetry of run %s is live already: its settings stay, those of this start() do nothing",
                self._identity.run_id,
            )
        if settings.disabled:
            return
        from otel_training import providers

        if metric_readers:
            about = providers.resource(settings, self._identity)
            alone = replace(self._settings, metrics_exporters=(), metrics_otlp=None)
            metrics = providers.Metrics(alone, about, metric_readers, self._guard, self._lost)
            self._add_metrics(metrics)
            process.instruments(metrics.provider, self._guard).attach(self._run)
            self._start(metrics.loops)
        if span_processors and self._traces is not None:
            loops = self._traces.add(span_processors)
            self._loops += loops
            self._start(loops)
        elif span_processors:
            logger.warning("run %s has no spans for these span_processors", self._identity.run_id)

    def _flush(self, timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        tickets = [(loop, loop.ask()) for loop in self._loops]  # so that they export side by side
        done = [loop.wait(ticket, deadline_s) for loop, ticket in tickets]
        return all(done)

    def begin_close(self, error: BaseException | None) -> None:
        """End the run and ask for the last exports, without waiting for them."""
        if self._deadline_s is None:
            self._deadline_s = time.monotonic() + self._settings.shutdown_timeout_s
            self._run.end(error)
            if self._sampler is not None:
                self._sampler.stop(min(self._deadline_s, time.monotonic() + LAST_READING_S))
            for loop in self._loops:
                loop.stop()

    def _close(self, number: int, error: BaseException | None) -> None:
        if process.leave(self._key, number, keep_totals=False):
            self.begin_close(error)
            self._finish_close()
        else:
            self._flush(self._settings.shutdown_timeout_s)

    def _finish_close(self) -> None:
        self._scrape.finish()
        deadline_s = self._deadline_s or 0.0
        undelivered = [loop.subject for loop in self._loops if not loop.join(deadline_s)]
        if undelivered:
            logger.warning("closed with %s not delivered", " and ".join(undelivered))
        self._scrape.close()

    def abandon_in_child(self) -> None:
        """Keep a forked child from serving and exporting what is the parent's."""
        self._scrape.abandon_in_child()
        for metrics in self._metrics:
            metrics.abandon_in_child()
