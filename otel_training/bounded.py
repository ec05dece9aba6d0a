"""Calls that may hang, made on a daemon thread that is abandoned at a deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable

from otel_training.guard import Guard, failure


def call(guard: Guard, part: str, function: Callable[[], object], timeout_s: float) -> bool:
    """Call ``function`` and return whether it came back without an exception within ``timeout_s`` seconds.

    Args:
        guard: Takes its exceptions.
        part: What it is, for the log line of a failure.
        function: Called on a thread of its own, which is left behind when time is up.
        timeout_s: Seconds to wait.
    """
    done: list[bool] = []
    thread = threading.Thread(
        target=lambda: done.append(guard.run(part, function)), name=f"otel_training {part}", daemon=True
    )
    if failure(thread.start) is not None:
        # From Python 3.12 on, none starts once the interpreter ends. Then only the program's end is late.
        return guard.run(part, function)
    thread.join(max(0.0, timeout_s))
    return bool(done and done[0])
