"""DiLoCo's events: outer steps by their number, uploads from queue to answer, whatever the order."""

import pytest

from otel_training import catalog
from otel_training.fields import Fields
from otel_training.outer_loop import OuterLoop
from otel_training.state import State


class Bench:
    def __init__(self, clock):
        self.clock = clock
        self.state = State()
        self.loop = OuterLoop(self.state, Fields(self.state))

    def send(self, name, after_s=0.0, **payload):
        getattr(self.loop, name)(payload, self.clock.advance(after_s))

    def get(self, metric, *labels):
        return self.state.get(metric, *labels)

    def durations(self, metric):
        histograms = self.state.histograms_of(metric).values()
        return sum(sum(each.counts) for each in histograms), sum(sum(each.sums) for each in histograms)


@pytest.fixture
def bench(clock):
    return Bench(clock)


@pytest.mark.parametrize(
    ("numbers", "total"),
    [([1, 2, 3], 3), ([7, 8], 2), ([1, 4], 4), ([3, 3], 1), ([5, 2, 3], 2), ([None], None)],
    ids=str,
)
def test_outer_steps_are_counted_by_their_number(bench, numbers, total):
    for number in numbers:
        bench.send("outer_step", outer_step=number)
    assert bench.get(catalog.OUTER_STEPS) == total
    assert bench.get(catalog.OUTER_STEP_CURRENT) == numbers[-1]


def test_deltas_add_up_by_what_became_of_them(bench):
    # What was found may have been processed before: only what is told to be rejected was rejected.
    bench.send("outer_step", outer_step=1, deltas_found=5, deltas_included=2)
    bench.send(
        "outer_step", outer_step=2, deltas_found=6, deltas_included=3, deltas_rejected=1, duration_s=0.5
    )
    bench.send("outer_step", outer_step=3, deltas_included=-4)
    assert bench.get(catalog.OUTER_CANDIDATES) == 6
    assert bench.get(catalog.OUTER_DELTAS, "included") == 5
    assert bench.get(catalog.OUTER_DELTAS, "rejected") == 1
    assert bench.durations(catalog.OUTER_STEP_DURATION) == (1, 0.5)


@pytest.mark.parametrize(("answer", "outcome"), [("uploaded", "uploaded"), ("failed", "failed")])
def test_an_upload_lasts_from_queue_to_answer(bench, answer, outcome):
    bench.send("queued", step=10)
    assert bench.get(catalog.DELTA_ACTIVE_UPLOADS) == 1
    bench.send(answer, after_s=2.0, step=10)
    assert bench.get(catalog.DELTA_ACTIVE_UPLOADS) == 0
    assert bench.get(catalog.DELTA_UPLOADS, outcome, None) == 1
    assert bench.durations(catalog.DELTA_UPLOAD_DURATION) == (1, 2.0)


def test_uploads_are_matched_by_their_step(bench):
    bench.send("queued", step=10)
    bench.send("queued", after_s=1.0, step=20)
    bench.send("uploaded", after_s=1.0, step=20)
    bench.send("uploaded", after_s=1.0, step=10)
    assert bench.durations(catalog.DELTA_UPLOAD_DURATION) == (2, 4.0)


def test_a_stale_upload_that_is_answered_too_is_one_upload(bench):
    bench.send("queued", step=10)
    bench.send("stale", after_s=1.0, step=10, generation=2)
    bench.send("uploaded", after_s=1.0, step=10)
    assert bench.get(catalog.DELTA_STALE) == 1
    assert bench.get(catalog.DELTA_UPLOADS, "uploaded", None) == 1
    assert bench.durations(catalog.DELTA_UPLOAD_DURATION) == (1, 1.0)
    assert bench.get(catalog.DELTA_ACTIVE_UPLOADS) == 0


def test_a_skipped_delta_was_never_queued(bench):
    bench.send("skipped", step=10, reason="upload_in_flight")
    bench.send("skipped", step=11)
    assert bench.get(catalog.DELTA_UPLOADS, "skipped", "upload_in_flight") == 1
    assert bench.get(catalog.DELTA_UPLOADS, "skipped", None) == 1


def test_answers_to_nothing_do_not_go_below_zero(bench):
    for answer in ("uploaded", "failed", "stale"):
        bench.send(answer, step=99)
        bench.send(answer)
    assert bench.get(catalog.DELTA_ACTIVE_UPLOADS) == 0
    assert bench.durations(catalog.DELTA_UPLOAD_DURATION) == (0, 0)


def test_a_step_queued_again_is_one_open_upload(bench):
    bench.send("queued", step=10)
    bench.send("queued", after_s=5.0, step=10)
    assert bench.get(catalog.DELTA_ACTIVE_UPLOADS) == 1
    bench.send("uploaded", after_s=1.0, step=10)
    assert bench.durations(catalog.DELTA_UPLOAD_DURATION) == (1, 1.0)


def test_uploads_that_are_never_answered_are_forgotten_in_the_end(bench):
    for step in range(5000):
        bench.send("queued", step=step)
    assert bench.get(catalog.DELTA_ACTIVE_UPLOADS) == 1000
