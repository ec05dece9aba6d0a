"""Host and process: what the real psutil says, and the arithmetic on recorded times."""

import os
import threading
import time
from types import SimpleNamespace
from typing import NamedTuple

import psutil
import pytest

from otel_training.devices import cgroup, cpu
from otel_training.devices.cpu import CpuSource
from otel_training.devices.reading import Reading

MIB = 1 << 20


class Times(NamedTuple):
    """The fields of psutil.cpu_times on Linux."""

    user: float = 0.0
    nice: float = 0.0
    system: float = 0.0
    idle: float = 0.0
    iowait: float = 0.0
    irq: float = 0.0
    softirq: float = 0.0
    steal: float = 0.0
    guest: float = 0.0
    guest_nice: float = 0.0


class ProcessTimes(NamedTuple):
    user: float
    system: float
    children_user: float = 99.0
    children_system: float = 99.0
    iowait: float = 99.0


def real(now_s, *, host=True):
    return CpuSource(psutil, psutil.Process(), now_s, host, cgroup.of_this_process())


def recorded(now_s, host_times, process_times, **changes):
    library = SimpleNamespace(
        cpu_times=lambda: host_times,
        virtual_memory=lambda: SimpleNamespace(total=1000, available=600, free=100),
        swap_memory=lambda: SimpleNamespace(total=400, used=100, free=300),
        cpu_count=lambda: 8,
    )
    process = SimpleNamespace(
        cpu_times=lambda: process_times,
        memory_info=lambda: SimpleNamespace(rss=70, vms=900),
        num_threads=lambda: 3,
        cpu_affinity=lambda: [0, 1, 2, 3],
    )
    parts = {"psutil": library, "process": process, "now_s": now_s, "host": True, "cgroup": None}
    return CpuSource(**{**parts, **changes})


def test_the_real_machine_says_what_it_has(values):
    found = values(cpu.read(real(0.0), None))
    memory = psutil.virtual_memory()
    states = [found["system.memory.usage", (state,)] for state in ("used", "cached", "free")]
    assert found["system.memory.limit", ()] == memory.total
    assert sum(states) == memory.total
    assert 0 < found["system.memory.utilization", ("used",)] < 1
    assert found["process.thread.count", ()] >= threading.active_count()
    assert found["process.cpu.time", ("user",)] == pytest.approx(os.times().user, abs=1.0)


def test_resident_memory_rises_with_an_allocation(values):
    before = values(cpu.read(real(0.0), None))["process.memory.usage", ()]
    block = bytearray(os.urandom(1)) * (64 * MIB)
    after = values(cpu.read(real(1.0), None))["process.memory.usage", ()]
    assert len(block) == 64 * MIB
    assert after - before > 48 * MIB


def test_the_real_cpu_is_busy_while_it_works(values):
    first = cpu.read(real(time.monotonic()), None)
    end_s = time.monotonic() + 0.3
    while time.monotonic() < end_s:
        sum(range(1000))
    found = values(cpu.read(real(time.monotonic()), first))
    modes = {labels[0]: value for (name, labels), value in found.items() if name == "system.cpu.utilization"}
    assert sum(modes.values()) == pytest.approx(1)
    assert found["process.cpu.utilization", ("user",)] > 0
    assert cpu.busy(modes) > 0


def test_utilization_needs_two_readings(values):
    first = cpu.read(recorded(10.0, Times(user=100, idle=100), ProcessTimes(5, 1)), None)
    assert not any("cpu.utilization" in name for name, _ in values(first))
    second = cpu.read(
        recorded(
            20.0, Times(user=104, nice=1, system=102, idle=192, iowait=1, softirq=0.5), ProcessTimes(15, 3)
        ),
        first,
    )
    found = values(second)
    total_s = 4 + 1 + 102 + 92 + 1 + 0.5
    assert found["system.cpu.utilization", ("user",)] == pytest.approx(4 / total_s)
    assert found["system.cpu.utilization", ("interrupt",)] == pytest.approx(0.5 / total_s)
    assert found["system.cpu.utilization", ("idle",)] == pytest.approx(92 / total_s)
    assert found["process.cpu.utilization", ("user",)] == pytest.approx(10 / (10 * 4))
    assert found["process.cpu.utilization", ("system",)] == pytest.approx(2 / (10 * 4))
    assert found["process.cpu.time", ("user",)] == 15
    assert ("process.cpu.time", ("iowait",)) not in found


