"""``start()``: telemetry with a pipeline of its own, from arguments and environment."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any

from otel_training import process
from otel_training.hook import OTelHook
from otel_training.identity import detect
from otel_training.life_cycle import Pipeline
from otel_training.plain_loop import PlainRun, run_loop
from otel_training.settings import resolve

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.trace import SpanProcessor


class Telemetry:
    """What ``start()`` started; as a context manager it closes at the end, and an exception fails the run.

    Args:
        pipeline: Does the work.
        hook: What the trainer's events go to.

    Attributes:
        hook: Attach it to a log, or call ``hook.on_event(event, payload)``.
    """

    def __init__(self, pipeline: Pipeline, hook: OTelHook) -> None:
        self._pipeline = pipeline
        self.hook = hook

    @property
    def url(self) -> str | None:
        """Where Prometheus scrapes, such as ``http://127.0.0.1:9464/metrics``; None without a page."""
        return self._pipeline.page.url if self._pipeline.page else None

    def run(self, **start: Any) -> AbstractContextManager[PlainRun]:
        """Return a context manager around a plain training loop.

        It emits train_start with ``start`` as its fields, train_step for each ``run.step(loss=...)``, and the
        train_end that fits the way in which the loop was left.
        """
        return run_loop(self.hook.on_event, start)

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Hand over everything recorded so far; return whether that was done in ``timeout_s`` seconds."""
        return self.hook.flush(timeout_s)

    def close(self, error: BaseException | None = None) -> None:
        """End the run if no event has, deliver what can be within the budget, and let everything go.

        Args:
            error: The exception that ended the run, if one did.
        """
        self.hook.close(error)

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(error)


def start(
    *,
    run_name: str | None = None,
    run_id: str | None = None,
    service_name: str | None = None,
    attributes: Mapping[str, str | bool | int | float] | None = None,
    otlp_endpoint: str | None = None,
    otlp_protocol: str | None = None,
    otlp_headers: Mapping[str, str] | str | None = None,
    export_interval_s: float | None = None,
    prometheus: bool | None = None,
    prometheus_host: str | None = None,
    prometheus_port: int | None = None,
    prometheus_certificate: str | PathLike[str] | None = None,
    prometheus_key: str | PathLike[str] | None = None,
    prometheus_client_ca: str | PathLike[str] | None = None,
    prometheus_discovery: str | PathLike[str] | None = None,
    prometheus_textfile: str | PathLike[str] | None = None,
    device: str | None = None,
    devices: str | Sequence[str] = "auto",
    device_interval_s: float = 10.0,
    step_span_ratio: float = 0.0,
    slow_step_factor: float = 3.0,
    window_s: float = 60.0,
    metric_readers: Sequence[MetricReader] = (),
    span_processors: Sequence[SpanProcessor] = (),
    shutdown_timeout_s: float = 5.0,
    linger_s: float = 0.0,
) -> Telemetry:
    """Start telemetry for one run of this process.

    Explicit argument > ``OTEL_*`` environment > default; ``docs/configuration.md`` has them all. Nothing
    configured means a scrape page on localhost and no traffic out.

    Args:
        run_name: Readable name of the run; its id when None.
        run_id: Identity of the run; ``OTEL_TRAINING_RUN_ID``, the launcher's or a random one when None.
        service_name: ``service.name`` of the resource.
        attributes: Further attributes of the resource.
        otlp_endpoint: Base URL of an OTLP receiver, or ``host:port`` for gRPC.
        otlp_protocol: ``grpc`` or ``http/protobuf``.
        otlp_headers: Headers of each OTLP request; never shown.
        export_interval_s: Seconds between exports of metrics.
        prometheus: Whether there is a scrape page.
        prometheus_host: Address that the page listens on.
        prometheus_port: Its port, to which the local rank is added; the next free one when taken; 0 = any.
        prometheus_certificate: Certificate in PEM, which makes the page speak HTTPS.
        prometheus_key: Private key to it; in the same file when None.
        prometheus_client_ca: Authorities by which clients' certificates are checked; None for any client.
        prometheus_discovery: File or folder that tells Prometheus of the page while it is there.
        prometheus_textfile: File or folder for the last numbers, as node_exporter's textfile collector reads.
        device: The device of this process as PyTorch names it.
        devices: Which device metrics are read: ``auto``, ``all`` or names of sources; ``()`` for none.
        device_interval_s: Seconds between two readings.
        step_span_ratio: Part of the steps with a span of their own, 0 to 1.
        slow_step_factor: A step that takes more than this many medians has a span too.
        window_s: Seconds of a window span.
        metric_readers: Readers of yours to attach; shut down on close.
        span_processors: Span processors of yours to attach; shut down on close.
        shutdown_timeout_s: Longest time that closing waits for deliveries.
        linger_s: Longest time that closing waits for one more scrape.

    Raises:
        ValueError: An argument or a variable is not accepted; the message names it and what is accepted.
    """
    identity = detect(os.environ, run_id=run_id, run_name=run_name)
    settings = resolve(
        {
            "service_name": service_name,
            "attributes": attributes,
            "otlp_endpoint": otlp_endpoint,
            "otlp_protocol": otlp_protocol,
            "otlp_headers": otlp_headers,
            "export_interval_s": export_interval_s,
            "prometheus": prometheus,
            "prometheus_host": prometheus_host,
            "prometheus_port": prometheus_port,
            "prometheus_certificate": prometheus_certificate,
            "prometheus_key": prometheus_key,
            "prometheus_client_ca": prometheus_client_ca,
            "prometheus_discovery": prometheus_discovery,
            "prometheus_textfile": prometheus_textfile,
            "device": device,
            "devices": devices,
            "device_interval_s": device_interval_s,
            "step_span_ratio": step_span_ratio,
            "slow_step_factor": slow_step_factor,
            "window_s": window_s,
            "shutdown_timeout_s": shutdown_timeout_s,
            "linger_s": linger_s,
        },
        os.environ,
    )
    key, number = ("start", identity.run_id, identity.rank), process.next_number()
    pipeline, made = process.share(
        key, lambda: Pipeline(key, number, settings, identity, metric_readers, span_processors)
    )
    attachment = pipeline.attach(number)
    if not made:
        pipeline.add(settings, metric_readers, span_processors)
    return Telemetry(pipeline, OTelHook.attached(attachment))


@functools.wraps(start, assigned=())  # whoever looks for the parameters sees those of start()
def start_hook(**arguments: Any) -> OTelHook:
    """Return the hook of ``start(**arguments)``, whose close() closes all; ``otel`` in a training config."""
    return start(**arguments).hook
