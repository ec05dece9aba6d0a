"""One cell per series, whoever writes it."""

import pytest

from otel_training import catalog
from otel_training.device_cells import DeviceCells
from otel_training.devices.reading import Sample
from otel_training.state import State


@pytest.fixture
def state():
    return State()


@pytest.fixture
def cells(state):
    return DeviceCells(state)


def test_what_a_source_says_no_longer_is_withdrawn(cells, state):
    cells.replace("mps", [Sample(catalog.MPS_ALLOCATED, 5), Sample(catalog.MPS_DRIVER_ALLOCATED, 9)])
    cells.replace("cpu", [Sample(catalog.SYSTEM_MEMORY_LIMIT, 100)])
    cells.replace("mps", [Sample(catalog.MPS_ALLOCATED, 6)])
    assert state.get(catalog.MPS_ALLOCATED) == 6
    assert state.get(catalog.MPS_DRIVER_ALLOCATED) is None
    assert state.get(catalog.SYSTEM_MEMORY_LIMIT) == 100


def test_counters_never_fall_when_their_source_begins_anew(cells, state):
    seen = []
    for total in (7, 9, 2, 2, 5):
        cells.replace("cuda", [Sample(catalog.CUDA_OOMS, total, ("0",))])
        seen.append(state.get(catalog.CUDA_OOMS, "0"))
    cells.replace("cuda", [])
    seen.append(state.get(catalog.CUDA_OOMS, "0"))
    cells.replace("cuda", [Sample(catalog.CUDA_OOMS, 6, ("0",))])
    assert [*seen, state.get(catalog.CUDA_OOMS, "0")] == [7, 9, 11, 11, 14, 14, 15]


def test_a_later_run_of_the_same_identity_goes_on_from_the_totals(cells, state):
    cells.replace("cuda", [Sample(catalog.CUDA_OOMS, 7, ("0",))])
    later = DeviceCells(state)
    later.replace("cuda", [Sample(catalog.CUDA_OOMS, 9, ("0",))])
    assert state.get(catalog.CUDA_OOMS, "0") == 9


def test_counters_beyond_the_cap_are_summed(cells, state):
    names = [f"xla::op_{number}" for number in range(catalog.XLA_EVENT.cap + 10)]
    for total in (1, 3):
        cells.replace("xla", [Sample(catalog.XLA_EVENTS, total, (name,)) for name in names])
    assert state.get(catalog.XLA_EVENTS, catalog.OTHER) == 30
    assert state.get(catalog.XLA_EVENTS, "xla::op_0") == 3


def test_a_number_beside_the_others_leaves_them(cells, state):
    cells.replace("mps", [Sample(catalog.MPS_ALLOCATED, 5)])
    cells.put("mps", Sample(catalog.MPS_DRIVER_ALLOCATED, 9))
    assert (state.get(catalog.MPS_ALLOCATED), state.get(catalog.MPS_DRIVER_ALLOCATED)) == (5, 9)
    cells.replace("mps", [Sample(catalog.MPS_ALLOCATED, 5)])
    assert state.get(catalog.MPS_DRIVER_ALLOCATED) is None


def test_a_busy_part_alone_is_a_series_until_the_modes_are_known(cells, state):
    cells.put("cpu", Sample(catalog.SYSTEM_CPU_UTILIZATION, 0.4, (None,)))
    assert state.values_of(catalog.SYSTEM_CPU_UTILIZATION) == {(None,): 0.4}
    modes = {"user": 0.3, "system": 0.1, "idle": 0.6}
    cells.replace(
        "cpu", [Sample(catalog.SYSTEM_CPU_UTILIZATION, part, (mode,)) for mode, part in modes.items()]
    )
    assert state.values_of(catalog.SYSTEM_CPU_UTILIZATION) == {(mode,): part for mode, part in modes.items()}


def test_a_busy_part_is_spread_over_the_known_modes(cells, state):
    modes = {"user": 0.3, "system": 0.1, "idle": 0.6}
    cells.replace(
        "cpu", [Sample(catalog.SYSTEM_CPU_UTILIZATION, part, (mode,)) for mode, part in modes.items()]
    )
    cells.put("cpu", Sample(catalog.SYSTEM_CPU_UTILIZATION, 0.8, (None,)))
    parts = {labels[0]: part for labels, part in state.values_of(catalog.SYSTEM_CPU_UTILIZATION).items()}
    assert parts == pytest.approx({"user": 0.6, "system": 0.2, "idle": 0.2})


def test_what_is_learnt_of_the_device_is_told_once(cells):
    told = []
    cells.on_device_known = lambda: told.append(cells.device.name)
    cells.learn("cuda:1")
    cells.learn("cuda:1")
    cells.learn()
    assert told == ["cuda:1"]
