"""Running totals."""

from trainer.totals import StepSize, Totals


def test_a_step_is_added_when_it_is_applied():
    totals, size = Totals(step=3, samples=30, tokens=300, micro_batches=6), StepSize()
    size.add(5, 50)
    size.add(4, 40)
    assert totals.samples == 30
    size.apply_to(totals)
    assert totals == Totals(step=4, samples=39, tokens=390, micro_batches=8)
