"""Sizes that suit the device, and those that do not."""

import pytest
import torch

from trainer.events import EVENTS
from trainer.shapes import ShapeCheck, sizes_of_run

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def _sizes(**changes):
    fitting = {"batch_size": 16, "context": 64, "width": 128, "heads": 4, "vocabulary": 256}
    return sizes_of_run(**{**fitting, **changes})


@pytest.mark.parametrize(
    ("alignment", "device", "precision", "expected"),
    [
        ("auto", CUDA, "bf16", 8),
        ("auto", CUDA, "fp16", 8),
        ("auto", CUDA, "fp32", None),
        ("auto", CPU, "bf16", None),
        (16, CPU, "fp32", 16),
        (16, CUDA, "bf16", 16),
        (None, CUDA, "bf16", None),
    ],
)
def test_the_alignment(alignment, device, precision, expected):
    profile = ShapeCheck(_sizes(batch_size=3), alignment).profile(device, precision)
    assert profile.alignment == expected
    assert profile.payload() == {
        "device_type": device.type,
        "precision": precision,
        "alignment": expected,
        "warning_count": 0 if expected is None else 1,
    }


def test_sizes_that_fit_are_not_warned_about():
    assert ShapeCheck(_sizes()).profile(CUDA, "bf16").warnings == ()


@pytest.mark.parametrize(
    ("changes", "warnings"),
    [
        ({"batch_size": 12}, [("data.batch_size", 12, 16, "batch_alignment")]),
        ({"context": 65}, [("model.context", 65, 72, "sequence_alignment")]),
        (
            {"width": 100},
            [
                ("model.width", 100, 104, "model_alignment"),
                ("model.width / model.heads", 25, 32, "model_alignment"),
            ],
        ),
        ({"heads": 32}, [("model.width / model.heads", 4, 8, "model_alignment")]),
        ({"vocabulary": 257}, []),
    ],
)
def test_a_warning_for_each_size_that_does_not_fit(changes, warnings):
    found = ShapeCheck(_sizes(**changes)).profile(CUDA, "bf16").warnings
    assert [(each.field, each.value, each.suggested, each.code) for each in found] == warnings
    for each in found:
        assert set(each.payload()) == set(EVENTS["shape_warning"].fields)
        assert each.alignment == 8


def test_the_vocabulary_is_checked_on_request():
    (warning,) = ShapeCheck(_sizes(vocabulary=257), vocabulary=True).profile(CUDA, "bf16").warnings
    assert (warning.field, warning.value, warning.suggested) == ("vocabulary", 257, 264)


def test_an_alignment_below_one_is_refused():
    with pytest.raises(ValueError, match=r"shapes\.alignment must be auto, null or at least 1, got 0"):
        ShapeCheck((), 0)


def test_a_trainer_tells_its_shapes_just_before_it_starts(make_run, quiet_logger, heard):
    check = ShapeCheck(_sizes(batch_size=5), 4)
    make_run(logger=quiet_logger, shapes=check, max_steps=1, compile=True, compile_backend="eager").fit()
    assert heard.names[:4] == ["shape_profile", "shape_warning", "compile", "train_start"]
    (start,) = heard.of("train_start")
    assert (start["shape_alignment"], start["shape_warning_count"]) == (4, 1)
