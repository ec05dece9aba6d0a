"""A rank's place; what ranks do together is tested under torchrun, in tests/contract/test_ranks.py."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from trainer.ranks import Ranks, joined_ranks, launched_ranks, present_ranks


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Ranks(0, 1, 0)),
        ({"RANK": "3"}, Ranks(0, 1, 0)),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, Ranks(3, 4, 1)),
        ({"RANK": "3", "WORLD_SIZE": "4"}, Ranks(3, 4, 3)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, Ranks(0, 1, 0)),
    ],
)
def test_the_place_that_the_launcher_tells(environ, expected):
    assert launched_ranks(environ) == expected


def test_a_rank_alone_talks_to_itself():
    ranks, model = Ranks(), nn.Linear(1, 1)
    assert ranks.is_alone
    assert ranks.is_first
    assert ranks.wrap(model) is model
    assert ranks.from_first(lambda: "found") == "found"
    assert ranks.gather("mine") == ["mine"]
    assert ranks.highest(3) == 3
    assert ranks.sums(1.5, 2) == [1.5, 2]
    with ranks.without_sync(model):
        model(torch.ones(1, 1)).backward()
    assert model.weight.grad is not None
    with pytest.raises(ValueError, match="as it was"):
        ranks.from_first(lambda: (_ for _ in ()).throw(ValueError("as it was")))


def test_without_a_launcher_there_is_no_process_group():
    with joined_ranks(torch.device("cpu")) as ranks:
        assert ranks == present_ranks() == Ranks()
        assert not dist.is_initialized()


def test_a_rank_of_several_without_a_process_group_is_told_how_to_join(monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError, match=r"rank 1 of 2 .*joined_ranks"):
        present_ranks()
