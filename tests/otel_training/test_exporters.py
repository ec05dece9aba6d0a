"""Real exporters, sent to real servers: what arrives, where, and by which settings."""

import gzip
import io
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from otel_training.exporters import metric_exporters, sampler, span_exporters
from otel_training.settings import resolve

E = "OTEL_EXPORTER_OTLP_"
KEY_AND_CERTIFICATE = Path(__file__).with_name("localhost.pem")
KEY_WITH_PASSWORD = """-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAgpoMmcwo9gJAICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEAQIEEHynMOkYriWdXvM6J1Y7QYgEgZB6
ElPI+y0OXgekviDlolqmkqp25VsOe8FbX//FnJhnfJsVc6EqfV4tGsoHzg7RoPQt
rque1vZYjGODjEkb8iUVMg9QPumYU9kDKUbSiNL6fUogooP5iL4iJfP0fcb5MKSD
/583lQ4JlHTexy6lswgCYBGiLcHjN7tRVuVCcUAQD7T/5vP6V74QsG/x3UKMQrM=
-----END ENCRYPTED PRIVATE KEY-----
"""


class Request:
    """What a server received."""

    def __init__(self, path, headers, body, time_left_s=None):
        self.path = path
        self.time_left_s = time_left_s
        self.headers = {name.lower(): value for name, value in headers}
        self.body = body


class Receiver:
    """Remembers what arrived; ``url`` and ``address`` are where it listens."""

    def __init__(self, port, *, tls=False):
        self.requests = []
        self.address = f"localhost:{port}"
        self.url = f"http{'s' if tls else ''}://{self.address}"

    @property
    def paths(self):
        return sorted(request.path for request in self.requests)


