"""The progress bar follows events."""

import io

from rich.console import Console

from trainer.metrics import MetricLogger
from trainer.progress import ProgressBar


def test_it_shows_step_and_loss_and_ends():
    stream = io.StringIO()
    logger = MetricLogger(stream=io.StringIO())
    logger.hooks.append(ProgressBar(Console(file=stream, force_terminal=True, width=100)))
    failures = []
    logger.hooks.append(lambda event, payload: failures.append(payload) if event == "hook_failed" else None)
    logger.emit("train_start", {"start_step": 2, "target_step": 5})
    logger.emit("train_step", {"step": 3, "loss": 1.5, "tokens_per_sec": 1234.0})
    logger.emit("train_step", {"step": 4, "tokens_per_sec": 1234.0})
    logger.emit("train_end", {"steps": 4})
    logger.close()
    assert failures == []
    last = stream.getvalue()
    assert "4/5" in last
    assert "loss 1.500" in last
    assert "1,234 tokens/s" in last
