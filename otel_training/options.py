"""Every setting as data: its argument, its variables, its default, what is accepted and what it means.

``settings.resolve`` reads settings by these rows, and the table in ``docs/configuration.md`` is made from
them by ``python -m otel_training.options docs/configuration.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from otel_training import kinds, pairs
from otel_training.endpoint import GRPC, HTTP, Address, Addresses
from otel_training.kinds import Given, Kind

T = TypeVar("T")
SignalName = Literal["metrics", "traces"]

OTLP = "OTEL_EXPORTER_OTLP_"
DEVICE_SOURCES = ("cpu", "cuda", "mps", "xla", "nvml")


@dataclass(frozen=True, eq=False, kw_only=True)
class Option(Generic[T]):
    """A setting.

    Args:
        field: Name of the field of ``Settings`` or ``Otlp``.
        kind: What is accepted, and how it is read.
        meaning: One line for the docs.
        argument: Name of the argument of ``start()``; None when there is none.
        variables: Names of the variables, the first that is set wins; one of another signal is passed over.
        default: The value without argument and variable.
        default_text: How the docs tell the default, where the value itself does not say it.
    """

    field: str
    kind: Kind[T]
    meaning: str
    argument: str | None = None
    variables: tuple[str, ...] = ()
    default: T
    default_text: str = ""


@dataclass(frozen=True)
class Source:
    """Where settings come from.

    Args:
        arguments: Arguments of ``start()`` by name; None counts as not given.
        environ: The environment; empty variables count as unset.
    """

    arguments: Mapping[str, object]
    environ: Mapping[str, str]

    def given(self, option: Option[Any], signal: SignalName | None = None) -> Given | None:
        """Return what was given for a setting: the argument, else the first variable that is set."""
        value = self.arguments.get(option.argument) if option.argument else None
        if option.argument and value is not None:
            return Given(name=option.argument, value=value, is_text=False)
        for name in _variables_of(option, signal):
            if text := self.environ.get(name, "").strip():
                return Given(name=name, value=text, is_text=True)
        return None

    def read(self, option: Option[T], signal: SignalName | None = None) -> T:
        """Return the value of a setting.

        Raises:
            ValueError: What was given is not accepted.
        """
        given = self.given(option, signal)
        return option.default if given is None else option.kind.read(given)


def _variables_of(option: Option[Any], signal: SignalName | None) -> tuple[str, ...]:
    other = {"metrics": f"{OTLP}TRACES_", "traces": f"{OTLP}METRICS_", None: "-"}[signal]
    return tuple(name for name in option.variables if not name.startswith(other))


def _signals(suffix: str) -> tuple[str, str, str]:
    return f"{OTLP}METRICS_{suffix}", f"{OTLP}TRACES_{suffix}", f"{OTLP}{suffix}"


# fmt: off
# One entry reads as one row of a table; the formatter would make a page of each.

DISABLED = Option(
    field="disabled", kind=kinds.Flag(), default=False, variables=("OTEL_SDK_DISABLED",),
    meaning="Turns everything off: no page, no export, no thread. Wins over every argument.",
)
SERVICE_NAME = Option(
    field="service_name", kind=kinds.Text(), default="otel-training",
    argument="service_name", variables=("OTEL_SERVICE_NAME",),
    meaning="`service.name` of the resource. Attributes of the same source may give it as well.",
)
ATTRIBUTES: Option[Mapping[str, pairs.AttributeValue]] = Option(
    field="attributes", kind=pairs.Attributes(), default={}, default_text="none",
    argument="attributes", variables=("OTEL_RESOURCE_ATTRIBUTES",),
    meaning="Attributes of the resource. Those of the argument are added to those of the variable.",
)

METRICS_EXPORTERS: Option[tuple[str, ...] | None] = Option(
    field="metrics_exporters", kind=kinds.Words(("otlp", "prometheus", "console")), default=None,
    default_text="`prometheus`, and `otlp` with an endpoint", variables=("OTEL_METRICS_EXPORTER",),
    meaning="Where metrics go. The scrape page is `prometheus`; console is standard output.",
)
TRACES_EXPORTERS: Option[tuple[str, ...] | None] = Option(
    field="traces_exporters", kind=kinds.Words(("otlp", "console")), default=None,
    default_text="`otlp` with an endpoint, else none", variables=("OTEL_TRACES_EXPORTER",),
    meaning="Where spans go.",
)

ENDPOINT: Option[Address | None] = Option(
    field="endpoint", kind=Addresses(), default=None,
    default_text="`http://localhost:4318`, with gRPC `http://localhost:4317`",
    argument="otlp_endpoint", variables=_signals("ENDPOINT"),
    meaning="Base URL of the receiver; turns on OTLP for the signals it covers. See [Endpoints](#endpoints).",
)
PROTOCOL: Option[str | None] = Option(
    field="protocol", kind=kinds.Choice((GRPC, HTTP)), default=None, default_text="told by the endpoint",
    argument="otlp_protocol", variables=_signals("PROTOCOL"),
    meaning="Protocol of OTLP. `http/json` is refused: the Python exporters cannot speak it.",
)
INSECURE: Option[bool | None] = Option(
    field="insecure", kind=kinds.Flag(), default=None, default_text="true",
    variables=_signals("INSECURE"),
    meaning="Whether gRPC goes without TLS when the endpoint has no `http://` or `https://`.",
)
HEADERS = Option(
    field="headers", kind=pairs.Headers(), default=pairs.Secrets(), default_text="none",
    argument="otlp_headers", variables=_signals("HEADERS"),
    meaning="Headers sent with each request. The values are secrets and never printed.",
)
TIMEOUT = Option(
    field="timeout_s", kind=kinds.Seconds(0.1, 3600.0, short_is_seconds=True), default=10.0,
    variables=_signals("TIMEOUT"),
    meaning="Longest time for one export; in newer releases of the exporters retries are included.",
)
COMPRESSION = Option(
    field="compression", kind=kinds.Choice(("none", "gzip")), default="none",
    variables=_signals("COMPRESSION"), meaning="Compression of requests.",
)
CERTIFICATE: Option[kinds.File | None] = Option(
    field="certificate", kind=kinds.FilePath(), default=None, default_text="the system's",
    variables=_signals("CERTIFICATE"),
    meaning="Certificates of the authorities that the receiver's is checked by.",
)
CLIENT_KEY: Option[kinds.File | None] = Option(
    field="client_key", kind=kinds.FilePath(), default=None, default_text="none",
    variables=_signals("CLIENT_KEY"), meaning="Private key of the client, without a password.",
)
CLIENT_CERTIFICATE: Option[kinds.File | None] = Option(
    field="client_certificate", kind=kinds.FilePath(), default=None, default_text="none",
    variables=_signals("CLIENT_CERTIFICATE"), meaning="Certificate of the client.",
)
TEMPORALITY = Option(
    field="temporality", kind=kinds.Choice(("cumulative", "delta", "lowmemory")), default="cumulative",
    variables=(f"{OTLP}METRICS_TEMPORALITY_PREFERENCE",), meaning="Temporality of counters and histograms.",
)
HISTOGRAM_AGGREGATION = Option(
    field="histogram_aggregation",
    kind=kinds.Choice(("explicit_bucket_histogram", "base2_exponential_bucket_histogram")),
    default="explicit_bucket_histogram", variables=(f"{OTLP}METRICS_DEFAULT_HISTOGRAM_AGGREGATION",),
    meaning="Kind of histograms over OTLP.",
)
EXPORT_INTERVAL = Option(
    field="export_interval_s", kind=kinds.Seconds(0.1), default=60.0,
    argument="export_interval_s", variables=("OTEL_METRIC_EXPORT_INTERVAL",),
    meaning="Time between two exports of metrics.",
)
EXPORT_TIMEOUT = Option(
    field="export_timeout_s", kind=kinds.Seconds(0.1, 3600.0), default=30.0,
    variables=("OTEL_METRIC_EXPORT_TIMEOUT",), meaning="Longest time for collecting and exporting metrics.",
)

PROMETHEUS: Option[bool | None] = Option(
    field="prometheus", kind=kinds.Flag("True, False"), default=None,
    default_text="on unless `OTEL_METRICS_EXPORTER` leaves it out", argument="prometheus",
    meaning="Whether there is a scrape page.",
)
PROMETHEUS_HOST = Option(
    field="prometheus_host", kind=kinds.Text("a host name or an IP address", r"[A-Za-z0-9._:%-]+"),
    default="localhost", argument="prometheus_host", variables=("OTEL_EXPORTER_PROMETHEUS_HOST",),
    meaning="Address that the scrape page listens on; `0.0.0.0` or `::` opens it to the network.",
)
PROMETHEUS_PORT = Option(
    field="prometheus_port", kind=kinds.Whole(0, 65535), default=9464,
    argument="prometheus_port", variables=("OTEL_EXPORTER_PROMETHEUS_PORT",),
    meaning="Port of the scrape page, to which the local rank is added; 0 is any free one.",
)

PROMETHEUS_CERTIFICATE: Option[kinds.File | None] = Option(
    field="prometheus_certificate", kind=kinds.FilePath(), default=None, default_text="none: no TLS",
    argument="prometheus_certificate",
    meaning="Certificate of the scrape page, which then speaks HTTPS alone. Read at the start.",
)
PROMETHEUS_KEY: Option[kinds.File | None] = Option(
    field="prometheus_key", kind=kinds.FilePath(), default=None, default_text="in the certificate's file",
    argument="prometheus_key", meaning="Private key to it, without a password.",
)
PROMETHEUS_CLIENT_CA: Option[kinds.File | None] = Option(
    field="prometheus_client_ca", kind=kinds.FilePath(), default=None, default_text="none: any client",
    argument="prometheus_client_ca",
    meaning="Certificates of the authorities that each client's certificate is checked by (mutual TLS).",
)
PROMETHEUS_DISCOVERY: Option[kinds.File | None] = Option(
    field="prometheus_discovery", kind=kinds.FilePath("path of a .json file or of a folder"), default=None,
    default_text="none", argument="prometheus_discovery",
    meaning="Where Prometheus finds the page's address while it is there. See [Discovery](#discovery).",
)
PROMETHEUS_TEXTFILE: Option[kinds.File | None] = Option(
    field="prometheus_textfile", kind=kinds.FilePath("path of a .prom file or of a folder"), default=None,
    default_text="none", argument="prometheus_textfile",
    meaning="Where the last numbers are written for node_exporter. See [Text file](#text-file).",
)

SAMPLER = Option(
    field="sampler",
    kind=kinds.Choice((
        "always_on", "always_off", "traceidratio",
        "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio",
    )),
    default="parentbased_always_on", variables=("OTEL_TRACES_SAMPLER",), meaning="Which traces are kept.",
)
SAMPLER_RATIO = Option(
    field="sampler_ratio", kind=kinds.Number(0.0, 1.0), default=1.0, variables=("OTEL_TRACES_SAMPLER_ARG",),
    meaning="Part of the traces that the two `traceidratio` samplers keep; others do not read it.",
)
SPAN_DELAY = Option(
    field="span_delay_s", kind=kinds.Seconds(0.001), default=5.0, variables=("OTEL_BSP_SCHEDULE_DELAY",),
    meaning="Time between two exports of spans.",
)
SPAN_TIMEOUT = Option(
    field="span_timeout_s", kind=kinds.Seconds(0.1, 3600.0), default=30.0,
    variables=("OTEL_BSP_EXPORT_TIMEOUT",), meaning="Longest time for one export of spans.",
)
SPAN_QUEUE_SIZE = Option(
    field="span_queue_size", kind=kinds.Whole(1, 1_000_000), default=2048,
    variables=("OTEL_BSP_MAX_QUEUE_SIZE",),
    meaning="Ended spans kept for export; more are dropped and counted.",
)
SPAN_BATCH_SIZE: Option[int | None] = Option(
    field="span_batch_size", kind=kinds.Whole(1, 1_000_000), default=None,
    default_text="512, or the queue's size when smaller", variables=("OTEL_BSP_MAX_EXPORT_BATCH_SIZE",),
    meaning="Most spans in one export; not above the queue's size.",
)
STEP_SPAN_RATIO = Option(
    field="step_span_ratio", kind=kinds.Number(0.0, 1.0), default=0.0, argument="step_span_ratio",
    meaning="Part of the steps that get a span of their own.",
)
SLOW_STEP_FACTOR = Option(
    field="slow_step_factor", kind=kinds.Number(1.0), default=3.0, argument="slow_step_factor",
    meaning="A step that takes longer than so many medians gets a span in any case.",
)
WINDOW = Option(
    field="window_s", kind=kinds.Seconds(1.0), default=60.0, argument="window_s",
    meaning="Length of a window span, the summary of many steps.",
)

DEVICE: Option[str | None] = Option(
    field="device", kind=kinds.Device(), default=None, default_text="what the run says", argument="device",
    meaning="The device that this process trains on.",
)
DEVICES: Option[str | tuple[str, ...]] = Option(
    field="devices", kind=kinds.Devices(DEVICE_SOURCES), default="auto", argument="devices",
    meaning="Sources of device metrics; `all` adds every statistic of the CUDA allocator.",
)
DEVICE_INTERVAL = Option(
    field="device_interval_s", kind=kinds.Seconds(0.1), default=10.0, argument="device_interval_s",
    meaning="Time between two readings of the devices.",
)

SHUTDOWN_TIMEOUT = Option(
    field="shutdown_timeout_s", kind=kinds.Seconds(0.0, 3600.0), default=5.0, argument="shutdown_timeout_s",
    meaning="Budget of `close()` for everything still to be sent; what is left then is dropped and counted.",
)
LINGER = Option(
    field="linger_s", kind=kinds.Seconds(0.0, 3600.0), default=0.0, argument="linger_s",
    meaning="Longest time that the scrape page waits at the end for one more scrape.",
)

# fmt: on

OPTIONS: tuple[Option[Any], ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Option)
)
"""All settings, in the order of this file, which is the order of the docs."""

ARGUMENTS = frozenset(option.argument for option in OPTIONS if option.argument)
"""The arguments of ``start()`` that are settings."""

TABLE_START = "<!-- made by `python -m otel_training.options docs/configuration.md` -->"
TABLE_END = "<!-- end of the table -->"
NOTHING = "-"


def table() -> str:
    """Return the table of all settings in Markdown."""
    rows = ["| argument | variables | default | accepted | meaning |", "| --- | --- | --- | --- | --- |"]
    for option in OPTIONS:
        argument = f"`{option.argument}`" if option.argument else NOTHING
        variables = "<br>".join(f"`{name}`" for name in option.variables) or NOTHING
        rows.append(
            f"| {argument} | {variables} | {_default(option)} | {_accepted(option)} | {option.meaning} |"
        )
    return "\n".join(rows)


def with_table(text: str) -> str:
    """Return a document whose table between the two marks is made anew."""
    before, _, rest = text.partition(TABLE_START)
    _, _, after = rest.partition(TABLE_END)
    return f"{before}{TABLE_START}\n\n{table()}\n\n{TABLE_END}{after}"


def _default(option: Option[Any]) -> str:
    if option.default_text:
        return option.default_text
    if isinstance(option.default, float):
        return f"{option.default:g}{' s' if isinstance(option.kind, kinds.Seconds) else ''}"
    return f"`{str(option.default).lower() if isinstance(option.default, bool) else option.default}`"


def _accepted(option: Option[Any]) -> str:
    kind = option.kind
    if isinstance(kind, kinds.Seconds) and option.variables:
        as_text = kind.accepted_as_text
        return f"{kind.accepted}; the variable: {as_text}" if option.argument else as_text
    return kind.accepted


if __name__ == "__main__":
    document = Path(sys.argv[1])
    document.write_text(with_table(document.read_text(encoding="utf-8")), encoding="utf-8")
