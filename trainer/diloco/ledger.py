"""Which local work has been told to whom: the arithmetic of baselines, without threads or a store."""

from __future__ import annotations

from trainer.diloco.objects import GlobalWeights, Tensors


class Ledger:
    """Keeps the baseline of a worker, so that each local step reaches the global weights exactly once.

    The baseline is the global weights adopted last minus all deltas *in flight*: those handed over since. Its
    distance from the worker's weights, the pseudo-gradient, is therefore what nobody has been told yet. What
    did not make it into the global weights is taken back into the baseline, and with it into the next delta.

    All tensors are on the CPU and in fp32.

    Args:
        adopted: The global weights that the worker has now.
        step: The worker's local step.
    """

    def __init__(self, adopted: GlobalWeights, step: int) -> None:
        self.generation = adopted.generation
        self._baseline = adopted.tensors
        self._told_step = step
        self._taken_back = False
        self._in_flight: dict[str, Tensors] = {}

    @property
    def in_flight(self) -> int:
        """How many deltas are handed over and not yet part of the global weights, as far as is known."""
        return len(self._in_flight)

    @property
    def baseline(self) -> Tensors:
        """What the next delta is relative to; not to be changed."""
        return self._baseline

    def has_untold(self, step: int) -> bool:
        """Return whether there is local work at ``step`` that is neither in flight nor in the baseline."""
        return step > self._told_step or self._taken_back

    def delta(self, weights: Tensors) -> Tensors:
        """Return the pseudo-gradient of the weights: baseline - weights."""
        return {name: self._baseline[name] - weights[name] for name in weights}

    def hand_over(self, label: str, delta: Tensors, weights: Tensors, step: int) -> None:
        """Note that the delta of the weights after ``step`` is on its way: they are the baseline now."""
        self._in_flight[label] = delta
        self._told_step, self._taken_back = step, False
        self._baseline = weights

    def take_over(self, label: str, delta: Tensors) -> None:
        """Note a delta that an earlier start of this worker has published and its weights now include."""
        self._in_flight[label] = delta
        self._baseline = {name: self._baseline[name] - delta[name] for name in delta}

    def take_back(self, label: str) -> bool:
        """Note that a delta did not arrive; return False when it is not in flight (any more)."""
        delta = self._in_flight.pop(label, None)
        if delta is None:
            return False
        self._taken_back = True
        self._baseline = {name: self._baseline[name] + delta[name] for name in delta}
        return True

    def adopt(self, adopted: GlobalWeights, worker: str) -> tuple[Tensors, int]:
        """Take newer global weights as the baseline.

        An outer step takes only deltas of its own generation, so each delta in flight is part of the new
        weights or never will be: then it is taken back.

        Args:
            adopted: The newer weights.
            worker: This worker's name.

        Returns:
            What is to be added to the worker's weights, so that they are the global ones plus all local work
            that these do not have; and how many deltas were taken back.
        """
        included = adopted.included.get(worker, ())
        missed = [label for label in self._in_flight if label not in included]
        for label in missed:
            self.take_back(label)
        shift = {name: adopted.tensors[name] - self._baseline[name] for name in self._baseline}
        self._in_flight.clear()
        self._baseline, self.generation = adopted.tensors, adopted.generation
        return shift, len(missed)
