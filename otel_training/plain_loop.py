"""Events for a training loop that has no trainer: a start, steps, and the end that fits how it was left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from otel_training.guard import describe

Emit = Callable[[str, Mapping[str, Any]], None]


class PlainRun:
    """Counts the steps of a plain loop.

    Args:
        emit: Takes the events.
        start_step: Number of the last step done before.
    """

    def __init__(self, emit: Emit, start_step: int) -> None:
        self._emit = emit
        self.last_step = start_step
        """Number of the last step."""

    def step(self, step: int | None = None, **fields: Any) -> None:
        """Report a finished step.

        Args:
            step: Its number; the next one when None.
            **fields: Of train_step, such as ``loss``, ``lr``, ``tokens`` (the running total); others become
                custom metrics.
        """
        self.last_step = self.last_step + 1 if step is None else step
        self._emit("train_step", {"step": self.last_step, **fields})

    def event(self, event: str, **fields: Any) -> None:
        """Report any other event, such as ``checkpoint``."""
        self._emit(event, fields)


@contextmanager
def run_loop(emit: Emit, start: Mapping[str, Any]) -> Iterator[PlainRun]:
    """Emit the start and the end around a loop; exceptions pass unchanged."""
    begun_s = time.monotonic()
    run = PlainRun(emit, int(start.get("start_step", 0)))
    emit("train_start", {"start_step": run.last_step, **start})
    end: dict[str, Any] = {"outcome": "completed"}
    try:
        yield run
    except Exception as error:
        end = {"outcome": "failed", "error": describe(error)}
        raise
    except BaseException as error:  # KeyboardInterrupt, SystemExit: somebody ended it
        end = {"outcome": "interrupted", "error": describe(error)}
        raise
    finally:
        emit("train_end", {"steps": run.last_step, "elapsed_s": time.monotonic() - begun_s, **end})
