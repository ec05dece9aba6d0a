"""A worker's side, step by step: the test is the master, and the model's steps are worked out by hand."""

import threading

import pytest
import torch
from torch import nn

from trainer.diloco.coordinator import Coordinator, JoinError
from trainer.diloco.objects import decode, parse_delta_label
from trainer.diloco.store import TornError
from trainer.stopwatch import Stopwatch


class Tiny(nn.Module):
    """The weights of the fixtures, and a buffer that is nobody else's."""

    def __init__(self, value, size=3):
        super().__init__()
        self.w = nn.Parameter(torch.full((size,), value))
        self.b = nn.Parameter(torch.tensor([value]))
        self.register_buffer("own", torch.tensor([value]))


class Worker:
    """A model in training: each step takes 1 off its weights."""

    def __init__(self, model, coordinator, watch):
        self.model = model
        self.coordinator = coordinator
        self.watch = watch
        self.step = 0

    @property
    def value(self):
        return self.model.b.item()

    def begin(self, step=0):
        self.step = step
        self.coordinator.begin(step)

    def train(self, steps=1):
        for _ in range(steps):
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter -= 1.0
            self.step += 1
            self.coordinator.sync(self.step)

    def finish(self, **options):
        self.coordinator.finish(self.step, **{"is_complete": True, **options})


@pytest.fixture
def stopping():
    return threading.Event()


@pytest.fixture
def make(store, listener, settings, stopping):
    made = []

    def make(name="me", value=0.0, size=3, **values):
        model, watch = Tiny(value, size), Stopwatch()
        coordinator = Coordinator(
            settings(**values),
            name,
            store,
            model,
            emit=listener.emit,
            warn=listener.warn,
            watch=watch,
            is_stopping=stopping.is_set,
        )
        made.append(coordinator)
        return Worker(model, coordinator, watch)

    yield make
    store.gate.set()
    for coordinator in made:
        coordinator.close()


@pytest.fixture
def deltas(store):
    """Returns the whole deltas in the store as (base generation, step, value, label)."""

    def read():
        found = []
        for each in store.objects("deltas"):
            name = parse_delta_label(each.label)
            try:
                tensors, _ = decode(store.read(each))
            except TornError:  # it is being written
                continue
            found.append((name.base_generation, name.step, tensors["b"].item(), name.label))
        return found

    return read


@pytest.fixture
def seen(until):
    """Waits until a worker's watch has a generation, which it then adopts at its next step."""

    def wait(worker, generation):
        until(lambda: worker.coordinator._globals.newer_than(generation - 1))

    return wait


def _of(listener, *names):
    return [(event, payload["step"]) for event, payload in listener.events if event in names]


# ---- Beginning ----


def test_a_worker_begins_with_the_newest_weights(make, publish, listener):
    publish(0, 100.0)
    publish(4, 50.0)
    worker = make(value=7.0)
    worker.begin()
    assert worker.model.w.tolist() == [50.0] * 3
    assert worker.model.own.item() == 7.0
    assert worker.coordinator.generation == 4
    ((event, payload),) = listener.events
    assert (event, payload["step"], payload["generation"], payload["adopted"]) == ("outer_sync", 0, 4, True)


def test_it_waits_for_the_first_weights(make, publish):
    worker = make()
    later = threading.Timer(0.1, publish, (0, 100.0))
    later.start()
    worker.begin()
    later.join()
    assert worker.value == 100.0
    assert worker.watch.totals_s()["outer_sync"] > 0.05


def test_without_a_master_it_fails_and_says_so(make):
    with pytest.raises(JoinError, match=r"no global weights in .* within 0\.05 s .*is the master running\?"):
        make(join_timeout_s=0.05).begin()


def test_a_worker_with_another_shape_is_refused(make, publish):
    publish(0, 100.0)
    with pytest.raises(JoinError, match=r"another model: w has shape \(3,\), expected is \(5,\)"):
        make(size=5).begin()


def test_a_stop_signal_ends_the_wait_and_nothing_is_handed_over(make, stopping, listener):
    worker = make()
    stopping.set()
    worker.begin()
    worker.train(5)
    worker.finish(is_complete=False)
    assert _of(listener, "delta_upload_queued", "delta_upload_skipped") == []
    assert worker.value == -5.0


def test_a_restarted_worker_goes_on_from_what_it_has_published(make, publish, send, deltas, seen):
    publish(3, 100.0)
    label = send("me", 4.0, base=3)
    send("me", 1.0, base=2)
    send("other", 2.0, base=3)
    worker = make(inner_steps=2)
    worker.begin(step=10)
    assert worker.value == 96.0
    worker.train(1)
    publish(4, 90.0, {"me": [label]})
    seen(worker, 4)
    worker.train(1)
    # The published delta is in 90; the two steps since are on top, and they alone are told.
    assert worker.value == 88.0
    assert worker.coordinator._uploader.drain(20.0)
    assert [delta[:3] for delta in deltas() if delta[0] == 4] == [(4, 12, 2.0)]


# ---- Deltas ----


