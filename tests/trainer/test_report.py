"""The numbers of one attempt."""

import pytest
import torch

from trainer.attempts import Attempt
from trainer.report import AttemptReport
from trainer.totals import Totals


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


def test_a_steps_time_is_its_own(clock):
    report = AttemptReport(Attempt("r"), clock)
    clock.now_s = 5.0
    report.begin_steps(Totals())
    with report.watch.during("data_wait"):
        clock.now_s += 1.0
    clock.now_s += 2.0
    first = report.step_payload(Totals(1, 4, 40, 1), 0.1, {"loss": 1.0}, logged=True)
    with report.watch.during("checkpoint_save"):
        clock.now_s += 50.0
    clock.now_s += 3.0
    second = report.step_payload(Totals(2, 8, 80, 2), 0.1, {}, logged=True)
    assert (first["data_wait_s"], first["step_s"]) == (1.0, 2.0)
    assert (second["data_wait_s"], second["step_s"]) == (0.0, 3.0)
    assert first["tokens_per_sec"] == pytest.approx(40 / 3)
    assert "loss" not in second


def test_the_result_covers_this_attempt_alone(clock):
    report = AttemptReport(Attempt("r", 2), clock)
    report.begin_steps(Totals(10, 100, 1000, 10))
    clock.now_s = 4.0
    report.note_loss(torch.tensor(3.0))
    report.step_payload(Totals(11, 110, 1100, 11), 0.1, {}, logged=False)
    report.note_loss(torch.tensor(2.0))
    result = report.result(Totals(11, 110, 1100, 11), "completed", None)
    assert (result.start_step, result.steps, result.tokens) == (10, 11, 1100)
    assert result.tokens_per_sec == pytest.approx(25.0)
    assert (result.first_loss, result.loss) == (3.0, 2.0)
    assert result.step_p50_s == pytest.approx(4.0, rel=0.01)
    assert result.elapsed_s == 4.0


def test_the_end_tells_the_last_loss_also_when_it_was_not_logged(clock):
    report = AttemptReport(Attempt("r"), clock)
    assert "loss" not in report.end_payload(Totals(), "completed", None)
    report.begin_steps(Totals())
    report.step_payload(Totals(1), 0.1, {"loss": 5.0}, logged=True)
    report.note_loss(torch.tensor(2.0))
    assert report.end_payload(Totals(2), "completed", None)["loss"] == 2.0
    failed = report.end_payload(Totals(2), "failed", ValueError("bad"))
    assert (failed["loss"], failed["error"]) == (5.0, "ValueError: bad")
