"""Argument over variable over default; what is refused, and how it is told; the table in the docs."""

import dataclasses
import inspect
import math
import pickle
import re
from pathlib import Path

import pytest
import torch

from otel_training import options
from otel_training.otlp import Otlp
from otel_training.settings import Settings, resolve

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
E = "OTEL_EXPORTER_OTLP_"
URL = "http://collector:4318"


class Environment(dict):
    """An environment that remembers what it was asked for."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.asked = set()

    def get(self, name, default=None):
        self.asked.add(name)
        return super().get(name, default)


# ----------------------------------------------------------------------------------------------- precedence


def test_nothing_configured_is_a_scrape_page_and_no_traffic():
    settings = resolve({}, {})
    assert settings.prometheus
    assert (settings.prometheus_host, settings.prometheus_port) == ("localhost", 9464)
    assert settings.metrics_exporters == settings.traces_exporters == ()
    assert settings.metrics_otlp is settings.traces_otlp is None
    assert settings.service_name == "otel-training"
    assert not settings.disabled


@pytest.mark.parametrize(
    ("field", "argument", "variable", "default"),
    [
        ("service_name", ("service_name", "a"), ("OTEL_SERVICE_NAME", "b", "b"), "otel-training"),
        ("export_interval_s", ("export_interval_s", 2), ("OTEL_METRIC_EXPORT_INTERVAL", "3500", 3.5), 60.0),
        (
            "prometheus_host",
            ("prometheus_host", "::"),
            ("OTEL_EXPORTER_PROMETHEUS_HOST", "h", "h"),
            "localhost",
        ),
        ("prometheus_port", ("prometheus_port", 0), ("OTEL_EXPORTER_PROMETHEUS_PORT", "65535", 65535), 9464),
    ],
)
def test_argument_wins_over_variable_wins_over_default(field, argument, variable, default):
    name, value = argument
    variable_name, text, meant = variable
    environ = {variable_name: text}
    assert getattr(resolve({name: value}, environ), field) == value
    assert getattr(resolve({name: None}, environ), field) == meant
    assert getattr(resolve({}, {variable_name: f" {text} "}), field) == meant
    assert getattr(resolve({}, {variable_name: "  "}), field) == default
    assert getattr(resolve({}, {}), field) == default


@pytest.mark.parametrize(
    ("field", "suffix", "metrics", "both"),
    [
        ("timeout_s", "TIMEOUT", ("2000", 2.0), ("5000", 5.0)),
        ("compression", "COMPRESSION", ("GZIP", "gzip"), ("none", "none")),
        ("protocol", "PROTOCOL", ("gRPC", "grpc"), ("http/protobuf", "http/protobuf")),
        ("headers", "HEADERS", ("a=1", {"a": "1"}), ("b=2", {"b": "2"})),
    ],
)
def test_a_variable_of_one_signal_wins_over_the_general_one(field, suffix, metrics, both):
    environ = {f"{E}ENDPOINT": URL, f"{E}METRICS_{suffix}": metrics[0], f"{E}{suffix}": both[0]}
    settings = resolve({}, environ)
    assert getattr(settings.metrics_otlp, field) == metrics[1]
    assert getattr(settings.traces_otlp, field) == both[1]


def test_arguments_win_over_variables_of_one_signal():
    arguments = {
        "otlp_endpoint": "http://mine:1",
        "otlp_protocol": "http/protobuf",
        "otlp_headers": {"a": "1"},
    }
    environ = {
        f"{E}METRICS_ENDPOINT": "http://theirs:2/x",
        f"{E}METRICS_PROTOCOL": "grpc",
        f"{E}METRICS_HEADERS": "b=2",
    }
    otlp = resolve(arguments, environ).metrics_otlp
    assert otlp.endpoint.url == "http://mine:1/v1/metrics"
    assert otlp.protocol == "http/protobuf"
    assert otlp.headers == {"a": "1"}


@pytest.mark.parametrize(
    ("arguments", "environ", "name"),
    [
        ({}, {"OTEL_RESOURCE_ATTRIBUTES": "service.name=r"}, "r"),
        ({}, {"OTEL_RESOURCE_ATTRIBUTES": "service.name=r", "OTEL_SERVICE_NAME": "s"}, "s"),
        ({"attributes": {"service.name": "a"}}, {"OTEL_SERVICE_NAME": "s"}, "a"),
        ({"attributes": {"service.name": "a"}, "service_name": "n"}, {"OTEL_SERVICE_NAME": "s"}, "n"),
    ],
)
def test_service_name(arguments, environ, name):
    settings = resolve(arguments, environ)
    assert settings.service_name == name
    assert "service.name" not in settings.attributes


def test_attributes_of_the_code_are_added_to_those_of_the_environment():
    environ = {"OTEL_RESOURCE_ATTRIBUTES": "team=vision%20lab, rack = 7 ,note=a=b,"}
    arguments = {"attributes": {"rack": 8, "spot": True, "zones": ["a", "b"]}}
    assert resolve(arguments, environ).attributes == {
        "team": "vision lab",
        "rack": 8,
        "note": "a=b",
        "spot": True,
        "zones": ("a", "b"),
    }


# -------------------------------------------------------------------------------------------- what goes where


@pytest.mark.parametrize(
    ("arguments", "environ", "page", "metrics", "traces"),
    [
        ({}, {}, True, (), ()),
        ({"otlp_endpoint": URL}, {}, True, ("otlp",), ("otlp",)),
        ({}, {f"{E}ENDPOINT": URL}, True, ("otlp",), ("otlp",)),
        ({}, {f"{E}METRICS_ENDPOINT": URL}, True, ("otlp",), ()),
        ({}, {f"{E}TRACES_ENDPOINT": URL}, True, (), ("otlp",)),
        ({}, {"OTEL_METRICS_EXPORTER": "otlp"}, False, ("otlp",), ()),
        ({}, {"OTEL_METRICS_EXPORTER": "OTLP, Prometheus"}, True, ("otlp",), ()),
        ({}, {"OTEL_METRICS_EXPORTER": "none"}, False, (), ()),
        ({}, {"OTEL_METRICS_EXPORTER": "prometheus", f"{E}ENDPOINT": URL}, True, (), ("otlp",)),
        ({}, {"OTEL_TRACES_EXPORTER": "none", f"{E}ENDPOINT": URL}, True, ("otlp",), ()),
        ({}, {"OTEL_TRACES_EXPORTER": "console,otlp"}, True, (), ("otlp", "console")),
        ({}, {"OTEL_METRICS_EXPORTER": "console"}, False, ("console",), ()),
        ({"prometheus": True}, {"OTEL_METRICS_EXPORTER": "none"}, True, (), ()),
        ({"prometheus": False}, {"OTEL_METRICS_EXPORTER": "prometheus"}, False, (), ()),
        ({"prometheus": False}, {}, False, (), ()),
    ],
)
def test_what_goes_where(arguments, environ, page, metrics, traces):
    settings = resolve(arguments, environ)
    assert (settings.prometheus, settings.metrics_exporters, settings.traces_exporters) == (
        page,
        metrics,
        traces,
    )
    assert (settings.metrics_otlp is not None) == ("otlp" in metrics)
    assert (settings.traces_otlp is not None) == ("otlp" in traces)


@pytest.mark.parametrize("off", ["true", "TRUE", " True "])
def test_disabled_is_nothing_at_all_whatever_else_is_said(off):
    environ = {
        "OTEL_SDK_DISABLED": off,
        "OTEL_METRICS_EXPORTER": "no such exporter",
        f"{E}ENDPOINT": URL,
        "OTEL_TRACES_EXPORTER": "otlp,console",
    }
    settings = resolve({"prometheus": True, "otlp_endpoint": URL}, environ)
    assert settings.disabled
    assert not settings.prometheus
    assert settings.metrics_exporters == settings.traces_exporters == ()
    assert settings.metrics_otlp is settings.traces_otlp is None


def test_not_disabled_is_not_disabled():
    assert not resolve({}, {"OTEL_SDK_DISABLED": "False"}).disabled


def test_a_signal_that_does_not_go_out_does_not_judge_the_environment():
    environ = {f"{E}PROTOCOL": "http/json", f"{E}TIMEOUT": "soon", f"{E}HEADERS": "broken"}
    assert resolve({}, environ).metrics_otlp is None


def test_arguments_that_lead_nowhere_are_told(caplog):
    resolve({"otlp_headers": {"a": "hush-hush"}, "otlp_protocol": "grpc"}, {})
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.messages[0].startswith("otlp_protocol, otlp_headers: given, but nothing goes out over OTLP")
    assert "hush-hush" not in caplog.text


def test_arguments_that_lead_somewhere_are_not_told(caplog):
    resolve({"otlp_endpoint": URL}, {"OTEL_TRACES_EXPORTER": "none"})
    assert caplog.records == []


# ------------------------------------------------------------------------------------------------ endpoints


@pytest.mark.parametrize(
    ("endpoint", "metrics", "traces"),
    [
        ("http://h:4318", "http://h:4318/v1/metrics", "http://h:4318/v1/traces"),
        ("http://h:4318/", "http://h:4318/v1/metrics", "http://h:4318/v1/traces"),
        ("http://h:4318//", "http://h:4318/v1/metrics", "http://h:4318/v1/traces"),
        ("http://h:4318/v1/metrics", "http://h:4318/v1/metrics", "http://h:4318/v1/traces"),
        ("http://h:4318/v1/traces/", "http://h:4318/v1/metrics", "http://h:4318/v1/traces"),
        ("http://h:4318/a/b", "http://h:4318/a/b/v1/metrics", "http://h:4318/a/b/v1/traces"),
        ("http://h:4318/a/v1/metrics", "http://h:4318/a/v1/metrics", "http://h:4318/a/v1/traces"),
        ("http://h:4317/a", "http://h:4317/a/v1/metrics", "http://h:4317/a/v1/traces"),
        ("HTTPS://h", "https://h/v1/metrics", "https://h/v1/traces"),
        ("h:4318", "http://h:4318/v1/metrics", "http://h:4318/v1/traces"),
        ("http://[::1]:4318", "http://[::1]:4318/v1/metrics", "http://[::1]:4318/v1/traces"),
    ],
)
def test_base_url_over_http(endpoint, metrics, traces):
    for settings in (resolve({"otlp_endpoint": endpoint}, {}), resolve({}, {f"{E}ENDPOINT": endpoint})):
        assert settings.metrics_otlp.protocol == settings.traces_otlp.protocol == "http/protobuf"
        assert settings.metrics_otlp.endpoint.url == metrics
        assert settings.traces_otlp.endpoint.url == traces


@pytest.mark.parametrize(
    "endpoint", ["http://h:4318", "http://h/", "http://h/x?key=1", "http://h/v1/metrics"]
)
def test_endpoint_of_one_signal_is_used_as_it_is(endpoint):
    otlp = resolve({}, {f"{E}METRICS_ENDPOINT": endpoint, f"{E}ENDPOINT": "http://other"}).metrics_otlp
    assert otlp.endpoint.url == endpoint


@pytest.mark.parametrize(
    ("endpoint", "target", "insecure"),
    [
        ("h:4317", "h:4317", True),
        ("h:55680", "h:55680", True),
        ("h", "h:4317", True),
        ("127.0.0.1:4317", "127.0.0.1:4317", True),
        ("[::1]:4317", "[::1]:4317", True),
        ("http://h:4317", "h:4317", True),
        ("http://h:4317/", "h:4317", True),
        ("https://h:4317", "h:4317", False),
        ("unix:/run/otel.sock", "unix:/run/otel.sock", True),
        ("unix:///run/otel.sock", "unix:///run/otel.sock", True),
        ("dns:///h:4317", "dns:///h:4317", True),
        ("ipv4:10.0.0.7:4317", "ipv4:10.0.0.7:4317", True),
    ],
)
def test_endpoints_that_are_grpc_by_their_spelling(endpoint, target, insecure):
    for settings in (resolve({"otlp_endpoint": endpoint}, {}), resolve({}, {f"{E}ENDPOINT": endpoint})):
        for otlp in (settings.metrics_otlp, settings.traces_otlp):
            assert (otlp.protocol, otlp.endpoint.url, otlp.insecure) == ("grpc", target, insecure)


@pytest.mark.parametrize(
    ("protocol", "endpoint", "url", "insecure"),
    [
        ("grpc", "http://h:4318", "h:4318", True),
        ("grpc", "https://h", "h", False),
        ("grpc", "http://h", "h:4317", True),
        ("http/protobuf", "h:4317", "http://h:4317/v1/metrics", True),
        ("http/protobuf", "https://h:4317", "https://h:4317/v1/metrics", False),
        ("grpc", None, "localhost:4317", True),
        ("http/protobuf", None, "http://localhost:4318/v1/metrics", True),
        (None, None, "http://localhost:4318/v1/metrics", True),
    ],
)
def test_protocol_that_is_given_wins_over_the_spelling(protocol, endpoint, url, insecure):
    arguments = {"otlp_protocol": protocol, "otlp_endpoint": endpoint}
    otlp = resolve(arguments, {"OTEL_METRICS_EXPORTER": "otlp"}).metrics_otlp
    assert (otlp.endpoint.url, otlp.insecure) == (url, insecure)


@pytest.mark.parametrize(
    ("endpoint", "said", "insecure"),
    [
        ("h:4317", "false", False),
        ("h:4317", "true", True),
        ("unix:/s", "false", False),
        ("http://h:4317", "false", True),
        ("https://h:4317", "true", False),
        ("http://h:4318", "false", True),
    ],
)
def test_insecure_counts_where_the_endpoint_does_not_say(endpoint, said, insecure):
    environ = {f"{E}ENDPOINT": endpoint, f"{E}INSECURE": said}
    assert resolve({}, environ).metrics_otlp.insecure is insecure


@pytest.mark.parametrize(
    ("endpoint", "protocol"),
    [
        ("", None),
        ("ftp://h:4318", None),
        ("http://", None),
        ("http://h:port", None),
        ("http://h:65536", None),
        ("http://h:0", None),
        ("http:/h:4318", None),
        ("http://h:4318/a b", None),
        ("http://h:4318\n", "http/json"),
        ("http://h:4318/#part", None),
        ("http://h:4318/?key=value", None),
        ("http://[::1", None),
        ("dns://10.0.0.1/h:4317", None),
        ("http://hö:4318", None),
        ("unix:/run/otel.sock", "http/protobuf"),
        ("http://h:4317/path", "grpc"),
        (4317, None),
    ],
)
def test_endpoints_that_are_refused(endpoint, protocol):
    with pytest.raises(ValueError, match=r"^otlp_(endpoint|protocol)=.* is not accepted: .+"):
        resolve({"otlp_endpoint": endpoint, "otlp_protocol": protocol}, {})


# --------------------------------------------------------------------------------------------------- secrets


@pytest.mark.parametrize(
    ("given", "headers"),
    [
        ({"Authorization": "Bearer hush, hush=%20"}, {"authorization": "Bearer hush, hush=%20"}),
        ("A=Bearer%20hush,b= c d ,,e=f=g,", {"a": "Bearer hush", "b": "c d", "e": "f=g"}),
        ({}, {}),
    ],
)  # fmt: skip
def test_headers(given, headers):
    assert resolve({"otlp_endpoint": URL, "otlp_headers": given}, {}).metrics_otlp.headers == headers
    if isinstance(given, str):
        environ = {f"{E}ENDPOINT": URL, f"{E}HEADERS": given}
        assert resolve({}, environ).traces_otlp.headers == headers


def test_user_and_password_become_a_header():
    settings = resolve({"otlp_endpoint": "https://me:hush%2Fhush@h/x"}, {})
    assert settings.metrics_otlp.endpoint.url == "https://h/x/v1/metrics"
    assert settings.metrics_otlp.headers == {"authorization": "Basic bWU6aHVzaC9odXNo"}
    own = resolve({"otlp_endpoint": "https://me:hush@h", "otlp_headers": {"Authorization": "own"}}, {})
    assert own.metrics_otlp.headers == {"authorization": "own"}


def test_no_secret_is_printed():
    environ = {
        f"{E}METRICS_ENDPOINT": "https://me:hush1@h/x?key=hush2",
        f"{E}HEADERS": "authorization=hush3,x-token=hush4",
    }
    settings = resolve({}, environ)
    otlp = settings.metrics_otlp
    assert otlp.headers["x-token"] == "hush4"
    for shown in (
        repr(settings),
        str(settings),
        str(otlp),
        repr(otlp.endpoint),
        f"{otlp.endpoint} {otlp.headers}",
    ):
        assert "hush" not in shown
        assert "bWU6" not in shown
    assert repr(otlp.headers) == "{authorization: ***, x-token: ***}"
    assert str(otlp.endpoint) == "https://h/x?***"


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ("a=1,Authorization: Bearer hush", "(item 2)"),
        ("hush", "(item 1)"),
        ("Bearer hush=1", "(item 1)"),
        ("a=1,,b=hush%0Ahush", "(b=***)"),
        ("a=hush%C3%BC", "(a=***)"),
        ({"a": "1", "b": "hush\n"}, "(b=***)"),
        ({"a": b"hush"}, "(a=***)"),
        ({"a": ["hush"]}, "(a=***)"),
        ({"": "hush"}, "(item 1)"),
        ({7: "hush"}, "(item 1)"),
        (["hush"], "***"),
        (b"hush", "***"),
    ],
)
def test_headers_that_are_refused_without_being_printed(headers, told):
    with pytest.raises(ValueError, match=r"^otlp_headers=") as caught:
        resolve({"otlp_headers": headers}, {})
    assert str(caught.value).startswith(f"otlp_headers={told} is not accepted: ")
    assert "hush" not in repr(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://me:hush@h:port",
        "http://me:hush@",
        "me:hush@h:4317",
        "https://me:hu/hush@h",
        "https://me:hush#x@h",
        "https://me:hush?x@h:x",
        "ftp://me:hush@h",
        "http:/me:hush@h",
        "http://h/?key=hush",
        "http://h/#hush",
        "http://h/?mail=a@hush",
    ],
)
def test_endpoints_that_are_refused_without_printing_secrets(endpoint):
    with pytest.raises(ValueError, match=r"^otlp_endpoint=") as caught:
        resolve({"otlp_endpoint": endpoint}, {})
    assert "hush" not in str(caught.value)


# --------------------------------------------------------------------------------------- what is not accepted


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("service_name", "", "text that is not empty"),
        ("service_name", 7, "text that is not empty"),
        ("attributes", {"": 1}, "key=value pairs"),
        ("attributes", {"a": math.nan}, "finite float"),
        ("attributes", {"a": 2**63}, "64-bit int"),
        ("attributes", {"a": [1, "b"]}, "lists"),
        ("attributes", {"a": None}, "key=value pairs"),
        ("attributes", {"service.name": 7}, "text that is not empty"),
        ("attributes", ["a"], "key=value pairs"),
        ("otlp_protocol", "http/json", "grpc, http/protobuf"),
        ("otlp_protocol", 1, "grpc, http/protobuf"),
        ("export_interval_s", 0, "seconds from 0.1 to 86400"),
        ("export_interval_s", "10", "seconds from 0.1 to 86400"),
        ("export_interval_s", math.inf, "seconds from 0.1 to 86400"),
        ("prometheus", "yes", "True, False"),
        ("prometheus", 1, "True, False"),
        ("prometheus_host", "http://h", "a host name or an IP address"),
        ("prometheus_host", "", "a host name or an IP address"),
        ("prometheus_port", -1, "a whole number from 0 to 65535"),
        ("prometheus_port", 65536, "a whole number from 0 to 65535"),
        ("prometheus_port", 80.5, "a whole number from 0 to 65535"),
        ("prometheus_port", True, "a whole number from 0 to 65535"),
        ("device", "", "a device such as cpu, cuda:0 or xla:0"),
        ("device", 0, "a device such as cpu, cuda:0 or xla:0"),
        ("device", "cuda:x", "a device such as cpu, cuda:0 or xla:0"),
        ("devices", "tpu", "auto, all, or any of cpu, cuda, mps, xla, nvml"),
        ("devices", ["cpu", "auto"], "auto, all, or any of cpu, cuda, mps, xla, nvml"),
        ("devices", ["cpu", ["cuda"]], "auto, all, or any of cpu, cuda, mps, xla, nvml"),
        ("devices", 1, "auto, all, or any of cpu, cuda, mps, xla, nvml"),
        ("device_interval_s", 0.09, "seconds from 0.1"),
        ("step_span_ratio", 1.01, "a number from 0 to 1"),
        ("step_span_ratio", -0.1, "a number from 0 to 1"),
        ("step_span_ratio", math.nan, "a number from 0 to 1"),
        ("step_span_ratio", 10**400, "a number from 0 to 1"),
        ("slow_step_factor", 0.5, "a number from 1"),
        ("slow_step_factor", math.inf, "a number from 1"),
        ("window_s", 0, "seconds from 1"),
        ("shutdown_timeout_s", -1, "seconds from 0"),
        ("linger_s", -0.5, "seconds from 0"),
    ],
)
def test_argument_that_is_refused(name, value, accepted):
    with pytest.raises(ValueError, match=f"^{name}.* is not accepted: .*{re.escape(accepted)}"):
        resolve({name: value}, {})


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("OTEL_SDK_DISABLED", "1", "true, false"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a", "key=value pairs"),
        ("OTEL_RESOURCE_ATTRIBUTES", "=a", "key=value pairs"),
        ("OTEL_METRICS_EXPORTER", "zipkin", "otlp, prometheus, console"),
        ("OTEL_METRICS_EXPORTER", "otlp,none", "none alone"),
        ("OTEL_METRICS_EXPORTER", ",", "none alone"),
        ("OTEL_TRACES_EXPORTER", "prometheus", "otlp, console"),
        (f"{E}PROTOCOL", "http/json", "grpc, http/protobuf"),
        (f"{E}TRACES_PROTOCOL", "http", "grpc, http/protobuf"),
        (f"{E}ENDPOINT", "://", "host:port"),
        (f"{E}INSECURE", "yes", "true, false"),
        (f"{E}TIMEOUT", "0", "milliseconds from 100"),
        (f"{E}TIMEOUT", "-1", "milliseconds from 100"),
        (f"{E}TIMEOUT", "1e3", "milliseconds from 100"),
        (f"{E}METRICS_TIMEOUT", "9999999999", "milliseconds from 100 to 3600000"),
        (f"{E}COMPRESSION", "zip", "none, gzip"),
        (f"{E}METRICS_TEMPORALITY_PREFERENCE", "both", "cumulative, delta, lowmemory"),
        (f"{E}METRICS_DEFAULT_HISTOGRAM_AGGREGATION", "none", "explicit_bucket_histogram"),
        ("OTEL_EXPORTER_PROMETHEUS_PORT", "http", "a whole number from 0 to 65535"),
        ("OTEL_EXPORTER_PROMETHEUS_PORT", "9_464", "a whole number from 0 to 65535"),
        ("OTEL_EXPORTER_PROMETHEUS_PORT", "٩", "a whole number from 0 to 65535"),
        ("OTEL_EXPORTER_PROMETHEUS_HOST", "a b", "a host name or an IP address"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "1m", "milliseconds from 100 to 86400000"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "1.5", "milliseconds from 100 to 86400000"),
        ("OTEL_METRIC_EXPORT_TIMEOUT", "99", "milliseconds from 100 to 3600000"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote", "always_on, always_off, traceidratio"),
        ("OTEL_BSP_SCHEDULE_DELAY", "0", "milliseconds from 1"),
        ("OTEL_BSP_EXPORT_TIMEOUT", "nan", "milliseconds from 100"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "a whole number from 1"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "inf", "a whole number from 1"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2049", "OTEL_BSP_MAX_QUEUE_SIZE=2048"),
        (f"{E}CLIENT_KEY", "key.pem", "a client certificate goes with it"),
    ],
)
def test_variable_that_is_refused(name, value, accepted):
    environ = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_METRICS_EXPORTER": "otlp", name: value}
    with pytest.raises(ValueError, match=f"^{name}=.* is not accepted.*{re.escape(accepted)}") as caught:
        resolve({}, environ)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("ratio", ["2", "-0.1", "nan", "inf", "half", "1_0"])
def test_sampler_ratio_that_is_refused(ratio):
    environ = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": ratio}
    with pytest.raises(ValueError, match=r"^OTEL_TRACES_SAMPLER_ARG=.*: a number from 0 to 1"):
        resolve({}, environ)


def test_grpc_needs_the_client_key_beside_the_certificate():
    environ = {f"{E}ENDPOINT": "https://h:4317", f"{E}CLIENT_CERTIFICATE": "client.pem"}
    with pytest.raises(
        ValueError, match=r"^OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE='client.pem' .* client key"
    ):
        resolve({}, environ)


def test_a_name_that_is_no_setting_is_refused():
    with pytest.raises(
        ValueError, match=r"^otlp_endpont: no such setting; accepted are attributes, .*window_s$"
    ):
        resolve({"otlp_endpont": URL}, {})


# ------------------------------------------------------------------------------------------- what is accepted


@pytest.mark.parametrize(
    ("text", "timeout_s"), [("100", 0.1), ("10000", 10.0), ("10", 10.0), ("1", 1.0), ("99", 99.0)]
)
def test_timeout_in_milliseconds_and_in_the_seconds_of_the_python_exporters(text, timeout_s):
    assert resolve({}, {f"{E}ENDPOINT": URL, f"{E}TIMEOUT": text}).metrics_otlp.timeout_s == timeout_s


@pytest.mark.parametrize(
    ("given", "devices"),
    [
        ("auto", "auto"),
        ("all", "all"),
        ((), ()),
        ("cuda", ("cuda",)),
        (["nvml", "cpu", "cpu"], ("cpu", "nvml")),
        ({"xla"}, ("xla",)),
    ],
)
def test_devices(given, devices):
    assert resolve({"devices": given}, {}).devices == devices


@pytest.mark.parametrize("given", ["cuda:1", torch.device("cuda", 1)])
def test_device(given):
    assert resolve({"device": given}, {}).device == "cuda:1"


@pytest.mark.parametrize(
    ("environ", "queue_size", "batch_size"),
    [
        ({}, 2048, 512),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "100"}, 100, 100),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "100", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "100"}, 100, 100),
        ({"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "1"}, 2048, 1),
    ],
)
def test_span_batches(environ, queue_size, batch_size):
    settings = resolve({}, environ)
    assert (settings.span_queue_size, settings.span_batch_size) == (queue_size, batch_size)


def test_samplers_without_a_ratio_do_not_read_it():
    environ = {"OTEL_TRACES_SAMPLER": "ALWAYS_OFF", "OTEL_TRACES_SAMPLER_ARG": "whatever"}
    settings = resolve({}, environ)
    assert (settings.sampler, settings.sampler_ratio) == ("always_off", 1.0)


def test_settings_are_frozen():
    settings = resolve({"attributes": {"a": 1}}, {})
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.window_s = 1.0
    with pytest.raises(TypeError):
        settings.attributes["a"] = 2


def test_given_mappings_are_not_kept():
    attributes, headers = {"a": 1}, {"a": "1"}
    arguments = {"attributes": attributes, "otlp_headers": headers, "otlp_endpoint": URL}
    settings = resolve(arguments, {})
    attributes["b"] = headers["b"] = "2"
    assert settings.attributes == {"a": 1}
    assert settings.metrics_otlp.headers == {"a": "1"}


# -------------------------------------------------------------------------------------------------- the docs


def test_table_in_the_docs_is_the_one_made_from_the_code():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == options.with_table(text), (
        "rewrite it with: python -m otel_training.options docs/configuration.md"
    )


def test_every_field_is_a_row_and_every_row_a_field():
    fields = [field.name for cls in (Settings, Otlp) for field in dataclasses.fields(cls)]
    rows = [option.field for option in options.OPTIONS]
    assert sorted(rows) == sorted(set(fields) - {"metrics_otlp", "traces_otlp"})


def test_every_variable_that_is_asked_for_is_in_the_table_and_no_other():
    environ = Environment(
        {
            "OTEL_METRICS_EXPORTER": "otlp",
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_TRACES_SAMPLER": "traceidratio",
        }
    )
    resolve({}, environ)
    listed = [name for option in options.OPTIONS for name in option.variables]
    assert len(listed) == len(set(listed))
    assert environ.asked == set(listed)


def test_every_name_is_in_the_document_table_once():
    table = options.table()
    names = [name for option in options.OPTIONS for name in (option.argument, *option.variables) if name]
    cells = [cell for row in table.splitlines() for cell in row.split("|")[1:3]]
    assert sorted(re.findall(r"`(\w+)`", " ".join(cells))) == sorted(names)


def test_defaults_of_the_table_are_those_of_the_settings():
    settings = resolve({}, {"OTEL_METRICS_EXPORTER": "otlp"})
    for option in options.OPTIONS:
        if option.default_text:
            continue
        holder = settings if hasattr(settings, option.field) else settings.metrics_otlp
        assert getattr(holder, option.field) == option.default, option.field


def test_fields_are_given_by_keyword():
    kinds = {parameter.kind for parameter in inspect.signature(Settings).parameters.values()}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}


def test_secrets_stay_hidden_after_a_copy():
    otlp = resolve({"otlp_endpoint": URL, "otlp_headers": {"a": "hush"}}, {}).metrics_otlp
    copy = pickle.loads(pickle.dumps(otlp))
    assert copy == otlp
    assert "hush" not in repr(copy)
