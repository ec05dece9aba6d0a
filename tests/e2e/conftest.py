"""Real servers for the end-to-end tests: on loopback, on free ports, ended by their own process."""

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

READY_S = 20.0
POLL_S = 0.1

HOW_TO_GET = {
    "prometheus": "apt-get install --no-install-recommends prometheus",
    "prometheus-alertmanager": "apt-get install --no-install-recommends prometheus-alertmanager",
    "promtool": "apt-get install --no-install-recommends prometheus",
}


def need_tool(name: str) -> str:
    """Return the path of a program; without it the test fails in CI and is skipped elsewhere."""
    path = shutil.which(name)
    if path is None:
        reason = f"{name} is not installed: {HOW_TO_GET[name]}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return path


@dataclass(frozen=True)
class Sample:
    """One series of an answer: its labels, the name included, and its value."""

    labels: dict[str, str]
    value: float


class Prometheus:
    """A real Prometheus server that scrapes the given targets every second.

    Args:
        program: Path of the server.
        targets: ``host:port`` of the pages to scrape.
        folder: Empty folder for configuration, data and the server's output.
        config: Further sections of the configuration, such as ``rule_files``.
    """

    def __init__(self, program: str, targets: Sequence[str], folder: Path, **config: object) -> None:
        job = {
            "job_name": "training",
            "scrape_interval": "1s",
            "scrape_timeout": "1s",
            "static_configs": [{"targets": list(targets)}],
        }
        path = folder / "prometheus.yml"
        path.write_text(json.dumps({"scrape_configs": [job], **config}))  # JSON is YAML, too
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / "prometheus.log"
        command = [
            program,
            f"--config.file={path}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def wait_ready(self) -> None:
        """Wait until the server answers; fail with its output when it does not."""
        deadline = time.monotonic() + READY_S
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.url}/-/ready", timeout=1.0):
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(POLL_S)
        pytest.fail(f"prometheus did not become ready:\n{self.log.read_text()}")

    def query(self, expression: str) -> list[Sample]:
        """Return the answer to an instant query, now."""
        result = self.ask("query", query=expression)["result"]
        return [Sample(series["metric"], float(series["value"][1])) for series in result]

    def ask(self, path: str, **arguments: str) -> Any:
        """Return the data of an answer of the HTTP API below ``/api/v1/``; an error fails the test."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(url, timeout=10.0) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            pytest.fail(f"{error.read().decode()}\nfor {arguments}")

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        try:
            self._process.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Rotel:
    """A real OTLP receiver, independent of OpenTelemetry's Python code, that hands everything on to a sink.

    Args:
        program: Path of the server.
        sink_url: Base URL of the receiver behind it.
        log: File for the server's output.
    """

    def __init__(self, program: str, sink_url: str, log: Path) -> None:
        self.grpc_endpoint = f"127.0.0.1:{free_port()}"
        self.http_url = f"http://127.0.0.1:{free_port()}"
        self.log = log
        self._command = [
            program, "start",
            "--otlp-grpc-endpoint", self.grpc_endpoint,
            "--otlp-http-endpoint", self.http_url.removeprefix("http://"),
            "--exporter", "otlp", "--otlp-exporter-endpoint", sink_url, "--otlp-exporter-protocol", "http",
            "--batch-timeout", "50ms",
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until both ports answer."""
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + READY_S
        ports = [int(address.rsplit(":", 1)[1]) for address in (self.grpc_endpoint, self.http_url)]
        while ports and self._process.poll() is None and time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", ports[-1]), timeout=1.0).close()
                ports.pop()
            except OSError:
                time.sleep(POLL_S)
        if ports:
            pytest.fail(f"rotel did not become ready:\n{self.log.read_text()}")

    def kill(self) -> None:
        """End it at once, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def unused_port() -> int:
    return free_port()


@pytest.fixture
def prometheus(tmp_path) -> Callable[..., Prometheus]:
    """Call it with targets to get a server that is ready; what it prints stays in ``tmp_path``.

    Keyword arguments are further sections of its configuration.
    """
    program = need_tool("prometheus")
    servers: list[Prometheus] = []

    def start(*targets: str, **config: object) -> Prometheus:
        folder = tmp_path / f"prometheus-{len(servers)}"
        folder.mkdir()
        server = Prometheus(program, targets, folder, **config)
        servers.append(server)
        server.wait_ready()
        return server

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def need() -> Callable[[str], str]:
    """Call it with the name of a program to get its path."""
    return need_tool


@pytest.fixture
def promtool() -> str:
    return need_tool("promtool")


@pytest.fixture
def rotel(tmp_path, otlp_sink) -> Rotel:
    """A real receiver for gRPC and HTTP in front of ``otlp_sink``."""
    package = importlib.util.find_spec("rotel")
    if package is None or package.origin is None:
        reason = "rotel is not installed: pip install rotel"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    server = Rotel(str(Path(package.origin).with_name("rotel-agent")), otlp_sink.url, tmp_path / "rotel.log")
    server.start()
    yield server
    server.kill()
