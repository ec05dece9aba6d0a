"""Endless batches with a position that can be saved and found again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import torch

from trainer.rng import capture_rng, preserved_rng, restore_rng


@runtime_checkable
class SeekableSampler(Protocol):
    """A sampler that can begin its next pass at any sample, so that a resumed run reads no skipped data."""

    def seek(self, sample: int) -> None:
        """Begin the next pass at ``sample`` (0-based)."""


class BatchFeed:
    """Iterates a loader epoch after epoch and knows where it is.

    A resumed feed continues with exactly the batches that were to come, with shuffling and worker processes
    too: it begins the epoch with the random state of that epoch's start and passes over what was used. A
    sampler with ``seek`` is placed directly; any other loader is read and discarded up to the position.

    Args:
        loader: A ``DataLoader`` or any other iterable of batches that can be iterated again.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self.epoch = 0
        self.batch = 0
        self._loader = loader
        self._iterator: Iterator[Any] | None = None
        self._start: dict[str, Any] = {}
        self._peeked: list[Any] = []

    def next_batch(self) -> Any:
        """Return the next batch, beginning a new epoch when one is over.

        Raises:
            ValueError: The loader gives no batch.
        """
        batch = self._peeked.pop() if self._peeked else self._fetch()
        self.batch += 1
        return batch

    def peek(self) -> Any:
        """Return the batch that :meth:`next_batch` will return next."""
        if not self._peeked:
            self._peeked.append(self._fetch())
        return self._peeked[0]

    def state_dict(self) -> dict[str, Any]:
        """Return the position: epoch, batches used of it, and the random state it began with."""
        return {"epoch": self.epoch, "batch": self.batch, "start": self._start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a position; the process's own random state is left as it is."""
        self.close()
        self.epoch, self.batch, self._start = state["epoch"], state["batch"], state["start"]
        if self._start:
            self._find_position()

    def close(self) -> None:
        """End worker processes; the feed goes on from its position when it is asked for the next batch."""
        self._peeked.clear()
        self._iterator = None

    def _find_position(self) -> None:
        """Begin the present epoch as it was begun the first time, and pass over what was used of it."""
        with preserved_rng():
            restore_rng(self._start["rng"])
            self._restore_generators(self._start["generators"])
            skipped = self._seek(self.batch)
            self._iterator = self._begin()
            for _ in range(self.batch - skipped):
                next(self._iterator, None)

    def _fetch(self) -> Any:
        if self._iterator is None and self._start:
            self._find_position()
        elif self._iterator is None:
            self._start_epoch(self.epoch)
        assert self._iterator is not None
        try:
            return next(self._iterator)
        except StopIteration:
            self._start_epoch(self.epoch + 1)
        try:
            return next(self._iterator)
        except StopIteration:
            raise ValueError(
                "the data loader gave no batch: it is empty, or cannot be iterated twice"
            ) from None

    def _start_epoch(self, epoch: int) -> None:
        self.epoch, self.batch = epoch, 0
        generators = [generator.get_state() for generator in self._generators()]
        self._start = {"rng": capture_rng(), "generators": generators}
        self._iterator = self._begin()

    def _begin(self) -> Iterator[Any]:
        set_epoch = getattr(self._sampler(), "set_epoch", None)
        if set_epoch is not None:
            set_epoch(self.epoch)
        return iter(self._loader)

    def _seek(self, batches: int) -> int:
        """Place a seekable sampler; return how many batches need no reading."""
        sampler, size = self._sampler(), getattr(self._loader, "batch_size", None)
        if not isinstance(sampler, SeekableSampler) or size is None:
            return 0
        sampler.seek(batches * size)
        return batches

    def _sampler(self) -> object:
        return getattr(self._loader, "sampler", None)

    def _generators(self) -> list[torch.Generator]:
        """The loader's and the sampler's own generators; the global one is part of the random state."""
        owners = (self._loader, self._sampler())
        found = [getattr(owner, "generator", None) for owner in owners]
        return [generator for generator in found if isinstance(generator, torch.Generator)]

    def _restore_generators(self, states: list[torch.Tensor]) -> None:
        for generator, state in zip(self._generators(), states, strict=True):
            generator.set_state(state)
