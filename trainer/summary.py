"""The table at the end of a run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.table import Table

from trainer.result import TrainResult


def summary_table(result: TrainResult, files: Iterable[Path]) -> Table:
    """Return what a run came to, as a table of two columns.

    Args:
        result: What ``fit`` returned.
        files: Files the run has written; those that exist are listed.
    """
    table = Table(
        show_header=False, title=f"run {result.run_id}, attempt {result.attempt}", title_justify="left"
    )
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in _rows(result):
        if value:
            table.add_row(name, value)
    table.add_row("files", "\n".join(str(path) for path in files if path.exists()))
    return table


def _rows(result: TrainResult) -> list[tuple[str, str | None]]:
    return [
        ("outcome", _outcome(result)),
        ("steps", _steps(result)),
        ("tokens", f"{result.tokens:,}"),
        ("tokens/s", None if result.tokens_per_sec is None else f"{result.tokens_per_sec:,.0f}"),
        ("loss", _loss(result)),
        ("step time", _step_time(result)),
        ("time by state", _time_by_state(result)),
        ("goodput", None if result.goodput is None else f"{result.goodput:.1%}"),
        ("checkpoint", _checkpoint(result)),
    ]


def _is_short(result: TrainResult) -> bool:
    return result.target_step is not None and result.steps < result.target_step


def _outcome(result: TrainResult) -> str:
    if result.signal is not None:
        return f"{result.outcome} by {result.signal.name}"
    return f"{result.outcome}: its time was up" if _is_short(result) else result.outcome


def _steps(result: TrainResult) -> str:
    steps = f"{result.steps:,}"
    if _is_short(result):
        steps += f" of {result.target_step:,}"
    if result.start_step:
        steps += f" ({result.steps - result.start_step:,} in this attempt)"
    return steps


def _loss(result: TrainResult) -> str | None:
    if result.first_loss is None or result.loss is None:
        return None
    return f"{result.first_loss:.3f} -> {result.loss:.3f}"


def _step_time(result: TrainResult) -> str | None:
    if result.step_p50_s is None or result.step_p99_s is None:
        return None
    return f"p50 {_duration(result.step_p50_s)}, p99 {_duration(result.step_p99_s)}"


def _time_by_state(result: TrainResult) -> str:
    spent = sorted(result.time_by_state_s.items(), key=lambda item: -item[1])
    shown = [f"{state} {_duration(seconds)}" for state, seconds in spent if seconds >= 0.0005]
    return f"{_duration(result.elapsed_s)} = {', '.join(shown)}"


def _checkpoint(result: TrainResult) -> str | None:
    if result.checkpoint_error is not None:
        return f"[red]not written[/red]: {result.checkpoint_error}"
    return None if result.checkpoint is None else str(result.checkpoint)


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 1.0 else f"{seconds:.1f} s"
