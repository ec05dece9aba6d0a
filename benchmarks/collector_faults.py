"""How fast a training is beside each kind of collector, compared to itself without telemetry.

    python benchmarks/collector_faults.py

A step is a fixed piece of work of a fraction of a millisecond. Exports come ten times a second instead of
once a minute: whatever an export costs the training shows six hundred times as large as it is. The steps of
all take turns in rounds; the ratios of the medians of their rounds are what to compare.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

import otel_training

ROUNDS = 5
ROUND_S = 1.5
STEP_WORK = 12_000

# Servers are processes of their own: their work is not the training's.
SERVER = """
import socket, sys, threading
reply = sys.argv[1].encode().decode("unicode_escape").encode()
listener = socket.create_server(("127.0.0.1", 0), backlog=100)
print(listener.getsockname()[1], flush=True)
def serve(connection):
    data = b""
    while piece := connection.recv(65536):
        data += piece
        head, end, body = data.partition(b"\\r\\n\\r\\n")
        if reply and end and len(body) >= int(head.lower().split(b"content-length:")[1].split()[0]):
            connection.sendall(reply)
            data = b""
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
ANSWERS = {
    "healthy": r"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "answers 503": r"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n",
    "answers 429, again in an hour": r"HTTP/1.1 429 Slow\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n",
    "never answers": "",
}


def collector(reply: str, stack: ExitStack) -> str:
    """Start a server that gives every request this answer, and return its address."""
    process = subprocess.Popen([sys.executable, "-c", SERVER, reply], stdout=subprocess.PIPE, text=True)
    stack.callback(process.wait)
    stack.callback(process.kill)
    assert process.stdout
    return f"127.0.0.1:{process.stdout.readline().strip()}"


def endpoints(stack: ExitStack) -> dict[str, str | None]:
    """Return what is compared; None is no telemetry."""
    refused = stack.enter_context(socket.socket())
    refused.bind(("127.0.0.1", 0))
    port = refused.getsockname()[1]
    servers = {name: collector(reply, stack) for name, reply in ANSWERS.items()}
    return {
        "no telemetry": None,
        **{f"HTTP, {name}": f"http://{address}" for name, address in servers.items()},
        "HTTP, refuses": f"http://127.0.0.1:{port}",
        "HTTP, no such name": "http://collector.invalid:4318",
        "HTTP, wrong TLS": f"https://{servers['healthy']}",
        "gRPC, refuses": f"127.0.0.1:{port}",
        "gRPC, never answers": servers["never answers"],
    }


def no_telemetry(event: str, payload: dict[str, object]) -> None:
    """Do what a training without telemetry does."""


def one_round(endpoint: str | None) -> float:
    """Return how many steps a second are made for a while."""
    telemetry = None
    emit: Callable[[str, dict[str, object]], object] = no_telemetry
    if endpoint is not None:
        telemetry = otel_training.start(
            otlp_endpoint=endpoint, export_interval_s=0.1, prometheus=False, shutdown_timeout_s=0.2
        )
        emit = telemetry.hook.on_event
    emit("train_start", {"start_step": 0})
    began_s, step = time.perf_counter(), 0
    while time.perf_counter() - began_s < ROUND_S:
        step += 1
        sum(range(STEP_WORK))
        emit("train_step", {"step": step, "loss": 1.0, "tokens": 1000 * step})
    steps_per_s = step / (time.perf_counter() - began_s)
    if telemetry is not None:
        telemetry.close()
    return steps_per_s


def main() -> None:
    """Print a line for each."""
    import logging

    logging.getLogger("otel_training").setLevel(logging.CRITICAL)
    os.environ["OTEL_EXPORTER_OTLP_TIMEOUT"] = "500"
    with ExitStack() as stack:
        compared = endpoints(stack)
        rates: dict[str, list[float]] = {name: [] for name in compared}
        for _ in range(ROUNDS):
            for name, endpoint in compared.items():
                rates[name].append(one_round(endpoint))
    plain = statistics.median(rates["no telemetry"])
    for name, found in rates.items():
        print(
            f"{name:36} {statistics.median(found):8.0f} steps/s   {statistics.median(found) / plain:5.2f} x"
        )


if __name__ == "__main__":
    main()
