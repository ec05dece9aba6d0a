"""Which device a rank trains on: what is given wins, then what events say, then the training thread's own."""

from types import SimpleNamespace

import pytest
import torch

from otel_training.rank_device import RankDevice


def with_cuda(monkeypatch, *, initialized=True, current=3):
    cuda = SimpleNamespace(is_initialized=lambda: initialized, current_device=lambda: current)
    monkeypatch.setattr(torch, "cuda", cuda)


@pytest.mark.parametrize(
    ("name", "kind", "index"),
    [
        (None, None, None),
        ("cuda:1", "cuda", 1),
        ("cuda", "cuda", None),
        ("cpu", "cpu", None),
        ("xla:0", "xla", 0),
        ("nonsense device", None, None),
    ],
)
def test_names_have_a_kind_and_an_index(name, kind, index):
    device = RankDevice(name)
    assert (device.kind, device.index) == (kind, index)


def test_what_was_given_is_not_overruled():
    device = RankDevice("cuda:1")
    assert device.learn("cuda:0") is False
    assert device.name == "cuda:1"


def test_events_tell_the_device_as_text_or_as_an_object():
    device = RankDevice()
    assert device.learn(torch.device("cuda", 2)) is True
    assert device.index_of("cuda") == 2
    assert device.learn("cuda:2") is False
    assert device.index_of("xla") is None


def test_a_device_without_index_is_the_current_one_of_the_training_thread(monkeypatch):
    with_cuda(monkeypatch)
    for device in (RankDevice("cuda"), RankDevice()):
        assert device.learn() is True
        assert device.name == "cuda:3"
    device = RankDevice("cpu")
    assert device.learn() is False
    assert device.name == "cpu"


def test_cuda_that_is_not_in_use_is_not_asked(monkeypatch):
    with_cuda(monkeypatch, initialized=False)
    device = RankDevice("cuda")
    assert device.learn("cuda") is False
    assert device.index is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA may be in use here")
def test_the_real_cuda_is_not_initialised():
    RankDevice("cuda").learn("cuda")
    assert not torch.cuda.is_initialized()


def test_an_index_once_known_stays_when_an_event_leaves_it_out():
    device = RankDevice()
    device.learn("cuda:1")
    device.learn("cuda")
    assert device.name == "cuda:1"
