"""Events from many threads at once: no count is lost, whatever reads and closes meanwhile."""

import json
import threading
import time
import urllib.request

import pytest

import otel_training
from otel_training import catalog
from trainer import MetricLogger

THREADS = 16
EVENTS = 100_000
EVENTS_NAME = catalog.prometheus_name(catalog.BRIDGE_EVENTS)
UPLOADS = catalog.prometheus_name(catalog.DELTA_UPLOADS)
STALE = catalog.prometheus_name(catalog.DELTA_STALE)


def run_all(*functions):
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_hundred_thousand_events_of_sixteen_threads(otlp_sink, page_values):
    telemetry = otel_training.start(
        prometheus_port=0,
        otlp_endpoint=otlp_sink.url,
        export_interval_s=0.1,
        devices=("cpu",),
        device_interval_s=0.1,
    )
    emit, done = telemetry.hook.on_event, threading.Event()
    each = EVENTS // THREADS

    def work(number):
        def emits():
            for step in range(number * each, (number + 1) * each):
                emit("delta_upload_stale", {"step": step, "generation": 1})

        return emits

    def scrape():
        seen = 0.0
        while not done.is_set():
            now = page_values(telemetry, STALE).get((), 0.0)
            assert now >= seen
            seen = now

    scraper = threading.Thread(target=scrape)
    scraper.start()
    run_all(*(work(number) for number in range(THREADS)))
    done.set()
    scraper.join()
    assert page_values(telemetry, STALE) == {(): EVENTS}
    assert page_values(telemetry, EVENTS_NAME) == {("delta_upload_stale", "handled"): EVENTS}
    telemetry.close()
    received = [point.value for point in otlp_sink.points(catalog.DELTA_STALE.name)]
    assert received == sorted(received)
    assert received[-1] == EVENTS


@pytest.mark.timeout(120)
def test_log_and_telemetry_count_the_same_though_the_log_is_closed_in_the_middle(tmp_path, page_values):
    """What one has, the other has, up to the events that were under way at the close."""
    telemetry = otel_training.start(prometheus_port=0, devices=())
    observer = otel_training.start(
        prometheus_port=0, devices=(), run_id="observer"
    )  # has its page to the end
    file = tmp_path / "log.jsonl"
    log = MetricLogger(level="ERROR", json_file=file, hooks=[telemetry.hook, observer.hook.on_event])
    go, stop = threading.Barrier(THREADS + 1), threading.Event()
    emitted = [0] * THREADS

    def work(number):
        def emits():
            go.wait()
            while not stop.is_set():
                log.emit("delta_uploaded", {"step": number, "size_bytes": 1})
                emitted[number] += 1

        return emits

    def close():
        go.wait()
        time.sleep(0.3)
        log.close()
        stop.set()

    run_all(close, *(work(number) for number in range(THREADS)))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    heard = sum(page_values(observer, EVENTS_NAME).values())
    assert len(lines) == heard
    assert 0 < heard <= sum(emitted)
    assert telemetry.url is None or not can_be_reached(telemetry.url)
    observer.close()


def can_be_reached(url):
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return False
    return True


def test_a_cell_that_is_run_again_counts_anew_without_a_second_page_or_thread(page_values):
    """As in a notebook: the cell's names are bound anew, and nobody closes what they were bound to."""
    cell = """
telemetry = otel_training.start(prometheus_port=0, devices=(), run_id="cell")
log = MetricLogger(level="ERROR", hooks=[telemetry.hook])
log.emit("train_start", {"start_step": 0, "target_step": 5})
for step in range(1, 6):
    log.emit("train_step", {"step": step, "loss": 1.0})
log.emit("train_end", {"steps": 5})
"""
    names = {"otel_training": otel_training, "MetricLogger": MetricLogger}
    opened, threads = [], set()
    for _ in range(5):
        exec(cell, names)
        opened.append(names["telemetry"])
        threads.add(threading.active_count())
    steps = page_values(opened[-1], catalog.prometheus_name(catalog.STEPS))
    assert steps == {(): 25}  # the runs of one identity go on from each other's counters
    assert len({telemetry.url for telemetry in opened}) == 1
    assert len(threads) == 1
    for telemetry in opened:
        telemetry.close()
