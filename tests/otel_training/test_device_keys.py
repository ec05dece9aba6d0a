"""The table from monitor keys to metrics: every form of Lightning's and of ours."""

import pytest

from otel_training import device_keys
from otel_training.device_keys import base_of, has_metric, is_cuda_stat, is_monitor_key, sample_of
from otel_training.devices import cuda
from otel_training.rank_device import RankDevice

MIB = 1 << 20


@pytest.mark.parametrize(
    ("base", "value", "device", "source", "metric", "labels", "expected"),
    [
        ("cpu_percent", 42.0, "cpu", "cpu", "system.cpu.utilization", (None,), 0.42),
        ("cpu_vm_percent", 61.5, "cpu", "cpu", "system.memory.utilization", ("used",), 0.615),
        ("cpu_swap_percent", 0.0, "cpu", "cpu", "system.paging.utilization", ("used",), 0.0),
        ("M1_percent", 10.0, "mps", "cpu", "system.cpu.utilization", (None,), 0.1),
        ("M1_vm_percent", 50.0, "mps", "cpu", "system.memory.utilization", ("used",), 0.5),
        ("M1_swap_percent", 5.0, "mps", "cpu", "system.paging.utilization", ("used",), 0.05),
        ("allocated_bytes.all.current", 900, "cuda:1", "cuda", "torch.cuda.memory.allocated", ("1",), 900),
        ("num_ooms", 2, "cuda:1", "cuda", "torch.cuda.allocator.ooms", ("1",), 2),
        (
            "active_bytes.large_pool.peak",
            7,
            "cuda:0",
            "cuda",
            "torch.cuda.memory.pool.peak.active",
            ("0", "large"),
            7,
        ),
        ("memory.free.xla:0", 3, "xla:0", "xla", "torch_xla.memory.free", ("xla:0",), 3 * MIB),
        ("memory.used.xla:1", 5.5, "xla:1", "xla", "torch_xla.memory.usage", ("xla:1",), 5.5 * MIB),
        ("memory.percent.xla:0", 25.0, None, "xla", "torch_xla.memory.utilization", ("xla:0",), 0.25),
        ("CachedCompile.xla", 4, "xla:0", "xla", "torch_xla.events", ("CachedCompile",), 4),
        ("xla::add.xla", 4, "xla:0", "xla", "torch_xla.events", ("xla::add",), 4),
        ("avg. free memory (MB)", 2048, "xla:0", "xla", "torch_xla.memory.free", ("xla:0",), 2 * MIB),
        ("avg. peak memory (MB)", 1024, "xla:0", "xla", "torch_xla.memory.usage", ("xla:0",), MIB),
    ],
)
def test_each_form_has_its_cell(base, value, device, source, metric, labels, expected):
    found_source, sample = sample_of(base, value, RankDevice(device))
    assert (found_source, sample.metric.name, sample.labels) == (source, metric, labels)
    assert sample.value == pytest.approx(expected)
    assert has_metric(base)


@pytest.mark.parametrize("key", list(cuda.STATS))
def test_every_curated_statistic_of_cuda_has_its_form(key):
    source, sample = sample_of(key, 1, RankDevice("cuda:0"))
    metric, pool = cuda.STATS[key]
    assert (source, sample.metric) == ("cuda", metric)
    assert sample.labels == (("0",) if pool is None else ("0", pool))


@pytest.mark.parametrize(
    ("base", "value"),
    [("cpu_percent", 101), ("cpu_percent", -1), ("memory.percent.xla:0", 100.5), ("num_ooms", None),
     ("memory.used.xla:0", 9223372036854775794), ("fan.speed (%)", 30)],
)  # fmt: skip
def test_what_is_impossible_or_unknown_is_nothing(base, value):
    assert sample_of(base, value, RankDevice("cuda:0")) is None


def test_statistics_of_cuda_are_told_from_other_keys():
    stats = ("segment.all.freed", "num_sync_all_streams", "max_split_size", "oversize_segments.peak")
    assert all(is_cuda_stat(key) for key in stats)
    assert not any(is_cuda_stat(key) for key in ("cpu_percent", "fan.speed (%)", "hpu.all", "temperature"))


def test_keys_are_cut_at_the_hook():
    assert is_monitor_key("DeviceStatsMonitor.on_test_batch_end/cpu_percent")
    assert not is_monitor_key("step")
    assert not is_monitor_key(7)
    assert base_of("DeviceStatsMonitor.on_train_batch_end/avg. free memory (MB)") == "avg. free memory (MB)"


def test_no_two_forms_are_of_one_base():
    bases = [form.base for form in device_keys.FORMS]
    assert len(bases) == len(set(bases))
