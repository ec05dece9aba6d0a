"""Apple's GPU, from recorded answers."""

from types import SimpleNamespace

from otel_training.devices import mps


def test_both_figures_are_told(values):
    source = SimpleNamespace(
        current_allocated_memory=lambda: 1_966_080, driver_allocated_memory=lambda: 1_091_698_688
    )
    assert values(mps.read(source, None)) == {
        ("torch.mps.memory.allocated", ()): 1_966_080,
        ("torch.mps.memory.driver_allocated", ()): 1_091_698_688,
    }


def test_one_that_raises_costs_itself_alone(values):
    def refuse():
        raise RuntimeError("MPS backend is not available")

    source = SimpleNamespace(current_allocated_memory=refuse, driver_allocated_memory=lambda: 5)
    reading = mps.read(source, None)
    assert values(reading) == {("torch.mps.memory.driver_allocated", ()): 5}
    assert list(reading.failures) == ["allocated memory"]
