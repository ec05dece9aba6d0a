"""open-telemetry/opentelemetry-python#3309: shutdown takes over a minute when the collector is away."""

import json
import socket
import subprocess
import sys
import threading
import time

import pytest

import otel_training
from trainer import MetricLogger

PROTOCOLS = pytest.mark.parametrize("scheme", ["http://", ""], ids=["http", "grpc"])


@pytest.fixture
def away():
    """A port that refuses connections: bound, so that nobody else gets it, and not listened on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def silent(otlp_sink):
    """A receiver that takes every request and answers none."""
    otlp_sink.silent = True
    return otlp_sink.url.removeprefix("http://")


@pytest.fixture(params=["away", "silent"])
def collector(request):
    return request.getfixturevalue(request.param)


@PROTOCOLS
@pytest.mark.parametrize(("limit_s", "within_s"), [(1.0, 2.0), (None, 10.0)])
def test_training_is_not_slowed_and_close_is_on_time(collector, scheme, limit_s, within_s, tmp_path, caplog):
    limit = {} if limit_s is None else {"shutdown_timeout_s": limit_s}
    telemetry = otel_training.start(
        otlp_endpoint=scheme + collector, export_interval_s=0.1, prometheus=False, devices=(), **limit
    )
    log = MetricLogger(level="ERROR", json_file=tmp_path / "log.jsonl", hooks=[telemetry.hook])
    begun_s = time.monotonic()
    log.emit("train_start", {"start_step": 0})
    for step in range(1, 21):
        time.sleep(0.01)
        log.emit("train_step", {"step": step, "loss": 1.0})
    looped_s = time.monotonic() - begun_s

    begun_s = time.monotonic()
    telemetry.close()
    closed_s = time.monotonic() - begun_s
    log.close()
    # Asserted after the close: a hook left open fails every later test that wants a clean process.
    assert looped_s < 5.0  # 0.2 s of work; a step that waited for the collector would take 10
    assert closed_s < within_s

    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["event"] == "train_step"] == list(range(1, 21))
    messages = [record.getMessage() for record in caplog.records]
    assert [message for message in messages if message.startswith("closed with")] == [
        "closed with spans and metrics not delivered"
    ]
    assert len(messages) <= 3, messages


PROGRAM = """
import logging, sys, time
import otel_training
logging.basicConfig(format="%(message)s")
telemetry = otel_training.start(otlp_endpoint=sys.argv[1], export_interval_s=0.1, prometheus=False)
telemetry.hook.on_event("train_start", {"start_step": 0})
for step in range(1, 21):
    time.sleep(0.01)
    telemetry.hook.on_event("train_step", {"step": step, "loss": 1.0})
print(time.time(), flush=True)
"""


@PROTOCOLS
def test_a_process_without_close_ends_on_time_with_status_0_and_few_words(collector, scheme):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, scheme + collector], capture_output=True, text=True, timeout=50
    )
    ended_unix_s = time.time()
    assert done.returncode == 0, done.stderr
    assert ended_unix_s - float(done.stdout) < 10.0
    assert len(done.stderr.splitlines()) <= 3, done.stderr
    assert "Traceback" not in done.stderr


def test_memory_and_log_stay_flat_over_many_exports(away, caplog):
    """A hundred times the interval; failed exports leave no thread and no queue behind."""
    telemetry = otel_training.start(
        otlp_endpoint=f"http://{away}", export_interval_s=0.1, prometheus=False, devices=(),
        shutdown_timeout_s=0.5,
    )  # fmt: skip
    telemetry.hook.on_event("train_start", {"start_step": 0})
    threads = threading.active_count()
    for step in range(1, 2001):
        telemetry.hook.on_event("train_step", {"step": step})
        time.sleep(0.001)
    assert threading.active_count() == threads
    telemetry.close()
    assert len(caplog.records) <= 3
