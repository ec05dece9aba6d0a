"""prometheus/client_python#155: a port in use ends the second run, and is not free again after the first."""

import json
import socket
import time
import urllib.request

import otel_training
from trainer import MetricLogger


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def begin(port, name, folder):
    telemetry = otel_training.start(prometheus_port=port, run_id=name, run_name=name, devices=())
    log = MetricLogger(level="ERROR", json_file=folder / f"{name}.jsonl", hooks=[telemetry.hook])
    return telemetry, log


def train(log, steps=3):
    log.emit("train_start", {"start_step": 0})
    for step in range(1, steps + 1):
        log.emit("train_step", {"step": step, "loss": 1.0})


def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        return answer.read().decode()


def test_a_second_run_trains_on_and_the_port_is_free_after_the_first(tmp_path, caplog):
    port = free_port()
    first, first_log = begin(port, "a", tmp_path)
    train(first_log, steps=5)
    assert 'training_run_id="a"' in scrape(port)

    second, second_log = begin(port, "b", tmp_path)
    train(second_log)
    lines = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["event"] == "train_step"] == [1, 2, 3]
    [warning] = [record.getMessage() for record in caplog.records]
    assert str(port) in warning
    assert 'training_run_id="a"' in scrape(port)
    assert 'training_run_id="b"' not in scrape(port)

    first.close()
    begun_s = time.monotonic()
    third, third_log = begin(port, "c", tmp_path)
    train(third_log)
    assert 'training_run_id="c"' in scrape(port)
    assert time.monotonic() - begun_s < 1.0
    for telemetry, log in ((second, second_log), (third, third_log), (first, first_log)):
        telemetry.close()
        log.close()
