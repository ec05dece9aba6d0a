"""What a round takes and refuses, and the mean of it."""

import math

import pytest

from trainer.diloco.objects import delta_label, parse_delta_label
from trainer.diloco.round import Round


def _name(worker, step=1):
    return parse_delta_label(delta_label(0, step, worker, "0"))


def test_the_mean_is_over_workers_and_a_workers_deltas_add_up(weights):
    current = Round(0, weights(0.0))
    for name, value in ((_name("a", 1), 1.0), (_name("b", 1), 4.0), (_name("a", 2), 3.0)):
        assert current.refuse(name, weights(value)) is None
    assert current.mean()["w"].tolist() == [4.0] * 3
    assert current.deltas_included == 3
    assert current.included == {"a": [_name("a", 1).label, _name("a", 2).label], "b": [_name("b", 1).label]}
    assert current.labels == {_name("a", 1).label, _name("a", 2).label, _name("b", 1).label}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_deltas_are_refused(weights, value):
    current = Round(0, weights(0.0))
    assert current.refuse(_name("a"), weights(value)) == "it is not finite"
    assert current.included == {}


def test_other_shapes_are_refused(weights):
    current = Round(0, weights(0.0))
    assert "shape (4,), expected is (3,)" in current.refuse(_name("a"), weights(1.0, size=4))
    assert "missing" in current.refuse(_name("a"), {"w": weights(1.0)["w"]})
    with pytest.raises(ValueError, match="without deltas"):
        current.mean()
