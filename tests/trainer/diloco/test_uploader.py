"""Uploads in the background: each delta gets one answer, whatever happens to it."""

import pytest

from trainer.diloco.objects import decode, delta_label, parse_delta_label
from trainer.diloco.uploader import Delta, Uploader

ANSWERS = {"delta_uploaded", "delta_upload_failed", "delta_upload_stale"}


@pytest.fixture
def stale():
    """Generations that are overtaken."""
    return set()


@pytest.fixture
def make(store, listener, stale):
    made = []

    def make(**options):
        options = {"queue_size": 2, "attempts": 3, "backoff_s": 0.01, **options}
        uploader = Uploader(store, emit=listener.emit, is_stale=stale.__contains__, **options)
        made.append(uploader)
        return uploader

    yield make
    store.gate.set()
    for uploader in made:
        uploader.close()


@pytest.fixture
def delta(weights):
    def make(step, base=0):
        return Delta(parse_delta_label(delta_label(base, step, "w", "0")), weights(float(step)))

    return make


def _answers(listener):
    return [(event, payload["step"]) for event, payload in listener.events if event in ANSWERS]


def test_deltas_are_uploaded_in_turn(make, delta, store, listener):
    uploader = make()
    uploader.start()
    uploader.offer(delta(1))
    uploader.offer(delta(2))
    assert uploader.drain(20.0)
    assert _answers(listener) == [("delta_uploaded", 1), ("delta_uploaded", 2)]
    first, second = store.objects("deltas")
    assert decode(store.read(second))[0]["w"].tolist() == [2.0] * 3
    payload = listener.of("delta_uploaded")[0]
    assert payload["size_bytes"] == len(store.read(first))
    assert payload["duration_s"] >= 0
    assert listener.threads["delta_uploaded"] == {"diloco-upload"}
    assert uploader.not_uploaded() == []


def test_the_queue_is_bounded(make, delta, store, listener, until):
    store.gate.clear()
    uploader = make(queue_size=2)
    uploader.start()
    uploader.offer(delta(1))
    until(lambda: store.tries == 1)
    for step in (2, 3):
        assert uploader.has_room
        uploader.offer(delta(step))
    assert not uploader.has_room
    with pytest.raises(ValueError, match="upload queue of 2 is full"):
        uploader.offer(delta(4))
    assert not uploader.drain(0.02)
    store.gate.set()
    assert uploader.drain(20.0)
    assert [step for _, step in _answers(listener)] == [1, 2, 3]


def test_an_upload_is_tried_again(make, delta, store, listener, until):
    store.broken = {"write"}
    uploader = make(attempts=1000)
    uploader.start()
    uploader.offer(delta(1))
    until(lambda: store.tries > 2)
    assert _answers(listener) == []
    store.broken = set()
    assert uploader.drain(20.0)
    assert _answers(listener) == [("delta_uploaded", 1)]


def test_it_is_given_up_after_the_last_try(make, delta, store, listener):
    store.broken = {"write"}
    uploader = make(attempts=3)
    uploader.start()
    uploader.offer(delta(1))
    assert uploader.drain(20.0)
    assert store.tries == 3
    assert listener.events == [
        ("delta_upload_failed", {"step": 1, "error": "StoreError: cannot write: planted (try 3 of 3)"})
    ]
    assert uploader.not_uploaded() == [delta(1).name.label]
    assert uploader.not_uploaded() == []


def test_a_delta_whose_baseline_was_overtaken_is_not_uploaded(make, delta, store, listener, stale):
    stale.add(0)
    uploader = make()
    uploader.start()
    uploader.offer(delta(1, base=0))
    uploader.offer(delta(2, base=1))
    assert uploader.drain(20.0)
    assert listener.events[0] == ("delta_upload_stale", {"step": 1, "generation": 0})
    assert _answers(listener)[1:] == [("delta_uploaded", 2)]
    assert len(store.objects("deltas")) == 1
    assert uploader.not_uploaded() == [delta(1).name.label]


def test_it_may_become_stale_between_two_tries(make, delta, store, listener, stale, until):
    store.broken = {"write"}
    uploader = make(attempts=1000)
    uploader.start()
    uploader.offer(delta(1))
    until(lambda: store.tries > 1)
    stale.add(0)
    assert uploader.drain(20.0)
    assert _answers(listener) == [("delta_upload_stale", 1)]


def test_close_answers_for_what_is_left_and_what_hangs(make, delta, store, listener, until):
    store.gate.clear()
    uploader = make()
    uploader.start()
    for step in (1, 2):
        uploader.offer(delta(step))
    until(lambda: store.tries == 1)
    uploader.close()
    assert _answers(listener) == [("delta_upload_failed", 1), ("delta_upload_failed", 2)]
    assert "closed before the upload" in listener.of("delta_upload_failed")[0]["error"]
    assert len(uploader.not_uploaded()) == 2
    assert not uploader.has_room
    store.gate.set()  # the one that hung arrives after all, and is not answered for a second time
    until(lambda: not uploader._thread.is_alive())
    uploader.close()
    assert len(_answers(listener)) == 2


def test_close_interrupts_a_back_off(make, delta, store, listener, until):
    store.broken = {"write"}
    uploader = make(attempts=10, backoff_s=1000.0)
    uploader.start()
    uploader.offer(delta(1))
    until(lambda: store.tries == 1)
    uploader.close()
    until(lambda: not uploader._thread.is_alive())
    assert _answers(listener) == [("delta_upload_failed", 1)]
