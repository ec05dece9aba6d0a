"""OpenTelemetry's own exporters and samplers, built from the settings and from nothing else.

Every argument is passed, so that what the process environment says at that moment cannot disagree with the
settings. The packages for gRPC and HTTP are imported only when they are used.
"""

from __future__ import annotations

import logging
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from otel_training.endpoint import GRPC
from otel_training.kinds import File
from otel_training.otlp import Otlp
from otel_training.settings import Settings
from otel_training.tls_files import load_authorities, load_own

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.sdk.trace.sampling import Sampler


def metric_exporters(settings: Settings, out: TextIO | None = None) -> list[MetricExporter]:
    """Build the exporters of metrics that the settings ask for; often none.

    Args:
        settings: The settings.
        out: Where the console exporter writes; standard output by default.

    Raises:
        ValueError: A TLS file cannot be used; the message names the setting.
    """
    exporters: list[MetricExporter] = []
    if settings.metrics_otlp:
        exporters.append(_otlp_metric_exporter(settings, settings.metrics_otlp))
    if "console" in settings.metrics_exporters:
        from opentelemetry.sdk.metrics.export import ConsoleMetricExporter

        exporters.append(ConsoleMetricExporter(out=out or sys.stdout))
    return exporters


def span_exporters(settings: Settings, out: TextIO | None = None) -> list[SpanExporter]:
    """Build the exporters of spans that the settings ask for; often none.

    Args:
        settings: The settings.
        out: Where the console exporter writes; standard output by default.

    Raises:
        ValueError: A TLS file cannot be used; the message names the setting.
    """
    exporters: list[SpanExporter] = []
    if settings.traces_otlp:
        exporters.append(_otlp_span_exporter(settings.traces_otlp))
    if "console" in settings.traces_exporters:
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        exporters.append(ConsoleSpanExporter(out=out or sys.stdout))
    return exporters


def sampler(settings: Settings) -> Sampler:
    """Build the sampler of traces that the settings name."""
    from opentelemetry.sdk.trace import sampling

    based_on_parent = settings.sampler.startswith("parentbased_")
    root: Sampler = {
        "always_on": sampling.ALWAYS_ON,
        "always_off": sampling.ALWAYS_OFF,
        "traceidratio": sampling.TraceIdRatioBased(settings.sampler_ratio),
    }[settings.sampler.removeprefix("parentbased_")]
    return sampling.ParentBased(root) if based_on_parent else root


def _otlp_metric_exporter(settings: Settings, otlp: Otlp) -> MetricExporter:
    preferences: dict[str, Any] = {
        "preferred_temporality": _temporality(settings.temporality),
        "preferred_aggregation": _aggregation(settings.histogram_aggregation),
    }
    if otlp.protocol == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc import metric_exporter as grpc

        return grpc.OTLPMetricExporter(**_grpc_arguments(otlp), **preferences)
    from opentelemetry.exporter.otlp.proto.http import metric_exporter as http

    with _no_echo_of_headers():
        exporter: MetricExporter = http.OTLPMetricExporter(**_http_arguments(otlp), **preferences)
    return exporter


def _otlp_span_exporter(otlp: Otlp) -> SpanExporter:
    if otlp.protocol == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as grpc

        return grpc.OTLPSpanExporter(**_grpc_arguments(otlp))
    from opentelemetry.exporter.otlp.proto.http import trace_exporter as http

    with _no_echo_of_headers():
        return http.OTLPSpanExporter(**_http_arguments(otlp))


def _http_arguments(otlp: Otlp) -> dict[str, Any]:
    from opentelemetry.exporter.otlp.proto.http import Compression

    from otel_training.http_session import exact_session

    _check_tls_files(otlp)
    return {
        "endpoint": otlp.endpoint.url,
        "headers": dict(otlp.headers),
        "timeout": otlp.timeout_s,
        "compression": Compression.Gzip if otlp.compression == "gzip" else Compression.NoCompression,
        "session": exact_session(otlp),
    }


def _grpc_arguments(otlp: Otlp) -> dict[str, Any]:
    import grpc

    credentials = None
    if not otlp.insecure:
        _check_tls_files(otlp)
        credentials = grpc.ssl_channel_credentials(
            _content(otlp.certificate), _content(otlp.client_key), _content(otlp.client_certificate)
        )
    return {
        "endpoint": otlp.endpoint.url,
        "insecure": otlp.insecure,
        "credentials": credentials,
        "headers": _GivenTuple(otlp.headers.items()),
        "timeout": otlp.timeout_s,
        "compression": grpc.Compression.Gzip
        if otlp.compression == "gzip"
        else grpc.Compression.NoCompression,
    }


@contextmanager
def _no_echo_of_headers() -> Iterator[None]:
    """Keep the HTTP exporters from logging headers.

    They read those of the environment whatever they are given, and log in full what they cannot parse.
    """

    def drop(_: logging.LogRecord) -> bool:
        return False

    parser = logging.getLogger("opentelemetry.util.re")
    parser.addFilter(drop)
    try:
        yield
    finally:
        parser.removeFilter(drop)


class _GivenTuple(tuple[tuple[str, str], ...]):
    """Headers that are true though empty: the gRPC exporter takes false ones from the environment."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return True


def _content(file: File | None) -> bytes | None:
    return Path(file.path).read_bytes() if file else None


def _check_tls_files(otlp: Otlp) -> None:
    """Try the files now: gRPC and requests would tell only at the first export, and not which setting."""
    if otlp.insecure:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if otlp.certificate:
        load_authorities(context, otlp.certificate)
    load_own(context, otlp.client_certificate, otlp.client_key)


def _temporality(preference: str) -> dict[type, Any]:
    """Source: OpenTelemetry's specification of the OTLP metric exporter, temporality preference."""
    from opentelemetry.sdk import metrics
    from opentelemetry.sdk.metrics.export import AggregationTemporality

    delta: tuple[type, ...] = {
        "cumulative": (),
        "delta": (metrics.Counter, metrics.ObservableCounter, metrics.Histogram),
        "lowmemory": (metrics.Counter, metrics.Histogram),
    }[preference]
    kinds: tuple[type, ...] = (
        metrics.Counter,
        metrics.UpDownCounter,
        metrics.Histogram,
        metrics.ObservableCounter,
        metrics.ObservableUpDownCounter,
        metrics.ObservableGauge,
    )
    return {
        kind: AggregationTemporality.DELTA if kind in delta else AggregationTemporality.CUMULATIVE
        for kind in kinds
    }


def _aggregation(histogram: str) -> dict[type, Any]:
    from opentelemetry.sdk import metrics
    from opentelemetry.sdk.metrics import view

    if histogram == "base2_exponential_bucket_histogram":
        return {metrics.Histogram: view.ExponentialBucketHistogramAggregation()}
    # Not ExplicitBucketHistogramAggregation: older SDKs take its bounds, not those that instruments advise.
    return {metrics.Histogram: view.DefaultAggregation()}
