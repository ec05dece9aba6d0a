"""The GPU itself: matched by UUID, one reading at a time, blanks left out."""

import pytest

from otel_training.devices import nvml
from otel_training.devices.reading import Unavailable

A = "11111111-aaaa-4bbb-8ccc-000000000001"
B = "22222222-aaaa-4bbb-8ccc-000000000002"
M = "33333333-aaaa-5bbb-8ccc-000000000003"

HEALTHY = {
    "name": "NVIDIA A100-SXM4-80GB", "mig": [0, 0], "utilization": 87, "encoder": 0, "decoder": 12,
    "memory": (4_000_000_000, 80_000_000_000), "temperature": 61, "power": 312_500, "energy": 7_250_000,
    "corrected": 4, "uncorrected": 0,
}  # fmt: skip


def labels(uuid=f"GPU-{A}", name=HEALTHY["name"], index="0"):
    return uuid, "gpu", name, index


def test_every_reading_has_base_units(fake_nvml, values):
    source = nvml.match(fake_nvml({f"GPU-{A}": HEALTHY}), A, 0)
    assert values(nvml.read(source, None)) == {
        ("hw.gpu.utilization", (*labels(), "general")): pytest.approx(0.87),
        ("hw.gpu.utilization", (*labels(), "encoder")): 0,
        ("hw.gpu.utilization", (*labels(), "decoder")): pytest.approx(0.12),
        ("hw.gpu.memory.usage", labels()): 4_000_000_000,
        ("hw.gpu.memory.limit", labels()): 80_000_000_000,
        ("hw.gpu.memory.utilization", labels()): 0.05,
        ("hw.temperature", labels()): 61,
        ("hw.power", labels()): pytest.approx(312.5),
        ("hw.energy", labels()): pytest.approx(7250),
        ("hw.errors", (*labels(), "corrected")): 4,
        ("hw.errors", (*labels(), "uncorrected")): 0,
    }


def test_devices_are_told_apart_by_uuid_whatever_the_order(fake_nvml, values):
    # CUDA_VISIBLE_DEVICES=1,0: PyTorch's device 0 is NVML's second GPU.
    library = fake_nvml({f"GPU-{A}": HEALTHY, f"GPU-{B}": {**HEALTHY, "temperature": 40}})
    found = values(nvml.read(nvml.match(library, B, 0), None))
    assert found["hw.temperature", labels(f"GPU-{B}")] == 40
    assert {gpu for gpu, _ in library.asked} == {f"GPU-{B}"}


def test_a_gpu_that_nvml_does_not_know_is_left_out(fake_nvml):
    with pytest.raises(Unavailable, match=f"no GPU of the UUID {B}"):
        nvml.match(fake_nvml({f"GPU-{A}": HEALTHY}), B, 0)


def test_an_instance_is_read_as_itself(fake_nvml, values):
    instance = {"name": "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "memory": (1 << 30, 10 << 30)}
    library = fake_nvml({f"GPU-{A}": {**HEALTHY, "mig": [1, 1]}, f"MIG-{M}": instance})
    reading = nvml.read(nvml.match(library, M, 0), None)
    of_instance = labels(f"MIG-{M}", instance["name"])
    assert values(reading) == {
        ("hw.gpu.memory.usage", of_instance): 1 << 30,
        ("hw.gpu.memory.limit", of_instance): 10 << 30,
        ("hw.gpu.memory.utilization", of_instance): 0.1,
    }
    assert reading.failures == {}
    assert set(reading.unsupported) >= {"utilization", "power", "energy", "temperature"}


def test_the_whole_of_a_split_gpu_is_not_taken_for_an_instance(fake_nvml):
    library = fake_nvml({f"GPU-{A}": {**HEALTHY, "mig": [1, 1]}})
    with pytest.raises(Unavailable, match="split"):
        nvml.match(library, A, 0)


@pytest.mark.parametrize("uuid", [A, f"GPU-{A}"])
def test_a_uuid_may_come_with_its_prefix(fake_nvml, uuid):
    assert nvml.match(fake_nvml({f"GPU-{A}": HEALTHY}), uuid, 0).uuid == f"GPU-{A}"


@pytest.mark.parametrize(
    ("reading", "blank", "metric"),
    [
        ("power", 4294967295, "hw.power"),
        ("power", -1, "hw.power"),
        ("energy", 9223372036854775794, "hw.energy"),
        ("energy", 18446744073709551615, "hw.energy"),
        ("temperature", 4294967295, "hw.temperature"),
        ("temperature", 2147483632, "hw.temperature"),
        ("utilization", 101, "hw.gpu.utilization"),
        ("utilization", 4294967295, "hw.gpu.utilization"),
        ("corrected", 9223372036854775794, "hw.errors"),
        ("memory", (18446744073709551615, 80 << 30), "hw.gpu.memory.usage"),
        ("memory", (90 << 30, 80 << 30), "hw.gpu.memory.utilization"),
    ],
)
def test_blanks_are_absent_and_cost_nothing_else(fake_nvml, values, reading, blank, metric):
    whole = values(nvml.read(nvml.match(fake_nvml({f"GPU-{A}": HEALTHY}), A, 0), None))
    found = values(nvml.read(nvml.match(fake_nvml({f"GPU-{A}": {**HEALTHY, reading: blank}}), A, 0), None))
    missing = {name for name, _ in set(whole) - set(found)}
    assert metric in missing
    assert missing <= {metric, "hw.gpu.memory.utilization"}


def test_one_reading_that_raises_costs_itself_alone(fake_nvml, nvml_error, values):
    library = fake_nvml({f"GPU-{A}": {**HEALTHY, "power": nvml_error(15), "energy": nvml_error(3)}})
    reading = nvml.read(nvml.match(library, A, 0), None)
    assert reading.failures == {"power": "NVMLError: GPU is lost"}
    assert reading.unsupported == {"energy": "NVMLError: Not Supported"}
    names = {name for name, _ in values(reading)}
    assert names == {
        "hw.gpu.utilization", "hw.gpu.memory.usage", "hw.gpu.memory.limit", "hw.gpu.memory.utilization",
        "hw.temperature", "hw.errors",
    }  # fmt: skip


def test_a_library_that_does_not_know_a_function_costs_that_reading_alone(fake_nvml, values):
    class Older(fake_nvml):
        @property
        def nvmlDeviceGetTotalEnergyConsumption(self):  # noqa: N802
            raise AttributeError("module 'pynvml' has no attribute 'nvmlDeviceGetTotalEnergyConsumption'")

    reading = nvml.read(nvml.match(Older({f"GPU-{A}": HEALTHY}), A, 0), None)
    assert list(reading.unsupported) == ["energy"]
    assert ("hw.power", labels()) in values(reading)


@pytest.mark.parametrize(("name", "shown"), [(b"NVIDIA H200", "NVIDIA H200"), (None, None)])
def test_names_are_text_or_absent(fake_nvml, nvml_error, name, shown):
    library = fake_nvml({f"GPU-{A}": {**HEALTHY, "name": nvml_error(3) if name is None else name}})
    assert nvml.match(library, A, 0).name == shown


def test_a_machine_without_a_driver_says_so(fake_nvml, nvml_error):
    library = fake_nvml({})

    def refuse():
        raise nvml_error(6)

    library.nvmlInit = refuse
    with pytest.raises(Unavailable, match="NVML is not there: Not Found"):
        nvml.initialised(library)
