"""torch_xla, from what the real library answered on its CPU runtime and, for memory, on TPUs."""

from types import SimpleNamespace

import pytest

from otel_training.devices import xla
from otel_training.devices.xla import DeviceMemory, XlaSource

GIB = 1 << 30


def source(answers, memory):
    def get_memory_info(_device):
        if isinstance(memory, Exception):
            raise memory
        return memory

    metrics = SimpleNamespace(
        counter_names=lambda: list(answers["counters"]),
        counter_value=answers["counters"].get,
        metric_data=answers["metrics (samples, accumulator)"].get,
    )
    return XlaSource(SimpleNamespace(get_memory_info=get_memory_info), metrics, answers["device"])


def test_the_cpu_runtime_has_counters_and_times_but_no_memory(xla_answers, values):
    refusal = RuntimeError(xla_answers["get_memory_info raises"].partition(": ")[2])
    reading = xla.read(source(xla_answers, refusal), None)
    found = values(reading)
    events = {labels[0]: value for (name, labels), value in found.items() if name == "torch_xla.events"}
    assert events == xla_answers["counters"]
    assert found["torch_xla.compiles", ()] == 2
    assert found["torch_xla.compile.time", ()] == pytest.approx(0.253745968)
    assert found["torch_xla.executions", ()] == 3
    assert found["torch_xla.execute.time", ()] == pytest.approx(0.071379376)
    assert not any(name.startswith("torch_xla.memory") for name, _ in found)
    assert list(reading.unsupported) == ["memory"]
    assert reading.failures == {}


@pytest.mark.parametrize(
    ("info", "memory"),
    [
        ({"bytes_used": 4 * GIB, "bytes_limit": 16 * GIB, "peak_bytes_used": 5 * GIB}, (4, 12, 16)),
        ({"kb_free": 12 * 1024**2, "kb_total": 16 * 1024**2}, (4, 12, 16)),
        ({"bytes_used": 0, "bytes_limit": 16 * GIB}, (0, 16, 16)),
        ({"bytes_limit": 16 * GIB}, (None, None, 16)),
        ({"bytes_used": 4 * GIB, "bytes_limit": 0}, (4, None, 0)),
        ({"kb_free": 12 * 1024**2}, (None, 12, None)),
        ({"kb_free": -1, "kb_total": 16 * 1024**2}, (None, None, 16)),
        ({}, (None, None, None)),
    ],
)
def test_memory_is_read_from_both_shapes_of_answer(info, memory):
    assert xla.memory_of(info) == DeviceMemory(*(None if gib is None else gib * GIB for gib in memory))


def test_memory_of_a_tpu_is_told_with_its_device(xla_answers, values):
    found = values(xla.read(source(xla_answers, {"bytes_used": 4 * GIB, "bytes_limit": 16 * GIB}), None))
    assert found["torch_xla.memory.usage", ("xla:0",)] == 4 * GIB
    assert found["torch_xla.memory.free", ("xla:0",)] == 12 * GIB
    assert found["torch_xla.memory.limit", ("xla:0",)] == 16 * GIB
    assert found["torch_xla.memory.utilization", ("xla:0",)] == 0.25


def test_nothing_compiled_yet_is_absent(xla_answers, values):
    xla_answers["metrics (samples, accumulator)"] = {}
    found = values(xla.read(source(xla_answers, {}), None))
    assert not any(name.startswith(("torch_xla.compile", "torch_xla.exec")) for name, _ in found)


def test_another_error_is_a_failure(xla_answers):
    assert list(xla.read(source(xla_answers, RuntimeError("device lost")), None).failures) == ["memory"]
