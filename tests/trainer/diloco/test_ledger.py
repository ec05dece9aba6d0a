"""Each local step reaches the global weights exactly once, whatever becomes of its delta."""

import pytest
import torch

from trainer.diloco.ledger import Ledger
from trainer.diloco.objects import GlobalWeights


def _globals(generation, value, **included):
    return GlobalWeights(generation, {"w": torch.tensor([value])}, included)


def _weights(value):
    return {"w": torch.tensor([value])}


@pytest.fixture
def ledger():
    return Ledger(_globals(0, 100.0), step=0)


def _hand_over(ledger, label, value, step):
    delta = ledger.delta(_weights(value))
    ledger.hand_over(label, delta, _weights(value), step)
    return delta["w"].item()


def test_a_delta_is_what_was_not_told_yet(ledger):
    assert _hand_over(ledger, "d1", 97.0, 10) == 3.0
    assert ledger.in_flight == 1
    assert ledger.delta(_weights(95.0))["w"].item() == 2.0


def test_an_included_delta_is_not_counted_again(ledger):
    _hand_over(ledger, "d1", 97.0, 10)
    # The worker is at 95 by now: 2 more, which the new weights lack.
    shift, missed = ledger.adopt(_globals(1, 90.0, me=["d1"]), "me")
    assert (95.0 + shift["w"].item(), missed) == (88.0, 0)
    assert (ledger.generation, ledger.in_flight) == (1, 0)
    assert ledger.delta(_weights(88.0))["w"].item() == 2.0


@pytest.mark.parametrize("included", [{}, {"other": ["d1"]}, {"me": ["d0"]}])
def test_a_delta_that_no_outer_step_took_is_told_again(ledger, included):
    _hand_over(ledger, "d1", 97.0, 10)
    shift, missed = ledger.adopt(_globals(3, 90.0, **included), "me")
    assert (95.0 + shift["w"].item(), missed) == (85.0, 1)
    assert ledger.has_untold(10)
    assert ledger.delta(_weights(85.0))["w"].item() == 5.0


def test_a_delta_that_was_not_uploaded_is_part_of_the_next(ledger):
    _hand_over(ledger, "d1", 97.0, 10)
    assert ledger.take_back("d1")
    assert not ledger.take_back("d1")
    assert ledger.has_untold(10)
    assert ledger.delta(_weights(95.0))["w"].item() == 5.0
    assert _hand_over(ledger, "d2", 95.0, 20) == 5.0
    assert not ledger.has_untold(20)
    assert ledger.has_untold(21)


def test_of_two_in_flight_each_counts_for_itself(ledger):
    _hand_over(ledger, "d1", 97.0, 10)
    _hand_over(ledger, "d2", 95.0, 20)
    shift, missed = ledger.adopt(_globals(1, 90.0, me=["d1"]), "me")
    assert missed == 1
    assert 94.0 + shift["w"].item() == 90.0 - 2.0 - 1.0


def test_a_published_delta_of_an_earlier_start_is_in_flight(ledger):
    ledger.take_over("old", _weights(4.0))
    assert ledger.baseline["w"].item() == 96.0
    assert not ledger.has_untold(0)
    shift, missed = ledger.adopt(_globals(1, 90.0, me=["old"]), "me")
    assert (96.0 + shift["w"].item(), missed) == (90.0, 0)


def test_adopting_never_changes_what_was_handed_in(ledger):
    handed = _weights(97.0)
    ledger.hand_over("d1", ledger.delta(handed), handed, 10)
    ledger.take_back("d1")
    newer = _globals(1, 90.0)
    ledger.adopt(newer, "me")
    ledger.hand_over("d2", ledger.delta(_weights(1.0)), _weights(1.0), 20)
    ledger.take_back("d2")
    assert (handed["w"].item(), newer.tensors["w"].item()) == (97.0, 90.0)
