"""The loaders of a configured run."""

import pytest
import torch

from trainer.config import load_config
from trainer.loaders import build_loaders
from trainer.problems import ConfigError
from trainer.ranks import Ranks

CPU = torch.device("cpu")


@pytest.fixture
def config(tmp_path):
    text = tmp_path / "text.txt"
    text.write_bytes(bytes(range(256)) * 8)

    def make(**overrides):
        values = {"data.paths": [str(text)], "model.context": 8, "data.batch_size": 4, **overrides}
        return load_config(None, values)

    return make


def _blocks(loader):
    return [tuple(block.tolist()) for inputs, _ in loader for block in inputs]


@pytest.mark.parametrize("sampling", ["random", "sequential"])
def test_ranks_share_an_epoch_without_reading_anything_twice(config, sampling):
    settings = config(**{"data.sampling": sampling, "data.batch_size": 1, "data.holdout_fraction": 0.0})
    alone = _blocks(build_loaders(settings, CPU, Ranks())["train"])
    shares = [_blocks(build_loaders(settings, CPU, Ranks(rank, 2))["train"]) for rank in (0, 1)]
    assert len(shares[0]) == len(shares[1]) == len(alone) // 2
    interleaved = [block for pair in zip(*shares, strict=True) for block in pair]
    assert interleaved == alone[: len(interleaved)]


def test_a_share_that_is_too_small_is_told_with_its_numbers(config):
    settings = config(**{"data.batch_size": 200, "data.holdout_fraction": 0.0})
    assert "train" in build_loaders(settings, CPU, Ranks())
    with pytest.raises(ConfigError, match=r"a share of the text for 2 ranks has 127 blocks .* needs 200"):
        build_loaders(settings, CPU, Ranks(0, 2))
