"""From arguments and environment to one frozen set of settings: argument > ``OTEL_*`` variable > default.

Nothing configured means a scrape page and no traffic out. Each setting is a row of ``options.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from otel_training import options, otlp
from otel_training.kinds import File, Given
from otel_training.options import Source
from otel_training.otlp import Otlp
from otel_training.pairs import AttributeValue

logger = logging.getLogger("otel_training")

_SERVICE_NAME = "service.name"
_DEFAULT_BATCH_SIZE = 512


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that ``start()`` can be told, but for identity and Python objects.

    ``docs/configuration.md`` has the meaning, range and default of each field; times are in seconds.

    Args:
        disabled: Nothing at all is to be started.
        service_name: ``service.name`` of the resource.
        attributes: Further attributes of the resource, without ``service.name``.
        metrics_exporters: Any of ``otlp`` and ``console``; the scrape page is ``prometheus``.
        metrics_otlp: Present when ``otlp`` is among the exporters of metrics.
        traces_exporters: Any of ``otlp`` and ``console``.
        traces_otlp: Present when ``otlp`` is among the exporters of spans.
        temporality: ``cumulative``, ``delta`` or ``lowmemory``.
        histogram_aggregation: ``explicit_bucket_histogram`` or ``base2_exponential_bucket_histogram``.
        export_interval_s: Time between two exports of metrics, from 0.1.
        export_timeout_s: Longest time for one collection and export of metrics, from 0.1.
        prometheus: Whether there is a scrape page.
        prometheus_host: Address that the page listens on.
        prometheus_port: Its port, 0 to 65535; 0 is any free one.
        prometheus_certificate: Its certificate, which makes it speak HTTPS.
        prometheus_key: The key to that; None when it is in the same file.
        prometheus_client_ca: Authorities of the clients' certificates; None for any client.
        prometheus_discovery: File or folder that tells Prometheus of the page.
        prometheus_textfile: File or folder for the last numbers.
        sampler: Name of the sampler as in ``OTEL_TRACES_SAMPLER``.
        sampler_ratio: Part of the traces that ratio samplers keep, 0 to 1.
        span_delay_s: Time between two exports of spans, from 0.001.
        span_timeout_s: Longest time for one export of spans, from 0.1.
        span_queue_size: Ended spans kept for export, from 1.
        span_batch_size: Most spans in one export, from 1 to the size of the queue.
        step_span_ratio: Part of the steps with a span of their own, 0 to 1.
        slow_step_factor: Medians from which on a step is slow, from 1.
        window_s: Length of a window span, from 1.
        device: The device of this process as PyTorch names it; None when nobody said.
        devices: ``auto``, ``all``, or names of sources of device metrics.
        device_interval_s: Time between two readings of the devices, from 0.1.
        shutdown_timeout_s: Budget of ``close()``, from 0.
        linger_s: Longest wait of the page for a last scrape, from 0.
    """

    disabled: bool
    service_name: str
    attributes: Mapping[str, AttributeValue]
    metrics_exporters: tuple[str, ...]
    metrics_otlp: Otlp | None
    traces_exporters: tuple[str, ...]
    traces_otlp: Otlp | None
    temporality: str
    histogram_aggregation: str
    export_interval_s: float
    export_timeout_s: float
    prometheus: bool
    prometheus_host: str
    prometheus_port: int
    prometheus_certificate: File | None
    prometheus_key: File | None
    prometheus_client_ca: File | None
    prometheus_discovery: File | None
    prometheus_textfile: File | None
    sampler: str
    sampler_ratio: float
    span_delay_s: float
    span_timeout_s: float
    span_queue_size: int
    span_batch_size: int
    step_span_ratio: float
    slow_step_factor: float
    window_s: float
    device: str | None
    devices: str | tuple[str, ...]
    device_interval_s: float
    shutdown_timeout_s: float
    linger_s: float


