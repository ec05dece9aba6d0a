"""Choice of the device."""

import pytest
import torch

from trainer.device import pick_device


def test_a_named_device_is_taken():
    assert pick_device("cpu") == pick_device(torch.device("cpu")) == torch.device("cpu")


@pytest.mark.parametrize("name", [None, "auto"])
def test_otherwise_the_best_there_is(name):
    assert (pick_device(name).type == "cuda") == torch.cuda.is_available()


@pytest.mark.parametrize("name", ["warp", "cuda:99", "", "cpu:x"])
def test_a_device_that_is_not_there_is_refused(name):
    with pytest.raises(ValueError, match=r"cannot be used \(.*\); accepted: auto, cpu, cuda"):
        pick_device(name)
