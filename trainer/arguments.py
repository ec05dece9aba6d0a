"""What a trainer accepts, and how it says what it does not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trainer.metrics import MetricLogger


def as_loggers(logger: MetricLogger | Iterable[MetricLogger] | bool | None) -> list[MetricLogger]:
    """Return the argument ``logger`` as a list: None is a default logger, False is none.

    Raises:
        ValueError: It is True.
    """
    if logger is None:
        return [MetricLogger()]
    if isinstance(logger, bool):
        if logger:
            raise ValueError("logger=True is not accepted; accepted: a MetricLogger, several, None or False")
        return []
    return [logger] if isinstance(logger, MetricLogger) else list(logger)


def steps_of_one_pass(dataloader: Iterable[Any], accumulation_steps: int) -> int:
    """Return how many optimizer steps one pass over the data makes, at least 1.

    Raises:
        ValueError: The data does not know its length.
    """
    try:
        batches = len(dataloader)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError("max_steps must be given: the dataloader does not know its length") from None
    return max(1, batches // accumulation_steps)


def require_positive(**values: float | None) -> None:
    """Refuse values that are given and not above 0.

    Raises:
        ValueError: One is not.
    """
    for name, value in values.items():
        if value is not None and not value > 0:
            raise ValueError(f"{name} must be greater than 0, got {value!r}")
