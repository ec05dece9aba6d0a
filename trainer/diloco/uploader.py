"""Uploads deltas behind the training thread's back, and answers for each of them exactly once."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainer.diloco.objects import DELTAS, DeltaName, Tensors, encode
from trainer.diloco.store import Store, StoreError

_LONGEST_BACKOFF_S = 10.0
_JOIN_S = 1.0


@dataclass(frozen=True)
class Delta:
    """A delta on its way into the store.

    Args:
        name: Whose it is and what it is relative to.
        tensors: The pseudo-gradient, on the CPU in fp32.
    """

    name: DeltaName
    tensors: Tensors


class Uploader:
    """A thread that uploads deltas in turn, with a bounded queue before it.

    Each delta gets one answer: ``delta_uploaded``; ``delta_upload_failed`` after the last try, or when there
    was no time left; or ``delta_upload_stale`` when newer global weights are out before it is, because no
    outer step would take it any more: then it is not uploaded. What did not arrive goes to ``not_uploaded``.

    Args:
        store: Where deltas go.
        emit: Takes events; called from the uploader's thread, and for what is given up from the closing one.
        is_stale: Tells whether there are newer global weights than a generation.
        queue_size: Deltas that may wait behind the one that is being uploaded, >= 1.
        attempts: Tries of one upload, >= 1.
        backoff_s: Wait after the first failed try; doubles each time, up to 10 s.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        store: Store,
        *,
        emit: Callable[[str, dict[str, Any]], None],
        is_stale: Callable[[int], bool],
        queue_size: int,
        attempts: int,
        backoff_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._emit = emit
        self._is_stale = is_stale
        self._queue_size = queue_size
        self._attempts = attempts
        self._backoff_s = backoff_s
        self._clock = clock
        self._queue: deque[Delta] = deque()
        self._current: Delta | None = None
        self._is_answering = False
        self._not_uploaded: list[str] = []
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="diloco-upload", daemon=True)

    def start(self) -> None:
        """Begin to upload."""
        self._thread.start()

    @property
    def has_room(self) -> bool:
        """Whether the queue takes one more; stays true until the one thread that offers has done so."""
        with self._changed:
            waiting = len(self._queue) - (1 if self._current is None and self._queue else 0)
            return waiting < self._queue_size and not self._closed.is_set()

    def offer(self, delta: Delta) -> None:
        """Queue a delta.

        Raises:
            ValueError: There is no room.
        """
        if not self.has_room:
            raise ValueError(f"the upload queue of {self._queue_size} is full")
        with self._changed:
            self._queue.append(delta)
            self._changed.notify_all()

    def not_uploaded(self) -> list[str]:
        """Return the labels of the deltas that will not arrive, those since the last call."""
        with self._changed:
            labels, self._not_uploaded = self._not_uploaded, []
        return labels

    def drain(self, timeout_s: float) -> bool:
        """Wait until all is answered; return False when it is not in time."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not (self._queue or self._current or self._is_answering), timeout_s
            )

    def close(self) -> None:
        """Give up what is not answered yet; an upload that hangs is left behind."""
        self._closed.set()
        with self._changed:
            left = [*([] if self._current is None else [self._current]), *self._queue]
            self._queue.clear()
            self._current = None
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._is_answering, _JOIN_S)
        for delta in left:
            self._answer(delta, "delta_upload_failed", {"error": "TimeoutError: closed before the upload"})
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while (delta := self._take()) is not None:
            event, payload = self._upload(delta)
            with self._changed:
                if self._current is not delta:
                    return  # given up, and answered, by close()
                self._current, self._is_answering = None, True
            self._answer(delta, event, payload)
            with self._changed:
                self._is_answering = False
                self._changed.notify_all()

    def _take(self) -> Delta | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed.is_set())
            if self._closed.is_set():
                return None
            self._current = self._queue.popleft()
            self._changed.notify_all()
            return self._current

    def _upload(self, delta: Delta) -> tuple[str, dict[str, Any]]:
        """Try until it is done; return the answer."""
        began_s = self._clock()
        data = encode(delta.tensors)
        backoff_s = self._backoff_s
        for attempt in range(1, self._attempts + 1):
            if self._is_stale(delta.name.base_generation):
                return "delta_upload_stale", {"generation": delta.name.base_generation}
            try:
                self._store.write(DELTAS, delta.name.label, data)
            except StoreError as error:
                failure = f"{error} (try {attempt} of {self._attempts})"
            else:
                duration_s = self._clock() - began_s
                return "delta_uploaded", {"duration_s": duration_s, "size_bytes": len(data)}
            if attempt == self._attempts or self._closed.wait(backoff_s):
                break
            backoff_s = min(2 * backoff_s, _LONGEST_BACKOFF_S)
        return "delta_upload_failed", {"error": f"StoreError: {failure}"}

    def _answer(self, delta: Delta, event: str, payload: dict[str, Any]) -> None:
        if event != "delta_uploaded":
            with self._changed:
                self._not_uploaded.append(delta.name.label)
        self._emit(event, {"step": delta.name.step, **payload})
