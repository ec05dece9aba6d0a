"""TensorBoard: each numeric value of an event becomes a scalar."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from trainer.encoding import plain
from trainer.integrations import is_main_rank


class TensorboardHook:
    """Writes each numeric value of an event to the tag ``<event>/<key>``; on rank 0 only.

    A value is written at its event's ``step``, or at the last one seen when the event has none. Booleans are
    0 and 1, NaN and infinities stay what they are, the values of a nested dict are at ``<event>/<key>/<inner
    key>``.

    Args:
        log_dir: Folder of the event files.

    Attributes:
        location: The folder; ``None`` on other ranks.

    Raises:
        ModuleNotFoundError: tensorboard is not installed.
    """

    def __init__(self, log_dir: str | os.PathLike[str] = "runs") -> None:
        self.writer: Any = None
        self.location: str | None = None
        self._last_step = 0
        self._open = is_main_rank()
        self._pid = os.getpid()
        if not self._open:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError as error:
            if error.name != "tensorboard":
                raise
            raise ModuleNotFoundError(
                'TensorboardHook needs tensorboard: pip install "otel-training[tensorboard]"',
                name="tensorboard",
            ) from None
        self.location = os.fspath(log_dir)
        # A long queue, so that a slow disk does not hold up a step; a short wait, so that a kill loses
        # little.
        self.writer = SummaryWriter(log_dir=self.location, max_queue=1000, flush_secs=10)

    def on_event(self, event: str, payload: dict[str, Any]) -> None:
        """Write the payload's numbers."""
        # A forked child has the writer's queue but not the thread that empties it, and would wait for ever.
        if not self._open or os.getpid() != self._pid:
            return
        values = plain(payload)
        step = values.get("step")
        if isinstance(step, int) and not isinstance(step, bool):
            self._last_step = step
        for tag, value in _numbers(event, values):
            self.writer.add_scalar(tag, value, self._last_step)

    def close(self) -> None:
        """Write what is queued and close the file. A second call does nothing."""
        if self._open and os.getpid() == self._pid:
            self._open = False
            self.writer.close()


def _numbers(tag: str, values: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield ``(tag, number)`` for each number in ``values`` and the dicts inside it."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _numbers(f"{tag}/{key}", value)
        elif isinstance(value, int | float):
            try:
                yield f"{tag}/{key}", float(value)
            except OverflowError:
                continue
