"""C22, PrimeIntellect-ai/prime-diloco#25: throughput counts the first window's time, not only its tokens."""

import io
import json
import math

import pytest
from prometheus_client.parser import text_fd_to_metric_families

from otel_training.prometheus import RunCollector, render
from trainer import MetricLogger

THROUGHPUT = "training.throughput.tokens"


def test_a_hundred_tokens_a_second_are_a_hundred_from_the_first_step_on(capture, clock):
    capture.hook.on_event("train_start", {"start_step": 0})
    seen = []
    for step in (1, 2, 3):
        clock.advance(1.0)
        capture.hook.on_event("train_step", {"step": step, "tokens": 100 * step})
        seen.append(capture.value(THROUGHPUT))
    assert seen == pytest.approx([100.0] * 3)
    assert capture.value("training.tokens") == 300


@pytest.mark.parametrize("start", [{"start_step": 0}, None], ids=["started with the first step", "no start"])
def test_without_the_time_of_the_first_step_there_is_no_rate_yet(capture, clock, start):
    if start is not None:
        capture.hook.on_event("train_start", start)
    seen = []
    for step in (1, 2, 3):
        capture.hook.on_event("train_step", {"step": step, "tokens": 100 * step})
        seen.append(capture.value(THROUGHPUT))
        clock.advance(1.0)
    assert seen[0] is None
    assert seen[1:] == pytest.approx([100.0] * 2)
    assert capture.value("training.tokens") == 300


def test_two_steps_at_one_instant_divide_by_nothing(capture, clock, tmp_path):
    path = tmp_path / "run.jsonl"
    with MetricLogger(file=tmp_path / "run.log", json_file=path, hooks=[capture.hook]) as logger:
        logger.emit("train_start", {"start_step": 0})
        for step in (1, 2):
            logger.emit("train_step", {"step": step, "tokens": 100 * step, "step_s": 0.0})
        numbers = [getattr(point, "value", 0.0) for point in capture.points().values()]
        page, _ = render(RunCollector(capture.hook._to.run.state, ("r", "r", "0")), None)
    families = text_fd_to_metric_families(io.StringIO(page.decode()))
    numbers += [sample.value for family in families for sample in family.samples]
    assert all(map(math.isfinite, numbers))
    assert b"training_tokens_total" in page
    assert "Infinity" not in path.read_text()
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()][1:] == ["train_step"] * 2


def test_micro_batches_of_a_step_add_up(capture, clock):
    capture.hook.on_event("train_start", {"start_step": 0, "accumulation_steps": 4})
    for step in (1, 2):
        clock.advance(1.0)
        capture.hook.on_event(
            "train_step", {"step": step, "tokens": 4 * 25 * step, "micro_batches": 4 * step}
        )
    assert capture.value(THROUGHPUT) == pytest.approx(100.0)
    assert capture.value("training.micro_batches") == 8
