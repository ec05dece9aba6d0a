"""The sampler: on its own clock, each source by itself, bounded at the end, and gone in a forked child."""

import logging
import os
import threading
import time

import pytest

from otel_training import catalog
from otel_training.device_cells import DeviceCells
from otel_training.devices.reading import Reading, Sample, Unavailable
from otel_training.sampler import LONGEST_PAUSE_S, Sampler
from otel_training.state import State


class FakeSource:
    """A source that gives what it is told to, and notes when it was read."""

    def __init__(self, name="mps", answers=()):
        self.name = name
        self.answers = list(answers)
        self.read_at_s = []
        self.previous = []
        self.was_read = threading.Event()

    def read(self, previous, now_s):
        self.read_at_s.append(now_s)
        self.previous.append(previous)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.was_read.set()
        if isinstance(answer, Exception):
            raise answer
        return answer


def reading(value, **failures):
    return Reading(samples=[Sample(catalog.MPS_ALLOCATED, value)], failures=failures)


class Bench:
    def __init__(self, *sources, interval_s=10.0):
        self.now_s = 0.0
        self.state = State()
        self.cells = DeviceCells(self.state)
        self.sampler = Sampler(sources, self.cells, self.state, interval_s, clock=lambda: self.now_s)

    def after(self, seconds):
        self.now_s += seconds
        self.sampler.read_once()
        return self.state.get(catalog.MPS_ALLOCATED)


def test_each_reading_knows_the_one_before():
    source = FakeSource(answers=[reading(1), reading(2)])
    bench = Bench(source)
    assert [bench.after(0), bench.after(10)] == [1, 2]
    assert source.previous[0] is None
    assert source.previous[1].samples[0].value == 1
    assert source.read_at_s == [0, 10]


def test_what_cannot_be_read_any_more_is_withdrawn():
    bench = Bench(FakeSource(answers=[reading(1), Unavailable("gone"), reading(3)]))
    assert [bench.after(10) for _ in range(3)] == [1, None, 3]


def test_a_source_that_raises_costs_itself_alone():
    bad = FakeSource("nvml", [RuntimeError("driver gone")])
    good = FakeSource("mps", [reading(1)])
    bench = Bench(bad, good)
    assert bench.after(0) == 1
    assert bench.state.get(catalog.DEVICE_READ_FAILURES, "nvml") == 1
    assert bench.state.get(catalog.DEVICE_READ_FAILURES, "mps") is None


def test_each_failure_is_counted_and_told_once(caplog):
    bench = Bench(FakeSource(answers=[reading(1, power="not allowed", energy="not allowed")]))
    for _ in range(4):
        bench.after(10)
    assert bench.state.get(catalog.DEVICE_READ_FAILURES, "mps") == 8
    assert sorted(record.args[1].partition(",")[0] for record in caplog.records) == [
        "cannot read energy",
        "cannot read power",
    ]


def test_what_is_not_offered_is_no_failure_and_told_once(caplog):
    caplog.set_level(logging.INFO, "otel_training")
    answer = reading(1)
    answer.unsupported["energy"] = "Not Supported"
    bench = Bench(FakeSource(answers=[answer]), FakeSource("nvml", [Unavailable("CUDA is not in use")]))
    for _ in range(3):
        bench.after(10)
    assert bench.state.values_of(catalog.DEVICE_READ_FAILURES) == {}
    assert [record.getMessage() for record in caplog.records] == [
        "device metrics, source mps: energy is not offered here: Not Supported",
        "device metrics, source nvml: nothing is read: CUDA is not in use",
    ]
    assert {record.levelno for record in caplog.records} == {logging.INFO}


def test_a_source_that_fails_three_times_rests_ever_longer(caplog):
    source = FakeSource(answers=[RuntimeError("GPU is lost")])
    bench = Bench(source)
    for _ in range(1000):
        bench.after(10)
    gaps = [later - earlier for earlier, later in zip(source.read_at_s, source.read_at_s[1:], strict=False)]
    assert gaps[:6] == [10, 10, 20, 40, 80, 160]
    assert max(gaps) == LONGEST_PAUSE_S
    assert len(caplog.records) == 2  # that it cannot be read, and that it rests


def test_a_source_that_comes_back_is_read_as_before():
    lost = RuntimeError("GPU is lost")
    source = FakeSource(answers=[lost, lost, lost, reading(4)])
    bench = Bench(source)
    seen = [bench.after(10) for _ in range(7)]
    assert seen == [None, None, None, None, 4, 4, 4]


def test_a_source_whose_every_reading_fails_rests_too():
    source = FakeSource(answers=[Reading(failures={"power": "lost", "memory": "lost"})])
    bench = Bench(source)
    for _ in range(5):
        bench.after(10)
    assert len(source.read_at_s) == 4


def test_the_time_of_a_reading_is_a_metric():
    bench = Bench(FakeSource(answers=[reading(1), RuntimeError("x")]))
    bench.after(0)
    assert bench.state.get(catalog.DEVICE_READ_DURATION, "mps") == 0
    bench.after(10)
    assert bench.state.get(catalog.DEVICE_READ_DURATION, "mps") is None


def running(source, interval_s=3600.0):
    state = State()
    cells = DeviceCells(state)
    sampler = Sampler([source], cells, state, interval_s)
    sampler.start()
    assert source.was_read.wait(10)
    source.was_read.clear()
    return sampler, cells, state


def test_it_reads_at_once_then_soon_again_and_a_last_time():
    source = FakeSource(answers=[reading(1), reading(2), reading(3)])
    sampler, _, state = running(source)
    assert source.was_read.wait(10)  # long before its interval is over
    assert sampler.stop(time.monotonic() + 10)
    assert (len(source.read_at_s), state.get(catalog.MPS_ALLOCATED)) == (3, 3)


def test_learning_the_device_makes_it_read():
    source = FakeSource(answers=[reading(1)])
    sampler, cells, _ = running(source)
    assert source.was_read.wait(10)
    source.was_read.clear()
    cells.learn("cuda:1")
    assert source.was_read.wait(10)
    assert sampler.stop(time.monotonic() + 10)


def test_stopping_does_not_wait_for_a_device_that_hangs_nor_take_its_answer():
    release, entered = threading.Event(), threading.Event()

    class Hanging(FakeSource):
        def read(self, previous, now_s):
            entered.set()
            release.wait(30)
            return reading(1)

    state = State()
    sampler = Sampler([Hanging()], DeviceCells(state), state, 3600.0)
    sampler.start()
    assert entered.wait(10)
    assert sampler.stop(time.monotonic()) is False
    assert state.lock.acquire(timeout=1)  # whoever scrapes does not wait either
    state.lock.release()
    release.set()
    sampler._thread.join(10)
    assert state.get(catalog.MPS_ALLOCATED) is None


def test_stopping_twice_or_before_the_start_is_harmless():
    source = FakeSource(answers=[reading(1)])
    sampler, _, _ = running(source)
    assert sampler.stop(time.monotonic() + 10)
    assert sampler.stop(time.monotonic() + 10)
    state = State()
    assert Sampler([], DeviceCells(state), state, 1.0).stop(time.monotonic())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_neither_reads_nor_waits():
    source = FakeSource(answers=[reading(1)])
    sampler, _, _ = running(source)
    child = os.fork()
    if child == 0:
        quiet = sampler.stop(time.monotonic() + 30) and threading.active_count() == 1
        os._exit(0 if quiet else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sampler.stop(time.monotonic() + 10)