@contextmanager
def http_receiver(tls=None):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.requests.append(Request(self.path, self.headers.items(), body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    # A client that refuses our certificate breaks the connection: that is for the client's side to assert.
    class Server(ThreadingHTTPServer):
        def handle_error(self, request, client_address):
            pass

    with Server(("localhost", 0), Handler) as server:
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        receiver = Receiver(server.server_port, tls=tls is not None)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def grpc_receiver(credentials=None):
    def keep(path):
        def export(self, request, context):
            metadata, time_left_s = context.invocation_metadata(), context.time_remaining()
            receiver.requests.append(Request(path, metadata, request, time_left_s))
            response = (metrics_service_pb2.ExportMetricsServiceResponse if path == "metrics"
                        else trace_service_pb2.ExportTraceServiceResponse)  # fmt: skip
            return response()

        return export

    metrics = type("Metrics", (metrics_service_pb2_grpc.MetricsServiceServicer,), {"Export": keep("metrics")})
    traces = type("Traces", (trace_service_pb2_grpc.TraceServiceServicer,), {"Export": keep("traces")})
    server = grpc.server(ThreadPoolExecutor(2))
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(metrics(), server)
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(traces(), server)
    if credentials:
        port = server.add_secure_port("localhost:0", credentials)
    else:
        port = server.add_insecure_port("localhost:0")
    receiver = Receiver(port, tls=credentials is not None)
    server.start()
    try:
        yield receiver
    finally:
        server.stop(grace=None).wait()


class Relay:
    """Passes the bytes of one connection on and counts what the client sent."""

    def __init__(self, listener, target):
        self.address = f"localhost:{listener.getsockname()[1]}"
        self.received_bytes = 0
        self._listener = listener
        self._target = target
        self._ends = ()

    def run(self):
        client, _ = self._listener.accept()
        with client, socket.create_connection(self._target) as server:
            self._ends = (client, server)
            back = threading.Thread(target=self._pass_back, args=(server, client))
            back.start()
            with suppress(OSError):
                while data := client.recv(65536):
                    self.received_bytes += len(data)
                    server.sendall(data)
            self.stop()
            back.join()

    def stop(self):
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _pass_back(server, client):
        with suppress(OSError):
            while data := server.recv(65536):
                client.sendall(data)


@contextmanager
def counting_relay(receiver):
    host, _, port = receiver.address.rpartition(":")
    with socket.create_server(("localhost", 0)) as listener:
        relay = Relay(listener, (host, int(port)))
        thread = threading.Thread(target=relay.run)
        thread.start()
        try:
            yield relay
        finally:
            relay.stop()
            thread.join()


def some_metrics(exporter, **attributes):
    """One counter and one histogram, with the preferences of the exporter."""
    reader = InMemoryMetricReader(exporter._preferred_temporality, exporter._preferred_aggregation)
    provider = MeterProvider([reader])
    meter = provider.get_meter("tests")
    meter.create_counter("steps").add(3, attributes)
    meter.create_histogram("duration").record(0.5)
    data = reader.get_metrics_data()
    provider.shutdown()
    return data


def some_spans():
    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    provider.get_tracer("tests").start_span("run").end()
    return memory.get_finished_spans()


def send(settings):
    """Send metrics and spans by the exporters of the settings, and return whether all of them arrived."""
    outcomes = []
    for exporter in metric_exporters(settings):
        outcomes.append(exporter.export(some_metrics(exporter)) is MetricExportResult.SUCCESS)
        close(exporter)
    for exporter in span_exporters(settings):
        outcomes.append(exporter.export(some_spans()) is SpanExportResult.SUCCESS)
        close(exporter)
    return bool(outcomes) and all(outcomes)


def close(exporter):
    exporter.shutdown()
    # Release 1.30 leaves the session of the metric exporter, and the channel of both, to the collector.
    if hasattr(exporter, "_session"):
        exporter._session.close()


# -------------------------------------------------------------------------------------------------- over HTTP


@pytest.mark.parametrize("by", ["argument", "environment"])
@pytest.mark.parametrize(
    ("spelling", "prefix"),
    [
        ("{url}", ""),
        ("{url}/", ""),
        ("{url}/v1/metrics", ""),
        ("{url}/v1/traces/", ""),
        ("{url}/prefix", "/prefix"),
        ("{url}/prefix/", "/prefix"),
        ("{url}/prefix/v1/traces", "/prefix"),
    ],
)
def test_one_base_url_reaches_exactly_two_paths(spelling, prefix, by):
    with http_receiver() as receiver:
        endpoint = spelling.format(url=receiver.url)
        if by == "argument":
            settings = resolve({"otlp_endpoint": endpoint}, {})
        else:
            settings = resolve({}, {f"{E}ENDPOINT": endpoint})
        assert send(settings)
    assert receiver.paths == [f"{prefix}/v1/metrics", f"{prefix}/v1/traces"]


def test_host_and_port_over_http():
    with http_receiver() as receiver:
        assert send(resolve({"otlp_endpoint": receiver.address, "otlp_protocol": "http/protobuf"}, {}))
    assert receiver.paths == ["/v1/metrics", "/v1/traces"]


def test_endpoints_of_one_signal_are_used_as_they_are():
    with http_receiver() as receiver:
        environ = {
            f"{E}METRICS_ENDPOINT": f"{receiver.url}/in?tenant=a",
            f"{E}TRACES_ENDPOINT": receiver.url,
            f"{E}ENDPOINT": "http://localhost:1",
        }
        assert send(resolve({}, environ))
    assert receiver.paths == ["/", "/in?tenant=a"]


def test_what_arrives_over_http_is_what_was_sent():
    with http_receiver() as receiver:
        assert send(resolve({"otlp_endpoint": receiver.url}, {}))
    metrics, traces = sorted(receiver.requests, key=lambda request: request.path)
    request = metrics_service_pb2.ExportMetricsServiceRequest.FromString(metrics.body)
    assert metric_names(request) == ["steps", "duration"]
    assert span_names(trace_service_pb2.ExportTraceServiceRequest.FromString(traces.body)) == ["run"]
    assert metrics.headers["content-type"] == traces.headers["content-type"] == "application/x-protobuf"


def test_gzip_arrives_as_gzip():
    with http_receiver() as receiver:
        assert send(resolve({"otlp_endpoint": receiver.url}, {f"{E}COMPRESSION": "gzip"}))
    for request in receiver.requests:
        assert request.headers["content-encoding"] == "gzip"
        assert gzip.decompress(request.body)


def test_without_compression_nothing_is_compressed(monkeypatch):
    monkeypatch.setenv(f"{E}COMPRESSION", "gzip")
    with http_receiver() as receiver:
        assert send(resolve({"otlp_endpoint": receiver.url}, {}))
    assert [request.headers.get("content-encoding") for request in receiver.requests] == [None, None]


def test_user_and_password_of_the_url_arrive_as_a_header():
    with http_receiver() as receiver:
        assert send(resolve({"otlp_endpoint": f"http://me:pass@{receiver.address}"}, {}))
    assert {request.headers["authorization"] for request in receiver.requests} == {"Basic bWU6cGFzcw=="}


# -------------------------------------------------------------------------------------------------- over gRPC


@pytest.mark.parametrize("by", ["argument", "environment"])
@pytest.mark.parametrize(
    "spelling", ["{address}", "http://{address}", "http://{address}/", "dns:///{address}"]
)
def test_spellings_of_an_insecure_grpc_endpoint(spelling, by):
    with grpc_receiver() as receiver:
        endpoint = spelling.format(address=receiver.address)
        if by == "argument":
            settings = resolve({"otlp_endpoint": endpoint, "otlp_protocol": "grpc"}, {})
        else:
            settings = resolve({}, {f"{E}ENDPOINT": endpoint, f"{E}PROTOCOL": "grpc"})
        assert send(settings)
    assert receiver.paths == ["metrics", "traces"]


def test_host_and_port_alone_are_grpc():
    with grpc_receiver() as receiver:
        assert send(resolve({"otlp_endpoint": receiver.address}, {}))
    metrics, traces = sorted(receiver.requests, key=lambda request: request.path)
    assert metric_names(metrics.body) == ["steps", "duration"]
    assert span_names(traces.body) == ["run"]


@pytest.mark.parametrize(("compression", "fraction"), [("none", 1.0), ("gzip", 0.2)])
def test_gzip_over_grpc_makes_fewer_bytes(compression, fraction):
    with grpc_receiver() as receiver, counting_relay(receiver) as relay:
        environ = {f"{E}METRICS_ENDPOINT": relay.address, f"{E}COMPRESSION": compression}
        (exporter,) = metric_exporters(resolve({}, environ))
        data = some_metrics(exporter, note="much the same " * 10_000)
        assert exporter.export(data) is MetricExportResult.SUCCESS
        close(exporter)
    (request,) = receiver.requests
    assert (relay.received_bytes < fraction * request.body.ByteSize()) == (compression == "gzip")


# --------------------------------------------------------------------------------------------------- timeouts


def test_timeout_bounds_an_export_to_a_server_that_never_answers(monkeypatch):
    monkeypatch.setenv(f"{E}METRICS_TIMEOUT", "3600")  # which the exporters would take for an hour
    with socket.create_server(("localhost", 0)) as silent:
        endpoint = f"http://localhost:{silent.getsockname()[1]}"
        environ = {f"{E}METRICS_ENDPOINT": endpoint, f"{E}TIMEOUT": "200"}
        assert not delivered(resolve({}, environ))


def test_timeout_is_the_deadline_of_a_call_over_grpc():
    with grpc_receiver() as receiver:
        assert send(resolve({"otlp_endpoint": receiver.address}, {f"{E}TIMEOUT": "3600000"}))
    # The default would leave 10 s; gRPC rounds a little, in both directions.
    assert [round(request.time_left_s / 3600) for request in receiver.requests] == [1, 1]


# ---------------------------------------------------------------------------------------------------- headers


@pytest.mark.parametrize("receive", [http_receiver, grpc_receiver])
def test_headers_arrive(receive):
    with receive() as receiver:
        protocol = "grpc" if receive is grpc_receiver else "http/protobuf"
        arguments = {"otlp_endpoint": receiver.url, "otlp_protocol": protocol}
        assert send(resolve({**arguments, "otlp_headers": {"Authorization": "Bearer a, b"}}, {}))
        assert send(resolve(arguments, {f"{E}HEADERS": "authorization=Bearer%20a%2C%20b"}))
    assert [request.headers["authorization"] for request in receiver.requests] == ["Bearer a, b"] * 4


@pytest.mark.parametrize("receive", [http_receiver, grpc_receiver])
@pytest.mark.parametrize("headers", [{}, {"x-mine": "1"}])
def test_the_process_environment_cannot_disagree_with_the_settings(receive, headers, monkeypatch, tmp_path):
    (tmp_path / "netrc").write_text("machine localhost login them password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with receive() as receiver:
        protocol = "grpc" if receive is grpc_receiver else "http/protobuf"
        arguments = {"otlp_endpoint": receiver.url, "otlp_protocol": protocol, "otlp_headers": headers}
        settings = resolve(arguments, {})
        for prefix in (E, f"{E}METRICS_", f"{E}TRACES_"):
            monkeypatch.setenv(f"{prefix}ENDPOINT", "http://localhost:1")
            monkeypatch.setenv(f"{prefix}PROTOCOL", "http/protobuf")
            monkeypatch.setenv(f"{prefix}HEADERS", "x-theirs=2,authorization=theirs")
            monkeypatch.setenv(f"{prefix}TIMEOUT", "1")
            monkeypatch.setenv(f"{prefix}COMPRESSION", "gzip")
            monkeypatch.setenv(f"{prefix}INSECURE", "false")
            monkeypatch.setenv(f"{prefix}CERTIFICATE", str(tmp_path / "absent"))
        assert send(settings)
    assert len(receiver.requests) == 2
    for request in receiver.requests:
        assert request.headers.get("x-mine") == headers.get("x-mine")
        assert "x-theirs" not in request.headers
        assert "authorization" not in request.headers
        assert "content-encoding" not in request.headers


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("arguments", [{}, {"otlp_headers": {"x-mine": "1"}}])
def test_the_exporters_do_not_log_headers(protocol, arguments, monkeypatch, caplog):
    caplog.set_level("DEBUG")
    monkeypatch.setenv(f"{E}HEADERS", 'authorization=Bearer "hush;hush"')
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    settings = resolve({"otlp_protocol": protocol, **arguments}, os.environ)
    for exporter in (*metric_exporters(settings), *span_exporters(settings)):
        close(exporter)
    assert "hush" not in caplog.text


@pytest.mark.parametrize("variable", ["CERTIFICATE", "CLIENT_CERTIFICATE"])
def test_tls_files_of_the_process_environment_are_not_used(variable, tls_files, monkeypatch, caplog):
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(KEY_AND_CERTIFICATE)
    if variable == "CLIENT_CERTIFICATE":
        server.verify_mode = ssl.CERT_REQUIRED
        server.load_verify_locations(tls_files["CERTIFICATE"])
    with http_receiver(server) as receiver:
        environ = {f"{E}METRICS_ENDPOINT": receiver.url, f"{E}TIMEOUT": "1000"}
        if variable == "CLIENT_CERTIFICATE":
            environ[f"{E}CERTIFICATE"] = tls_files["CERTIFICATE"]
        settings = resolve({}, environ)
        for name, path in tls_files.items():
            monkeypatch.setenv(f"{E}{name}", path)
        assert not delivered(settings)
    assert receiver.requests == []


# -------------------------------------------------------------------------------------------------------- TLS


@pytest.fixture
def tls_files(tmp_path):
    """The files of a client that is its own authority, as the server is."""
    key, _, certificate = KEY_AND_CERTIFICATE.read_text().partition("-----BEGIN CERTIFICATE")
    (tmp_path / "key.pem").write_text(key)
    (tmp_path / "certificate.pem").write_text(f"-----BEGIN CERTIFICATE{certificate}")
    return {
        "CERTIFICATE": str(tmp_path / "certificate.pem"),
        "CLIENT_CERTIFICATE": str(tmp_path / "certificate.pem"),
        "CLIENT_KEY": str(tmp_path / "key.pem"),
    }


@contextmanager
def tls_receiver(protocol, tls_files, *, ask_client):
    if protocol == "grpc":
        key, certificate = (Path(tls_files[name]).read_bytes() for name in ("CLIENT_KEY", "CERTIFICATE"))
        authorities = certificate if ask_client else None
        credentials = grpc.ssl_server_credentials([(key, certificate)], authorities, ask_client)
        with grpc_receiver(credentials) as receiver:
            yield receiver
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(KEY_AND_CERTIFICATE)
    if ask_client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(tls_files["CERTIFICATE"])
    with http_receiver(context) as receiver:
        yield receiver


def delivered(settings):
    """Whether metrics arrive; release 1.30 lets the error of the connection out."""
    (exporter,) = metric_exporters(settings)
    try:
        return exporter.export(some_metrics(exporter)) is MetricExportResult.SUCCESS
    except OSError:
        return False
    finally:
        close(exporter)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("ask_client", [False, True])
def test_tls_with_an_authority_of_ones_own(protocol, ask_client, tls_files):
    names = tls_files if ask_client else ["CERTIFICATE"]
    environ = {f"{E}{name}": tls_files[name] for name in names}
    with tls_receiver(protocol, tls_files, ask_client=ask_client) as receiver:
        assert send(resolve({"otlp_endpoint": receiver.url, "otlp_protocol": protocol}, environ))
    assert len(receiver.requests) == 2


def test_grpc_target_without_a_scheme_uses_tls_when_told(tls_files):
    environ = {f"{E}CERTIFICATE": tls_files["CERTIFICATE"], f"{E}INSECURE": "false"}
    with tls_receiver("grpc", tls_files, ask_client=False) as receiver:
        assert send(resolve({"otlp_endpoint": receiver.address}, environ))
    assert receiver.paths == ["metrics", "traces"]


def test_an_unknown_authority_is_not_trusted(tls_files):
    with tls_receiver("http/protobuf", tls_files, ask_client=False) as receiver:
        environ = {"OTEL_TRACES_EXPORTER": "none", f"{E}TIMEOUT": "1000"}
        assert not delivered(resolve({"otlp_endpoint": receiver.url}, environ))
    assert receiver.requests == []


@pytest.mark.parametrize("endpoint", ["https://localhost:4317", "https://localhost:4318"])
@pytest.mark.parametrize("variable", ["CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"])
def test_a_missing_tls_file_is_told_when_the_exporter_is_made(endpoint, variable, tls_files, tmp_path):
    tls_files[variable] = str(tmp_path / "absent.pem")
    environ = {f"{E}{name}": path for name, path in tls_files.items()}
    settings = resolve({"otlp_endpoint": endpoint}, environ)
    for build in (metric_exporters, span_exporters):
        with pytest.raises(ValueError, match=rf"^{E}{variable}='.*absent.pem' cannot be read: No such file"):
            build(settings)


@pytest.mark.parametrize("endpoint", ["https://localhost:4317", "https://localhost:4318"])
@pytest.mark.parametrize(
    ("variable", "told"),
    [
        ("CERTIFICATE", rf"^{E}CERTIFICATE='.*' has no certificate in PEM: "),
        ("CLIENT_CERTIFICATE", rf"^{E}CLIENT_CERTIFICATE='.*' does not go with {E}CLIENT_KEY='.*': "),
        ("CLIENT_KEY", rf"^{E}CLIENT_CERTIFICATE='.*' does not go with {E}CLIENT_KEY='.*': "),
    ],
)
def test_a_tls_file_that_is_no_pem_is_told_when_the_exporter_is_made(
    endpoint, variable, told, tls_files, tmp_path
):
    (tmp_path / "broken.pem").write_text("not a certificate\n")
    tls_files[variable] = str(tmp_path / "broken.pem")
    environ = {f"{E}{name}": path for name, path in tls_files.items()}
    with pytest.raises(ValueError, match=told):
        metric_exporters(resolve({"otlp_endpoint": endpoint}, environ))


@pytest.mark.parametrize("endpoint", ["https://localhost:4317", "https://localhost:4318"])
def test_a_key_with_a_password_is_told_and_not_asked_for(endpoint, tls_files, tmp_path):
    (tmp_path / "locked.pem").write_text(KEY_WITH_PASSWORD)
    tls_files["CLIENT_KEY"] = str(tmp_path / "locked.pem")
    environ = {f"{E}{name}": path for name, path in tls_files.items()}
    with pytest.raises(ValueError, match=rf"{E}CLIENT_KEY='.*locked.pem': the key has a password$"):
        span_exporters(resolve({"otlp_endpoint": endpoint}, environ))


def test_a_client_file_for_http_may_hold_both(tls_files):
    environ = {
        f"{E}CERTIFICATE": tls_files["CERTIFICATE"],
        f"{E}CLIENT_CERTIFICATE": str(KEY_AND_CERTIFICATE),
    }
    with tls_receiver("http/protobuf", tls_files, ask_client=True) as receiver:
        assert send(resolve({"otlp_endpoint": receiver.url}, environ))
    assert len(receiver.requests) == 2


def test_tls_files_do_not_matter_without_tls():
    environ = {f"{E}CERTIFICATE": "absent.pem"}
    with http_receiver() as receiver:
        assert send(resolve({"otlp_endpoint": receiver.url}, environ))
    assert len(receiver.requests) == 2


# ------------------------------------------------------------------------------------------------ preferences


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize(
    ("preference", "counter", "observable_counter", "histogram", "updown"),
    [
        ("cumulative", "CUMULATIVE", "CUMULATIVE", "CUMULATIVE", "CUMULATIVE"),
        ("Delta", "DELTA", "DELTA", "DELTA", "CUMULATIVE"),
        ("lowmemory", "DELTA", "CUMULATIVE", "DELTA", "CUMULATIVE"),
    ],
)
def test_temporality(protocol, preference, counter, observable_counter, histogram, updown, monkeypatch):
    monkeypatch.setenv(f"{E}METRICS_TEMPORALITY_PREFERENCE", "delta")
    environ = {"OTEL_METRICS_EXPORTER": "otlp", f"{E}METRICS_TEMPORALITY_PREFERENCE": preference}
    (exporter,) = metric_exporters(resolve({"otlp_protocol": protocol}, environ))
    close(exporter)
    found = {kind.__name__: value.name for kind, value in exporter._preferred_temporality.items()}
    assert found == {
        "Counter": counter,
        "ObservableCounter": observable_counter,
        "Histogram": histogram,
        "UpDownCounter": updown,
        "ObservableUpDownCounter": updown,
        "ObservableGauge": "CUMULATIVE",
    }


@pytest.mark.parametrize(
    ("aggregation", "field"),
    [
        ("explicit_bucket_histogram", "histogram"),
        ("BASE2_exponential_bucket_histogram", "exponential_histogram"),
    ],
)
def test_histogram_aggregation(aggregation, field):
    with http_receiver() as receiver:
        environ = {
            f"{E}METRICS_ENDPOINT": receiver.url,
            f"{E}METRICS_DEFAULT_HISTOGRAM_AGGREGATION": aggregation,
        }
        assert send(resolve({}, environ))
    (request,) = receiver.requests
    metrics = metrics_service_pb2.ExportMetricsServiceRequest.FromString(request.body)
    fields = {metric.name: metric.WhichOneof("data") for metric in all_metrics(metrics)}
    assert fields == {"steps": "sum", "duration": field}


# ---------------------------------------------------------------------------------------- console and nothing


def test_console():
    out = io.StringIO()
    settings = resolve({}, {"OTEL_METRICS_EXPORTER": "console", "OTEL_TRACES_EXPORTER": "console"})
    (metrics,), (spans,) = metric_exporters(settings, out), span_exporters(settings, out)
    assert metrics.export(some_metrics(metrics)) is MetricExportResult.SUCCESS
    scope = json.loads(out.getvalue())["resource_metrics"][0]["scope_metrics"][0]
    assert [metric["name"] for metric in scope["metrics"]] == ["steps", "duration"]
    out.truncate(out.seek(0))
    assert spans.export(some_spans()) is SpanExportResult.SUCCESS
    assert json.loads(out.getvalue())["name"] == "run"


def test_console_is_standard_output(capsys):
    (spans,) = span_exporters(resolve({}, {"OTEL_TRACES_EXPORTER": "console"}))
    spans.export(some_spans())
    assert json.loads(capsys.readouterr().out)["name"] == "run"


@pytest.mark.parametrize(
    "environ", [{}, {"OTEL_SDK_DISABLED": "true", "OTEL_METRICS_EXPORTER": "otlp,console"}]
)
def test_nothing_wanted_is_no_exporter(environ):
    settings = resolve({}, environ)
    assert metric_exporters(settings) == []
    assert span_exporters(settings) == []


@pytest.mark.parametrize(
    ("endpoint", "absent"), [("http://localhost:4318", "grpc"), ("localhost:4317", "requests"), ("", "grpc")]
)
def test_only_what_is_used_is_imported(endpoint, absent):
    code = (
        "import os, sys\n"
        "from otel_training import exporters, settings\n"
        "given = settings.resolve({}, os.environ)\n"
        "exporters.metric_exporters(given), exporters.span_exporters(given)\n"
        f"sys.exit({absent!r} in sys.modules)\n"
    )
    environ = {**os.environ, f"{E}ENDPOINT": endpoint, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environ, timeout=50).returncode == 0


# --------------------------------------------------------------------------------------------------- samplers


@pytest.mark.parametrize(
    ("name", "ratio", "roots", "under_sampled", "under_dropped"),
    [
        ("always_on", "", 1.0, 1.0, 1.0),
        ("always_off", "", 0.0, 0.0, 0.0),
        ("TraceIdRatio", "0.25", 0.25, 0.25, 0.25),
        ("traceidratio", "0", 0.0, 0.0, 0.0),
        ("traceidratio", "", 1.0, 1.0, 1.0),
        ("parentbased_always_on", "", 1.0, 1.0, 0.0),
        ("parentbased_always_off", "", 0.0, 1.0, 0.0),
        ("parentbased_traceidratio", "0.25", 0.25, 1.0, 0.0),
        ("", "0.25", 1.0, 1.0, 0.0),
    ],
)
def test_sampler(name, ratio, roots, under_sampled, under_dropped):
    chosen = sampler(resolve({}, {"OTEL_TRACES_SAMPLER": name, "OTEL_TRACES_SAMPLER_ARG": ratio}))
    assert kept_part(chosen, None) == roots
    assert kept_part(chosen, TraceFlags(TraceFlags.SAMPLED)) == under_sampled
    assert kept_part(chosen, TraceFlags(TraceFlags.DEFAULT)) == under_dropped


def kept_part(chosen, parent_flags):
    """The part kept of 1000 traces whose ids are spread evenly."""
    kept = 0
    for number in range(1000):
        trace_id = (1 << 64) | ((number << 64) // 1000)
        context = None
        if parent_flags is not None:
            span = NonRecordingSpan(SpanContext(trace_id, 1, is_remote=True, trace_flags=parent_flags))
            context = set_span_in_context(span)
        kept += chosen.should_sample(context, trace_id, "run").decision.is_sampled()
    return kept / 1000


# --------------------------------------------------------------------------------------------------- decoding


def all_metrics(request):
    return [
        metric
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ]


def metric_names(request):
    return [metric.name for metric in all_metrics(request)]


def span_names(request):
    return [
        span.name
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
