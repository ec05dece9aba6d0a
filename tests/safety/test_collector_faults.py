"""Whatever a collector does, training goes on, the end is on time, and what was lost is counted and told."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo

import otel_training
from otel_training import catalog

DROPS = catalog.prometheus_name(catalog.BRIDGE_DROPS)
STEPS = catalog.prometheus_name(catalog.STEPS)
CLOSE_S = 0.3
LATE_S = 10.0  # far more than the budget: what must never be is an end without a limit

CERTIFICATE = Path(__file__).parents[1] / "otel_training" / "localhost.pem"  # nobody trusts it
AN_HOUR_S = 3600

Connection = Callable[[socket.socket, threading.Event], None]
"""Serves one connection until it is done or the event is set."""


class TcpCollector:
    """Accepts connections on a free port of this machine and treats each as it is told.

    Args:
        serve: What happens on a connection.
        tls: Whether to shake hands with a certificate that nobody trusts first.
    """

    def __init__(self, serve: Connection, *, tls: bool = False) -> None:
        self._serve = serve
        self._context: ssl.SSLContext | None = None
        if tls:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(CERTIFICATE)
        self._closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._treat, args=(connection,), daemon=True).start()

    def _treat(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            if self._context is not None:
                connection = self._context.wrap_socket(connection, server_side=True)
            self._serve(connection, self._closed)

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def read_request(connection: socket.socket) -> None:
    """Read an HTTP request to its end."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536) or b"\r\n\r\n"
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    left = int(lengths[0].split(b":")[1]) - len(body) if lengths else 0
    while left > 0 and (piece := connection.recv(65536)):
        left -= len(piece)


def answers(reply: bytes, after_s: float = 0.0) -> Connection:
    """Answer a request with these bytes and hang up."""

    def serve(connection: socket.socket, closed: threading.Event) -> None:
        read_request(connection)
        closed.wait(after_s)
        connection.sendall(reply)

    return serve


