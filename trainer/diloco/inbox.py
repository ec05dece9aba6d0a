"""The master's view of the deltas in the store: each is taken, refused or left for the next look."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from trainer.diloco.objects import DELTAS, DeltaName, decode, parse_delta_label
from trainer.diloco.round import Round
from trainer.diloco.store import Store, StoredObject, StoreError, TornError


class Inbox:
    """Looks for deltas and brings each one into the round, once.

    Refused are deltas that are relative to other global weights than the newest (stale), that do not become
    whole in time (torn), that have other names or shapes, or that are not finite. Files with other names are
    left alone. One delta that cannot be read holds up nobody else.

    Args:
        store: Where the deltas are.
        torn_after_s: A delta that is not whole for so long is refused.
        warn: Takes warnings for the log.
        clock: Monotonic seconds.

    Attributes:
        news_s: When a new delta was seen last, on the clock.
    """

    def __init__(
        self,
        store: Store,
        *,
        torn_after_s: float,
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.news_s = clock()
        self._store = store
        self._torn_after_s = torn_after_s
        self._warn = warn
        self._clock = clock
        self._seen: set[str] = set()
        self._settled: set[str] = set()
        self._torn_since_s: dict[str, float] = {}
        self._unreadable: set[str] = set()

    def settle(self, labels: Iterable[str]) -> None:
        """Note deltas that are part of the global weights: whoever left them there, they count no more."""
        self._settled.update(labels)

    def look(self, current: Round) -> None:
        """Bring what is new into the round, and remove what it has no use for.

        Raises:
            StoreError: The store cannot be listed.
        """
        listed = [(found, parse_delta_label(found.label)) for found in self._store.objects(DELTAS)]
        for found, name in listed:
            if name is None or name.label in current.labels:
                continue
            if name.label in self._settled:
                self._remove(found)
            else:
                self._consider(found, name, current)
        # What is gone is forgotten, so that a long run needs no more memory than a short one.
        present = {found.label for found, _ in listed}
        self._settled &= present | current.labels
        self._seen &= present
        self._unreadable &= present
        self._torn_since_s = {label: at_s for label, at_s in self._torn_since_s.items() if label in present}

    def _consider(self, found: StoredObject, name: DeltaName, current: Round) -> None:
        if name.label not in self._seen:
            self._seen.add(name.label)
            self.news_s = self._clock()
            current.found += 1
        if name.base_generation != current.generation:
            self._reject(found, current, f"it is relative to generation {name.base_generation}")
            return
        try:
            tensors, _ = decode(self._store.read(found))
        except (TornError, ValueError) as error:
            # It may still be on its way.
            since_s = self._torn_since_s.setdefault(name.label, self._clock())
            if self._clock() - since_s >= self._torn_after_s:
                self._reject(found, current, str(error))
        except StoreError as error:
            if name.label not in self._unreadable:
                self._warn(f"diloco: {error}; will be tried again")
            self._unreadable.add(name.label)
        else:
            reason = current.refuse(name, tensors)
            if reason is not None:
                self._reject(found, current, reason)

    def _reject(self, found: StoredObject, current: Round, reason: str) -> None:
        current.rejected += 1
        self._settled.add(found.label)
        self._warn(f"diloco: delta {found.label} is refused at generation {current.generation}: {reason}")
        self._remove(found)

    def _remove(self, found: StoredObject) -> None:
        try:
            self._store.remove(found.folder, found.name)
        except StoreError as error:
            if found.label not in self._unreadable:
                self._warn(f"diloco: {error}; will be tried again")
            self._unreadable.add(found.label)
