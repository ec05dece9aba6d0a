"""The allocator's statistics: the curated ones by name, all others on request, of one device."""

import pytest
import torch

from otel_training.devices import cuda
from otel_training.devices.cuda import CudaSource
from otel_training.devices.reading import Unavailable


def test_the_curated_statistics_are_named_with_their_device(fake_cuda, cuda_stats, values):
    found = values(cuda.read(CudaSource(fake_cuda({1: cuda_stats}), 1, all_stats=False), None))
    assert found["torch.cuda.memory.allocated", ("1",)] == 5_368_709_120
    assert found["torch.cuda.memory.peak.allocated", ("1",)] == 6_710_886_400
    assert found["torch.cuda.memory.pool.reserved", ("1", "small")] == 805_306_368
    assert found["torch.cuda.memory.limit", ("1",)] == 80 << 30
    assert found["torch.cuda.allocator.ooms", ("1",)] == 2
    assert found["torch.cuda.allocator.retries", ("1",)] == 3
    assert found["torch.cuda.allocator.allocations", ("1",)] == 44
    assert found["torch.cuda.allocator.frees", ("1",)] == 30


def test_the_default_set_is_small_and_complete(fake_cuda, cuda_stats, values):
    assert len(cuda_stats) > 120
    found = values(cuda.read(CudaSource(fake_cuda({0: cuda_stats}), 0, all_stats=False), None))
    assert len({name for name, _ in found}) == 19
    assert set(cuda.STATS) <= set(cuda_stats)


def test_everything_else_comes_on_request_under_its_key(fake_cuda, cuda_stats, values):
    found = values(cuda.read(CudaSource(fake_cuda({0: cuda_stats}), 0, all_stats=True), None))
    stats = {labels[1]: value for (name, labels), value in found.items() if name == "torch.cuda.memory.stat"}
    assert stats["segment.all.current"] == 14
    assert stats["num_sync_all_streams"] == 5
    assert "allocated_bytes.all.current" not in stats
    # max_split_size is -1: no limit, which is no size
    assert set(stats) == set(cuda_stats) - set(cuda.STATS) - {"max_split_size"}


def test_a_device_that_was_named_is_read_whatever_is_current(fake_cuda, values):
    source = CudaSource(fake_cuda({0: {"num_ooms": 7}, 1: {"num_ooms": 9}}), index=1, all_stats=False)
    assert values(cuda.read(source, None))["torch.cuda.allocator.ooms", ("1",)] == 9


def test_the_only_device_need_not_be_named(fake_cuda, values):
    source = CudaSource(fake_cuda({0: {"num_ooms": 7}}), index=None, all_stats=False)
    assert values(cuda.read(source, None))["torch.cuda.allocator.ooms", ("0",)] == 7


def test_one_of_several_is_never_guessed(fake_cuda):
    source = CudaSource(fake_cuda({0: {"num_ooms": 7}, 1: {"num_ooms": 9}}), index=None, all_stats=False)
    with pytest.raises(Unavailable, match="pass device="):
        cuda.read(source, None)


def test_a_key_that_is_missing_is_no_error(fake_cuda, values):
    source = CudaSource(fake_cuda({0: {"allocated_bytes.all.current": 100}}), 0, all_stats=True)
    source.cuda.is_initialized = lambda: False
    assert values(cuda.read(source, None)) == {("torch.cuda.memory.allocated", ("0",)): 100}


def test_nothing_is_initialised_and_no_stream_synchronised(fake_cuda, cuda_stats):
    fake = fake_cuda({0: cuda_stats})
    for index in (0, None):
        cuda.read(CudaSource(fake, index, all_stats=True), None)
    assert fake.forbidden_calls == []


@pytest.mark.parametrize("index", [None, 0])
@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA may be in use here")
def test_the_real_torch_without_cuda_has_no_data(index):
    with pytest.raises(Unavailable, match="not in use"):
        cuda.read(CudaSource(torch.cuda, index, all_stats=True), None)
    assert not torch.cuda.is_initialized()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_real_gpu_tells_of_a_tensor(values):
    block = torch.ones(64 << 20, dtype=torch.uint8, device="cuda:0")
    found = values(cuda.read(CudaSource(torch.cuda, 0, all_stats=False), None))
    assert found["torch.cuda.memory.allocated", ("0",)] >= block.numel()
    assert found["torch.cuda.memory.limit", ("0",)] == torch.cuda.get_device_properties(0).total_memory
