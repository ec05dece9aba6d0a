"""``device_stats`` events through a hook: cells of the sampler, no stage, no hook name, nothing twice."""

import json
import math

import pytest

P = "DeviceStatsMonitor.on_train_batch_start/"


def stats(**fields):
    return {"step": 2, "stage": "fit", **{P + key.replace("__", "."): value for key, value in fields.items()}}


def test_percent_becomes_a_fraction_and_the_newest_value_wins(telemetry_capture):
    hook = telemetry_capture.hook
    hook.on_event("device_stats", stats(cpu_percent=42.0, cpu_vm_percent=61.5, cpu_swap_percent=3.0))
    later = {"step": 2, "stage": "fit", "DeviceStatsMonitor.on_train_batch_end/cpu_percent": 50.0}
    hook.on_event("device_stats", later)
    hook.on_event(
        "device_stats", {"step": 2, "stage": "test", "DeviceStatsMonitor.on_test_batch_end/cpu_percent": 20.0}
    )
    points = telemetry_capture.points()
    found = {name: point.value for (name, _), point in points.items() if not name.startswith("training.")}
    assert found == pytest.approx(
        {"system.cpu.utilization": 0.2, "system.memory.utilization": 0.615, "system.paging.utilization": 0.03}
    )


def test_no_metric_carries_a_hook_or_a_stage(telemetry_capture):
    telemetry_capture.hook.on_event("device_stats", stats(cpu_percent=42.0, num_ooms=1, brand_new=3))
    text = repr(list(telemetry_capture.points()))
    assert "on_train_batch" not in text
    assert "DeviceStatsMonitor" not in text
    assert "training.stage" not in text


def test_the_device_is_the_one_that_train_start_named(telemetry_capture):
    hook = telemetry_capture.hook
    hook.on_event("train_start", {"start_step": 0, "device": "cuda:1"})
    hook.on_event("device_stats", stats(allocated_bytes__all__current=900, num_ooms=2))
    assert telemetry_capture.value("torch.cuda.memory.allocated", torch_device_index="1") == 900
    assert telemetry_capture.value("torch.cuda.allocator.ooms", torch_device_index="1") == 2


def test_statistics_beyond_the_curated_are_not_carried_by_default(telemetry_capture):
    telemetry_capture.hook.on_event("device_stats", stats(segment__all__current=14, num_sync_all_streams=5))
    names = {name for name, _ in telemetry_capture.points()}
    assert not names & {"torch.cuda.memory.stat", "training.custom"}


def test_keys_that_nothing_is_known_of_are_free_numbers(telemetry_capture):
    telemetry_capture.hook.on_event("device_stats", {**stats(hpu_power=7.5), "note": 3})
    assert telemetry_capture.value("training.custom", training_field="hpu_power") == 7.5
    assert telemetry_capture.value("training.custom", training_field="note") == 3


def test_both_spellings_of_xla_reach_the_same_cells(telemetry_capture):
    hook = telemetry_capture.hook
    hook.on_event("train_start", {"start_step": 0, "device": "xla:0"})
    hook.on_event(
        "device_stats",
        {P + "memory.used.xla:0": 5, P + "memory.free.xla:0": 11, P + "UncachedCompile.xla": 2},
    )
    hook.on_event("device_stats", {P + "avg. free memory (MB)": 1024, P + "avg. peak memory (MB)": 2048})
    for metric, size in (("usage", 2 << 20), ("free", 1 << 20)):
        points = telemetry_capture.points(f"torch_xla.memory.{metric}")
        assert [point.value for point in points.values()] == [size]
    assert telemetry_capture.value("torch_xla.events", torch_xla_event_name="UncachedCompile") == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, "n/a", None, -1, 250, [1], True])
def test_a_value_that_is_none_costs_itself_alone(telemetry_capture, value):
    telemetry_capture.hook.on_event("device_stats", {**stats(cpu_vm_percent=50.0), P + "cpu_percent": value})
    assert telemetry_capture.value("system.memory.utilization") == 0.5
    assert telemetry_capture.value("system.cpu.utilization") in (None, 0.01)  # True is one percent
    handled = telemetry_capture.value(
        "training.bridge.events", training_event_name="device_stats", training_event_outcome="handled"
    )
    assert handled == 1


def test_the_host_is_told_by_the_first_rank_of_it_alone(monkeypatch):
    from otel_training.testing import TelemetryCapture

    for name, value in {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    capture = TelemetryCapture(run_id="two-on-a-host")
    capture.hook.on_event("device_stats", stats(cpu_percent=42.0, num_ooms=2))
    assert capture.value("system.cpu.utilization") is None
    assert capture.value("torch.cuda.allocator.ooms") == 2
    capture.close()


def test_a_real_line_of_json_can_be_replayed(telemetry_capture):
    line = json.dumps({"event": "device_stats", **stats(cpu_percent=12.5), "elapsed_s": 1.0})
    payload = json.loads(line)
    telemetry_capture.hook.on_event(payload.pop("event"), payload)
    assert telemetry_capture.value("system.cpu.utilization") == 0.125
    assert telemetry_capture.value("training.custom") is None