def test_a_delta_is_handed_over_every_inner_steps(make, publish, deltas, listener):
    publish(0, 100.0)
    worker = make(inner_steps=3, max_in_flight=4)
    worker.begin()
    worker.train(7)
    assert worker.coordinator._uploader.drain(20.0)
    assert [delta[:3] for delta in deltas()] == [(0, 3, 3.0), (0, 6, 3.0)]
    assert _of(listener, "delta_upload_queued") == [("delta_upload_queued", 3), ("delta_upload_queued", 6)]
    assert listener.of("delta_upload_queued")[0] == {"step": 3, "base_outer_step": 0}
    assert _of(listener, "delta_uploaded") == [("delta_uploaded", 3), ("delta_uploaded", 6)]


def test_a_skipped_optimizer_step_hands_over_nothing_again(make, publish, listener):
    publish(0, 100.0)
    worker = make(inner_steps=1, max_in_flight=9, queue_size=9)
    worker.begin()
    worker.train(1)
    for _ in range(3):
        worker.coordinator.sync(worker.step)
    assert len(_of(listener, "delta_upload_queued")) == 1


def test_the_first_delta_after_a_resume_is_due_inner_steps_later(make, publish, listener):
    publish(0, 100.0)
    worker = make(inner_steps=4)
    worker.begin(step=7)
    worker.train(4)
    assert _of(listener, "delta_upload_queued") == [("delta_upload_queued", 11)]


# ---- Overflow ----


def test_skip_leaves_the_work_for_the_next_delta(make, publish, deltas, listener, seen):
    publish(0, 100.0)
    worker = make(overflow="skip", inner_steps=2)
    worker.begin()
    worker.train(4)  # the delta of step 2 is in flight until an outer step takes it
    assert worker.coordinator._uploader.drain(20.0)
    assert listener.of("delta_upload_skipped") == [{"step": 4, "reason": "upload_in_flight"}]
    label = deltas()[0][3]
    publish(1, 90.0, {"me": [label]})
    seen(worker, 1)
    worker.train(2)
    assert worker.value == 90.0 - 4.0
    assert worker.coordinator._uploader.drain(20.0)
    assert deltas()[-1][:3] == (1, 6, 4.0)


def test_a_full_queue_is_another_reason(make, publish, store, listener, until):
    publish(0, 100.0)
    worker = make(overflow="skip", inner_steps=1, max_in_flight=9, queue_size=1)
    worker.begin()
    store.gate.clear()
    tries = store.tries
    worker.train(1)
    until(lambda: store.tries > tries)
    worker.train(2)
    assert listener.of("delta_upload_skipped") == [{"step": 3, "reason": "queue_full"}]


def test_wait_waits_for_the_outer_step_and_hands_over_then(make, publish, deltas, listener):
    publish(0, 100.0)
    worker = make(overflow="wait", inner_steps=2)
    worker.begin()
    worker.train(2)
    worker.coordinator._uploader.drain(20.0)
    label = deltas()[0][3]
    later = threading.Timer(0.1, publish, (1, 90.0, {"me": [label]}))
    later.start()
    worker.train(2)
    later.join()
    assert listener.of("delta_upload_skipped") == []
    assert worker.value == 88.0
    assert worker.coordinator._uploader.drain(20.0)
    assert deltas()[-1][:3] == (1, 4, 2.0)
    assert worker.watch.totals_s()["outer_sync"] > 0.05


def test_the_wait_is_bounded(make, publish, listener, settings):
    publish(0, 100.0)
    worker = make(inner_steps=2, wait_timeout_s=0.06, round_timeout_s=0.05)
    worker.begin()
    worker.train(4)
    assert listener.of("delta_upload_skipped") == [{"step": 4, "reason": "upload_in_flight"}]


def test_a_stop_signal_ends_the_wait(make, publish, listener, stopping):
    publish(0, 100.0)
    worker = make(inner_steps=2, wait_timeout_s=1000.0)
    worker.begin()
    worker.train(2)
    stopping.set()
    worker.train(2)
    assert len(listener.of("delta_upload_skipped")) == 1


def test_without_overlap_it_waits_at_once(make, publish, deltas, until):
    publish(0, 100.0)
    worker = make(inner_steps=2, overlap=False)
    worker.begin()

    def answer():
        until(deltas)
        publish(1, 90.0, {"me": [deltas()[0][3]]})

    master = threading.Thread(target=answer)
    master.start()
    worker.train(2)
    master.join()
    assert (worker.coordinator.generation, worker.value) == (1, 90.0)


# ---- What does not arrive ----


def test_a_failed_upload_is_part_of_the_next_delta(make, publish, store, deltas, listener):
    publish(0, 100.0)
    worker = make(inner_steps=2, upload_attempts=1)
    worker.begin()
    store.broken = {"write"}
    worker.train(2)
    worker.coordinator._uploader.drain(20.0)
    store.broken = set()
    worker.train(2)
    worker.coordinator._uploader.drain(20.0)
    assert [delta[:3] for delta in deltas()] == [(0, 4, 4.0)]
    assert _of(listener, "delta_upload_failed", "delta_uploaded") == [
        ("delta_upload_failed", 2),
        ("delta_uploaded", 4),
    ]


