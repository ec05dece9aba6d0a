"""What a device's allocator holds, as far as it can be said."""

import pytest
import torch

from trainer.memory import memory_usage_bytes


@pytest.fixture
def cuda(monkeypatch):
    """A CUDA device in use with a number of bytes for each index; the current one is 0."""
    used_bytes = {None: 100, torch.device("cuda:1"): 200, "cuda:1": 200, "cpu": -1, torch.device("cpu"): -1}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_allocated", used_bytes.__getitem__)
    return monkeypatch


def test_nothing_without_a_device():
    assert torch.cuda.is_initialized() or torch.backends.mps.is_available() or memory_usage_bytes() is None


@pytest.mark.parametrize(
    ("device", "used_bytes"), [(None, 100), ("cuda:1", 200), (torch.device("cuda:1"), 200)]
)
def test_cuda_in_use_is_asked_for_the_given_device(cuda, device, used_bytes):
    assert memory_usage_bytes(device) == used_bytes


def test_cuda_not_in_use_is_not_asked(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "memory_allocated", asked.append)
    assert memory_usage_bytes("cuda:0") is None
    assert memory_usage_bytes() in (None, memory_usage_bytes("mps"))
    assert asked == []


def test_mps_is_asked_when_there_is_no_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: 300)
    assert memory_usage_bytes() == 300
    assert memory_usage_bytes("mps") == 300


def test_a_run_on_the_cpu_has_none_whatever_else_is_in_use(cuda):
    assert memory_usage_bytes("cpu") is None
    assert memory_usage_bytes(torch.device("cpu")) is None
    cuda.setattr(torch.backends.mps, "is_available", lambda: True)
    cuda.setattr(torch.mps, "current_allocated_memory", lambda: 300)
    assert memory_usage_bytes("cpu") is None


@pytest.mark.parametrize("device", [None, "no such device", object()])
def test_any_failure_is_none(monkeypatch, device):
    def fail(*_):
        raise RuntimeError("driver")

    monkeypatch.setattr(torch.cuda, "is_initialized", fail)
    assert memory_usage_bytes(device) is None


def test_torch_is_not_imported_for_it(run_python):
    run_python(
        "import sys; from trainer.memory import memory_usage_bytes as m;"
        "assert m() is None; assert 'torch' not in sys.modules"
    )


def test_cuda_is_not_initialised_by_it(run_python):
    run_python(
        "import torch; from trainer.memory import memory_usage_bytes as m;"
        "m(); m('cuda'); m(torch.device('cuda:0')); assert not torch.cuda.is_initialized()"
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_bytes_on_a_gpu():
    before_bytes = memory_usage_bytes("cuda:0") or 0
    kept = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda:0")
    assert memory_usage_bytes("cuda:0") == before_bytes + kept.numel()
