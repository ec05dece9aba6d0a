"""open-telemetry/opentelemetry-python#5628: an endpoint argument is used as is, so posts go to the root."""

import pytest

import otel_training


def one_step(**arguments):
    telemetry = otel_training.start(prometheus=False, devices=(), **arguments)
    telemetry.hook.on_event("train_start", {"start_step": 0})
    telemetry.hook.on_event("train_step", {"step": 1})
    telemetry.close()


@pytest.mark.parametrize(
    ("spelling", "prefix"),
    [
        ("", ""), ("/", ""), ("/v1/metrics", ""), ("/v1/traces", ""), ("/v1/metrics/", ""),
        ("/prefix", "/prefix"), ("/prefix/", "/prefix"), ("/prefix/v1/metrics", "/prefix"),
    ],
)  # fmt: skip
def test_one_base_url_reaches_both_paths_in_every_spelling(otlp_sink, spelling, prefix):
    one_step(otlp_endpoint=otlp_sink.url + spelling, otlp_protocol="http/protobuf")
    assert otlp_sink.paths == {f"{prefix}/v1/metrics", f"{prefix}/v1/traces"}


def test_the_same_by_the_environment(otlp_sink, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", otlp_sink.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    one_step()
    assert otlp_sink.paths == {"/v1/metrics", "/v1/traces"}


def test_an_endpoint_of_one_signal_is_used_as_it_is(otlp_sink, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{otlp_sink.url}/here")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/protobuf")
    one_step()
    assert otlp_sink.paths == {"/here"}


@pytest.mark.parametrize("scheme", ["", "http://"])
def test_grpc_takes_host_and_port_with_and_without_scheme_and_is_insecure(otlp_grpc_sink, scheme):
    one_step(otlp_endpoint=f"{scheme}{otlp_grpc_sink.address}", otlp_protocol="grpc")
    assert otlp_grpc_sink.calls == {"MetricsService", "TraceService"}