def test_a_stale_delta_is_put_on_top_of_the_newer_weights(make, publish, store, deltas, listener, seen):
    publish(0, 100.0)
    worker = make(inner_steps=2, upload_attempts=1000)
    worker.begin()
    store.broken = {"write"}
    worker.train(2)
    store.broken = {"write deltas"}
    publish(1, 90.0)
    seen(worker, 1)
    assert worker.coordinator._uploader.drain(20.0)
    store.broken = set()
    assert listener.of("delta_upload_stale") == [{"step": 2, "generation": 0}]
    worker.train(1)
    assert worker.value == 87.0
    worker.train(1)
    worker.coordinator._uploader.drain(20.0)
    assert [delta[:3] for delta in deltas()] == [(1, 4, 4.0)]


def test_a_delta_that_came_too_late_is_told_again(make, publish, deltas, seen):
    publish(0, 100.0)
    worker = make(inner_steps=2)
    worker.begin()
    worker.train(2)
    worker.coordinator._uploader.drain(20.0)
    publish(1, 90.0, {"other": ["x"]})  # the master did not wait for this worker
    seen(worker, 1)
    worker.train(2)
    assert worker.value == 86.0
    worker.coordinator._uploader.drain(20.0)
    assert deltas()[-1][:3] == (1, 4, 4.0)


# ---- Adopting ----


def test_adoption_keeps_local_work_and_happens_between_steps(make, publish, seen, listener):
    publish(0, 100.0)
    worker = make(inner_steps=100)
    worker.begin()
    worker.train(3)
    publish(1, 50.0)
    seen(worker, 1)
    assert worker.value == 97.0
    worker.train(1)
    assert worker.value == 46.0
    payload = listener.of("outer_sync")[-1]
    assert (payload["step"], payload["generation"], payload["adopted"]) == (4, 1, True)
    assert payload["duration_s"] > 0


def test_a_step_without_news_is_no_event(make, publish, listener):
    publish(0, 100.0)
    worker = make(inner_steps=100)
    worker.begin()
    worker.train(50)
    assert len(listener.events) == 1


# ---- The end ----


def test_at_the_end_the_rest_is_handed_over_and_the_outer_step_adopted(make, publish, deltas, store, until):
    publish(0, 0.1)
    worker = make(inner_steps=100)
    worker.begin()
    worker.train(3)

    def answer():
        until(deltas)
        publish(1, 0.3, {"me": [deltas()[0][3]]})

    master = threading.Thread(target=answer)
    master.start()
    worker.finish()
    master.join()
    assert torch.equal(worker.model.b.detach(), torch.tensor([0.3]))  # exactly, not by adding
    assert store.names("finished") == ["me"]


def test_at_the_end_a_delta_that_was_not_taken_is_told_again(make, publish, deltas, until):
    publish(0, 100.0)
    worker = make(inner_steps=100)
    worker.begin()
    worker.train(3)

    def answer():
        until(deltas)
        publish(1, 90.0)
        until(lambda: deltas()[-1][0] == 1)
        publish(2, 80.0, {"me": [deltas()[-1][3]]})

    master = threading.Thread(target=answer)
    master.start()
    worker.finish()
    master.join()
    assert [delta[:3] for delta in deltas()] == [(0, 3, 3.0), (1, 3, 3.0)]
    assert worker.value == 80.0


def test_the_wait_at_the_end_is_bounded(make, publish, deltas, listener, store):
    publish(0, 100.0)
    worker = make(inner_steps=100, final_timeout_s=0.06, round_timeout_s=0.05, wait_timeout_s=1.0)
    worker.begin()
    worker.train(3)
    worker.finish()
    assert [delta[:3] for delta in deltas()] == [(0, 3, 3.0)]
    assert "no outer step within 0.06 s" in listener.warnings[0]
    assert store.names("finished") == ["me"]


def test_an_interrupted_worker_uploads_but_does_not_wait(make, publish, deltas, store, stopping):
    publish(0, 100.0)
    worker = make(inner_steps=100, final_timeout_s=1000.0)
    worker.begin()
    worker.train(3)
    stopping.set()
    worker.finish(is_complete=False)
    assert [delta[:3] for delta in deltas()] == [(0, 3, 3.0)]
    assert worker.value == 97.0
    assert store.names("finished") == []


def test_a_worker_that_begins_is_not_finished_any_more(make, publish, store):
    publish(0, 100.0)
    store.mark("finished", "me")
    make().begin()
    assert store.names("finished") == []


def test_a_store_that_is_gone_at_the_end_is_no_error(make, publish, store, listener):
    publish(0, 100.0)
    worker = make(
        inner_steps=2,
        upload_attempts=2,
        shutdown_timeout_s=1.0,
        final_timeout_s=1.1,
        round_timeout_s=1.0,
        wait_timeout_s=1.1,
    )
    worker.begin()
    store.broken = {"write", "list", "read", "remove"}
    worker.train(3)
    worker.finish()
    worker.coordinator.close()
    queued = len(listener.of("delta_upload_queued"))
    assert queued >= 1
    assert len(listener.of("delta_upload_failed")) == queued