def resolve(arguments: Mapping[str, object], environ: Mapping[str, str]) -> Settings:
    """Decide every setting: argument, else variable, else default.

    Args:
        arguments: Arguments of ``start()`` by name; None counts as not given.
        environ: The environment, such as ``os.environ``; empty variables count as unset.

    Raises:
        ValueError: A value is not accepted, or two do not go together. The message names the setting.
    """
    if unknown := sorted(set(arguments) - options.ARGUMENTS):
        accepted = ", ".join(sorted(options.ARGUMENTS))
        raise ValueError(f"{', '.join(unknown)}: no such setting; accepted are {accepted}")
    disabled = Source({}, environ).read(options.DISABLED)
    # Off must work whatever else the environment says.
    source = Source(arguments, {} if disabled else environ)
    read = source.read
    listed = read(options.METRICS_EXPORTERS)
    page = read(options.PROMETHEUS)
    metrics_otlp = otlp.resolve(source, "metrics", listed, disabled=disabled)
    traces_listed = read(options.TRACES_EXPORTERS)
    traces_otlp = otlp.resolve(source, "traces", traces_listed, disabled=disabled)
    if not (disabled or metrics_otlp or traces_otlp):
        _warn_of_idle_arguments(source)
    service_name, attributes = _resource(source)
    sampler = read(options.SAMPLER)
    queue_size = read(options.SPAN_QUEUE_SIZE)
    return Settings(
        disabled=disabled,
        service_name=service_name,
        attributes=MappingProxyType(attributes),
        metrics_exporters=_exporters(listed, metrics_otlp),
        metrics_otlp=metrics_otlp,
        traces_exporters=_exporters(traces_listed, traces_otlp),
        traces_otlp=traces_otlp,
        temporality=read(options.TEMPORALITY),
        histogram_aggregation=read(options.HISTOGRAM_AGGREGATION),
        export_interval_s=read(options.EXPORT_INTERVAL),
        export_timeout_s=read(options.EXPORT_TIMEOUT),
        prometheus=not disabled and (page if page is not None else listed is None or "prometheus" in listed),
        prometheus_host=read(options.PROMETHEUS_HOST),
        prometheus_port=read(options.PROMETHEUS_PORT),
        prometheus_certificate=read(options.PROMETHEUS_CERTIFICATE),
        prometheus_key=read(options.PROMETHEUS_KEY),
        prometheus_client_ca=read(options.PROMETHEUS_CLIENT_CA),
        prometheus_discovery=read(options.PROMETHEUS_DISCOVERY),
        prometheus_textfile=read(options.PROMETHEUS_TEXTFILE),
        sampler=sampler,
        # Other samplers have no argument, or one that is no ratio.
        sampler_ratio=read(options.SAMPLER_RATIO) if sampler.endswith("traceidratio") else 1.0,
        span_delay_s=read(options.SPAN_DELAY),
        span_timeout_s=read(options.SPAN_TIMEOUT),
        span_queue_size=queue_size,
        span_batch_size=_batch_size(source, queue_size),
        step_span_ratio=read(options.STEP_SPAN_RATIO),
        slow_step_factor=read(options.SLOW_STEP_FACTOR),
        window_s=read(options.WINDOW),
        device=read(options.DEVICE),
        devices=read(options.DEVICES),
        device_interval_s=read(options.DEVICE_INTERVAL),
        shutdown_timeout_s=read(options.SHUTDOWN_TIMEOUT),
        linger_s=read(options.LINGER),
    )


def _exporters(listed: tuple[str, ...] | None, signal_otlp: Otlp | None) -> tuple[str, ...]:
    otlp_first = ("otlp",) if signal_otlp else ()
    return (*otlp_first, *(name for name in listed or () if name == "console"))


def _resource(source: Source) -> tuple[str, dict[str, AttributeValue]]:
    """Return service.name and the other attributes; what stands in the code wins over the environment."""
    of_code = Source(source.arguments, {}).read(options.ATTRIBUTES)
    of_environ = Source({}, source.environ).read(options.ATTRIBUTES)
    name = (
        Source(source.arguments, {}).given(options.SERVICE_NAME)
        or _attribute(of_code, "attributes", is_text=False)
        or source.given(options.SERVICE_NAME)
        or _attribute(of_environ, "OTEL_RESOURCE_ATTRIBUTES", is_text=True)
    )
    service_name = options.SERVICE_NAME.kind.read(name) if name else options.SERVICE_NAME.default
    attributes = {**of_environ, **of_code}
    attributes.pop(_SERVICE_NAME, None)
    return service_name, attributes


def _attribute(attributes: Mapping[str, AttributeValue], setting: str, *, is_text: bool) -> Given | None:
    if _SERVICE_NAME not in attributes:
        return None
    return Given(name=f"{setting}[{_SERVICE_NAME}]", value=attributes[_SERVICE_NAME], is_text=is_text)


def _batch_size(source: Source, queue_size: int) -> int:
    given = source.given(options.SPAN_BATCH_SIZE)
    size = source.read(options.SPAN_BATCH_SIZE)
    if given is None or size is None:
        return min(_DEFAULT_BATCH_SIZE, queue_size)
    if size > queue_size:
        raise given.refusal(f"a whole number up to the queue's size, OTEL_BSP_MAX_QUEUE_SIZE={queue_size}")
    return size


def _warn_of_idle_arguments(source: Source) -> None:
    idle = [
        option.argument
        for option in (options.ENDPOINT, options.PROTOCOL, options.HEADERS)
        if option.argument and source.arguments.get(option.argument) is not None
    ]
    if idle:
        logger.warning(
            "%s: given, but nothing goes out over OTLP; it takes an endpoint, or where OTEL_METRICS_EXPORTER"
            " or OTEL_TRACES_EXPORTER is set, otlp among what it lists",
            ", ".join(idle),
        )
