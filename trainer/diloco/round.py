"""One outer step's worth of deltas: what is taken, what is refused, and their mean."""

from __future__ import annotations

from trainer.diloco.objects import DeltaName, Tensors, are_finite, describe_mismatch


class Round:
    """Collects the deltas of one generation; only their sum is kept.

    Args:
        generation: Generation of the global weights that deltas must be relative to.
        expected: Global weights: a delta has their names and shapes.

    Attributes:
        found: New deltas of this round, whatever becomes of them.
        rejected: Those that were refused.
        included: Labels of those that were taken, by worker.
    """

    def __init__(self, generation: int, expected: Tensors) -> None:
        self.generation = generation
        self.found = 0
        self.rejected = 0
        self.included: dict[str, list[str]] = {}
        self._expected = expected
        self._sum: Tensors | None = None

    @property
    def labels(self) -> set[str]:
        """Labels of the deltas that were taken."""
        return {label for labels in self.included.values() for label in labels}

    @property
    def deltas_included(self) -> int:
        """How many deltas were taken."""
        return sum(map(len, self.included.values()))

    def refuse(self, name: DeltaName, tensors: Tensors) -> str | None:
        """Return why a delta cannot be taken, or take it and return None."""
        mismatch = describe_mismatch(tensors, self._expected)
        if mismatch is not None:
            return mismatch
        if not are_finite(tensors):
            return "it is not finite"
        if self._sum is None:
            self._sum = {each: tensor.clone() for each, tensor in tensors.items()}
        else:
            for each, tensor in tensors.items():
                self._sum[each] += tensor
        self.included.setdefault(name.worker, []).append(name.label)
        return None

    def mean(self) -> Tensors:
        """Return the mean over workers; the deltas of one worker follow one another and are added up.

        Raises:
            ValueError: No delta was taken.
        """
        if self._sum is None:
            raise ValueError("a round without deltas has no mean")
        return {name: tensor / len(self.included) for name, tensor in self._sum.items()}