def test_readings_too_close_make_no_rate_but_keep_the_last(values):
    first = cpu.read(recorded(0.0, Times(user=0, idle=0), ProcessTimes(0, 0)), None)
    early = cpu.read(recorded(0.05, Times(user=1, idle=0), ProcessTimes(1, 0)), first)
    assert ("system.cpu.utilization", ("user",)) not in values(early)
    second = cpu.read(recorded(1.0, Times(user=1, idle=3), ProcessTimes(1, 0)), early)
    assert values(second)["system.cpu.utilization", ("user",)] == 0.25
    again = cpu.read(recorded(1.05, Times(user=9, idle=3), ProcessTimes(9, 0)), second)
    assert values(again)["system.cpu.utilization", ("user",)] == 0.25


def test_a_count_that_goes_back_is_no_negative_rate(values):
    first = cpu.read(recorded(0.0, Times(user=0, idle=0, iowait=5), ProcessTimes(9, 0)), None)
    found = values(cpu.read(recorded(1.0, Times(user=1, idle=1, iowait=4), ProcessTimes(8, 0)), first))
    assert found["system.cpu.utilization", ("iowait",)] == 0
    assert found["process.cpu.utilization", ("user",)] == 0


def test_memory_by_state_adds_up(values):
    found = values(cpu.read(recorded(0.0, Times(), ProcessTimes(0, 0)), None))
    usage = {labels[0]: value for (name, labels), value in found.items() if name == "system.memory.usage"}
    assert usage == {"used": 400, "cached": 500, "free": 100}
    assert found["system.memory.utilization", ("used",)] == 0.4
    assert found["system.paging.utilization", ("used",)] == 0.25
    assert found["system.paging.usage", ("free",)] == 300
    assert found["process.memory.usage", ()] == 70


def test_a_host_without_swap_uses_none_of_it(values):
    source = recorded(0.0, Times(), ProcessTimes(0, 0))
    source.psutil.swap_memory = lambda: SimpleNamespace(total=0, used=0, free=0)
    found = values(cpu.read(source, None))
    assert found["system.paging.utilization", ("used",)] == 0
    assert ("system.paging.utilization", ("free",)) not in found


def test_other_ranks_of_the_host_tell_of_their_process_alone(values):
    names = {name.partition(".")[0] for name, _ in values(cpu.read(real(0.0, host=False), None))}
    assert names == {"process"}


def test_one_reading_that_raises_costs_itself_alone(values):
    source = recorded(0.0, Times(), ProcessTimes(0, 0))

    def refuse():
        raise PermissionError("no access to /proc/meminfo")

    source.psutil.virtual_memory = refuse
    reading = cpu.read(source, None)
    assert reading.failures == {"memory of the host": "PermissionError: no access to /proc/meminfo"}
    assert ("process.memory.usage", ()) in values(reading)
    assert ("system.paging.usage", ("used",)) in values(reading)


@pytest.mark.parametrize(("quota", "cpus"), [(None, 4), (1.5, 1.5), (16.0, 4)])
def test_available_cpus_are_the_least_of_affinity_and_quota(quota, cpus):
    groups = SimpleNamespace(cpus=lambda: quota)
    assert cpu.available_cpus(recorded(0.0, Times(), ProcessTimes(0, 0), cgroup=groups)) == cpus


def test_a_limit_of_the_container_is_told(values):
    groups = SimpleNamespace(cpus=lambda: None, memory=lambda: cgroup.Memory(30, 12))
    found = values(cpu.read(recorded(0.0, Times(), ProcessTimes(0, 0), cgroup=groups), None))
    assert found["container.memory.usage", ()] == 30
    assert found["container.memory.available", ()] == 12


def test_a_new_busy_part_keeps_the_make_up_of_both_sides():
    scaled = cpu.with_busy({"user": 0.3, "system": 0.1, "idle": 0.5, "iowait": 0.1}, 0.8)
    assert scaled == pytest.approx({"user": 0.6, "system": 0.2, "idle": 0.2 * 5 / 6, "iowait": 0.2 / 6})


def test_nothing_read_before_means_no_raw_of_others():
    assert cpu.read(recorded(5.0, Times(), ProcessTimes(0, 0)), Reading()).raw.at_s == 5.0