def status(code: int, body: bytes = b"", *headers: str, after_s: float = 0.0) -> Connection:
    """Answer with a status of HTTP."""
    lines = [f"HTTP/1.1 {code} Said", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return answers("\r\n".join([*lines, "", ""]).encode() + body, after_s)


def silent(connection: socket.socket, closed: threading.Event) -> None:
    """Take everything and answer nothing."""
    connection.settimeout(0.1)
    while not closed.is_set():
        with contextlib.suppress(TimeoutError):
            if not connection.recv(65536):
                return


def cuts_at_once(connection: socket.socket, closed: threading.Event) -> None:
    """Reset the connection without reading."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def cuts_the_request(connection: socket.socket, closed: threading.Event) -> None:
    """Read a little, then reset the connection."""
    connection.recv(10)
    cuts_at_once(connection, closed)


def babbles(connection: socket.socket, closed: threading.Event) -> None:
    """Say what is neither HTTP nor HTTP/2, without being asked."""
    connection.sendall(b"220 mail.example ESMTP\r\n\x00\xff\xfe" * 20)


def never_ends(connection: socket.socket, closed: threading.Event) -> None:
    """Answer without end."""
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while not closed.wait(0.005):
        connection.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n")


BELOW = {
    "silent": silent,
    "cut at once": cuts_at_once,
    "cut in the request": cuts_the_request,
    "garbage": babbles,
}
"""Faults below both protocols."""

HTTP = {
    **BELOW,
    "400": status(400, b"bad request"),
    "401 with a page": status(401, b"<html>" + b"no entry " * 10_000),
    "404": status(404),
    "413": status(413),
    "429, again in an hour": status(429, b"", f"Retry-After: {AN_HOUR_S}"),
    "500": status(500, b"\xff\xfe\x00 not text"),
    "503, again in an hour": status(503, b"", f"Retry-After: {AN_HOUR_S}"),
    "503, again on a day": status(503, b"", "Retry-After: Wed, 21 Oct 2099 07:28:00 GMT"),
    "503, again at garbage": status(503, b"", "Retry-After: soon"),
    "302": status(302, b"", "Location: /elsewhere"),
    "307 to itself": status(307, b"", "Location: /v1/metrics"),
    "late": status(200, after_s=5.0),
    "cut in the answer": answers(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nx"),
    "no such status": answers(b"HTTP/1.1 999 ?\r\nContent-Length: 0\r\n\r\n"),
    "endless header": answers(b"HTTP/1.1 500 x\r\n" + b"a: " + b"b" * 200_000 + b"\r\n\r\n"),
}


class GrpcCollector:
    """Speaks gRPC on a free port of this machine, and answers every call alike.

    Args:
        answer: Returns the bytes of the answer, or aborts.
    """

    def __init__(self, answer: Callable[[grpc.ServicerContext, threading.Event], bytes]) -> None:
        self._closed = threading.Event()
        collector = self

        class Handler(grpc.GenericRpcHandler):
            def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
                def export(_request: bytes, context: grpc.ServicerContext) -> bytes:
                    return answer(context, collector._closed)

                return grpc.unary_unary_rpc_method_handler(export)

        self._server = grpc.server(ThreadPoolExecutor(8), handlers=[Handler()])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def close(self) -> None:
        self._closed.set()
        self._server.stop(None).wait()


def aborts(code: grpc.StatusCode, retry_after_s: int | None = None):
    """Answer with a status of gRPC, and how long to wait with the next try."""

    def answer(context: grpc.ServicerContext, closed: threading.Event) -> bytes:
        if retry_after_s is not None:
            delay = RetryInfo(retry_delay=Duration(seconds=retry_after_s))
            context.set_trailing_metadata((("google.rpc.retryinfo-bin", delay.SerializeToString()),))
        context.abort(code, "said")

    return answer


def late(context: grpc.ServicerContext, closed: threading.Event) -> bytes:
    closed.wait(5.0)
    return b""


GRPC = {
    "unauthenticated": aborts(grpc.StatusCode.UNAUTHENTICATED),
    "unimplemented": aborts(grpc.StatusCode.UNIMPLEMENTED),
    "internal": aborts(grpc.StatusCode.INTERNAL),
    "exhausted": aborts(grpc.StatusCode.RESOURCE_EXHAUSTED),
    "exhausted, again in an hour": aborts(grpc.StatusCode.RESOURCE_EXHAUSTED, AN_HOUR_S),
    "unavailable, again in an hour": aborts(grpc.StatusCode.UNAVAILABLE, AN_HOUR_S),
    "an answer of garbage": lambda context, closed: b"\xff\xfe garbage",
    "late": late,
}


@pytest.fixture
def serve():
    """Start collectors that are closed at the end."""
    collectors = []

    def serve(collector):
        collectors.append(collector)
        return collector.address

    yield serve
    for collector in collectors:
        collector.close()


@pytest.fixture(autouse=True)
def short_timeout(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "300")  # ms; what is late is late by far


def about_another(record, endpoint):
    """Whether a line is of a thread that an earlier test's close has left behind."""
    return "export of" in record.getMessage() and endpoint.split("/")[-1] not in record.getMessage()


def check_harmless(endpoint, caplog, page_values, *, told="fails, training goes on"):
    """Train against a collector and look at everything that must not suffer."""
    telemetry = otel_training.start(
        otlp_endpoint=endpoint, export_interval_s=0.1, prometheus_port=0, devices=(),
        shutdown_timeout_s=CLOSE_S, window_s=1.0,
    )  # fmt: skip
    emit = telemetry.hook.on_event
    emit("train_start", {"start_step": 0})
    step = 0
    deadline_s = time.monotonic() + 20.0
    while step < 20 or not page_values(telemetry, DROPS).get(("export",)):
        step += 1
        emit("train_step", {"step": step, "loss": 1.0})
        time.sleep(0.01)
        assert time.monotonic() < deadline_s, "a lost export is not counted"
    assert page_values(telemetry, STEPS) == {(): step}

    begun_s = time.monotonic()
    telemetry.close()
    assert time.monotonic() - begun_s < CLOSE_S + LATE_S
    lines = [record.getMessage() for record in caplog.records if not about_another(record, endpoint)]
    assert all("Traceback" not in line and len(line) < 500 for line in lines)
    assert len(lines) <= 3, lines  # one for each signal, one for what is left at the end
    assert any(told in line for line in lines), lines


@pytest.mark.parametrize("fault", HTTP)
def test_over_http(serve, caplog, page_values, fault):
    check_harmless(f"http://{serve(TcpCollector(HTTP[fault]))}", caplog, page_values)


def test_an_answer_without_end_is_cut_and_the_next_export_comes(serve, caplog):
    collector = TcpCollector(never_ends)
    telemetry = otel_training.start(
        otlp_endpoint=f"http://{serve(collector)}", export_interval_s=0.1, prometheus=False, devices=(),
        shutdown_timeout_s=CLOSE_S,
    )  # fmt: skip
    deadline_s = time.monotonic() + 20.0
    while collector.connections < 6:
        telemetry.hook.on_event("train_step", {"step": collector.connections})
        time.sleep(0.01)
        assert time.monotonic() < deadline_s
    telemetry.close()


@pytest.mark.parametrize("fault", GRPC)
def test_over_grpc(serve, caplog, page_values, fault):
    check_harmless(serve(GrpcCollector(GRPC[fault])), caplog, page_values)


@pytest.mark.parametrize("fault", BELOW)
def test_below_grpc(serve, caplog, page_values, fault):
    check_harmless(serve(TcpCollector(BELOW[fault])), caplog, page_values)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize(
    ("scheme", "tls"), [("https", True), ("https", False), ("http", True)],
    ids=["a certificate that nobody trusts", "TLS to a plain collector", "plain to a TLS collector"],
)  # fmt: skip
def test_wrong_tls(serve, caplog, page_values, monkeypatch, protocol, scheme, tls):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    address = serve(TcpCollector(status(200), tls=tls))
    check_harmless(f"{scheme}://{address}", caplog, page_values)


@pytest.mark.parametrize("endpoint", ["http://collector.invalid:4318", "collector.invalid:4317"])
def test_a_name_that_nobody_knows(caplog, page_values, endpoint):
    check_harmless(endpoint, caplog, page_values)


PROGRAM = """
import logging, sys
import otel_training
logging.basicConfig(format="%(message)s")
telemetry = otel_training.start(
    otlp_endpoint=sys.argv[1], export_interval_s=0.1, prometheus=False, devices=(), shutdown_timeout_s=0.5
)
telemetry.hook.on_event("train_start", {"start_step": 0})
for step in range(1, 1001):
    telemetry.hook.on_event("train_step", {"step": step, "loss": 1.0})
how = sys.argv[2]
if how == "exit":
    sys.exit(7)
if how == "raise":
    raise RuntimeError("of the training")
"""


@pytest.fixture(params=["http", "grpc", "grpc with wrong tls"])
def away(request, serve, monkeypatch):
    """The endpoint of a collector that takes nothing."""
    if request.param == "http":
        return f"http://{serve(TcpCollector(HTTP['429, again in an hour']))}"
    if request.param == "grpc":
        return serve(GrpcCollector(GRPC["unavailable, again in an hour"]))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    return f"https://{serve(TcpCollector(status(200), tls=True))}"


@pytest.mark.parametrize(("how", "code"), [("end", 0), ("exit", 7), ("raise", 1)])
def test_the_exit_status_is_the_training_s_and_there_are_three_lines(away, how, code):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, away, how], capture_output=True, text=True, timeout=50
    )
    assert done.returncode == code, done.stderr
    ours, _, of_training = done.stderr.partition("Traceback")
    assert ("RuntimeError: of the training" in of_training) == (how == "raise")
    lines = [line for line in (ours + of_training).splitlines() if "export" in line or "closed with" in line]
    assert len(lines) <= 3, done.stderr
    assert len(ours.splitlines()) <= 3, done.stderr
