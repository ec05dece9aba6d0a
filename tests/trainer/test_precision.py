"""Precisions."""

import pytest
import torch

from trainer.precision import Precision

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "resolved", "dtype"),
    [
        ("auto", "fp32", torch.float32),
        ("fp32", "fp32", torch.float32),
        ("bf16", "bf16", torch.bfloat16),
        ("fp16", "fp16", torch.float16),
    ],
)
def test_a_matrix_product_is_computed_in_it(name, resolved, dtype):
    precision = Precision(name, CPU)
    assert precision.name == resolved
    with precision.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype
    assert precision.scaler.is_enabled() == (name == "fp16")


def test_an_unknown_one_is_refused():
    with pytest.raises(ValueError, match="'fp8' is unknown; accepted: auto, bf16, fp16, fp32"):
        Precision("fp8", CPU)
