"""The master's inbox: each delta counts once, and nothing in the store can stop it."""

import pytest

from trainer.diloco.inbox import Inbox
from trainer.diloco.round import Round
from trainer.diloco.store import StoreError


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def inbox(store, listener, clock):
    return Inbox(store, torn_after_s=30.0, warn=listener.warn, clock=clock)


@pytest.fixture
def current(weights):
    return Round(2, weights(0.0))


def _state(current):
    return current.found, current.deltas_included, current.rejected


def test_a_delta_is_found_and_taken_once(inbox, current, send, clock):
    send("a", 1.0, base=2)
    clock.now_s = 105.0
    for _ in range(3):
        inbox.look(current)
    assert _state(current) == (1, 1, 0)
    assert inbox.news_s == 105.0
    send("b", 1.0, base=2)
    inbox.look(current)
    assert _state(current) == (2, 2, 0)


@pytest.mark.parametrize("base", [0, 1, 3])
def test_a_delta_relative_to_other_weights_is_refused_unread(inbox, current, store, send, listener, base):
    send("a", 1.0, base=base)
    store.broken = {"read"}
    for _ in range(2):
        inbox.look(current)
    assert _state(current) == (1, 0, 1)
    assert store.objects("deltas") == []
    assert len(listener.warnings) == 1
    assert f"refused at generation 2: it is relative to generation {base}" in listener.warnings[0]


def test_wrong_shapes_and_non_finite_values_are_refused(inbox, current, store, send):
    send("a", 1.0, base=2, size=9)
    send("b", float("nan"), base=2)
    send("c", 1.0, base=2)
    inbox.look(current)
    assert _state(current) == (3, 1, 2)
    assert len(store.objects("deltas")) == 1


def _tear(store, label, keep):
    (found,) = [each for each in store.objects("deltas") if each.label == label]
    path = store._path(f"deltas/{found.name}")
    whole = store._fs.cat_file(path)
    store._fs.pipe_file(path, whole[:keep] + b"\0" * (len(whole) - keep if keep > 10 else 0))
    return lambda: store._fs.pipe_file(path, whole)


@pytest.mark.parametrize("keep", [0, 5, 60], ids=["empty", "short", "damaged"])
def test_a_torn_delta_is_left_for_a_while_and_then_refused(inbox, current, store, send, clock, keep):
    _tear(store, send("a", 1.0, base=2), keep)
    for at_s, rejected in ((100.0, 0), (129.0, 0), (130.0, 1), (200.0, 1)):
        clock.now_s = at_s
        inbox.look(current)
        assert _state(current) == (1, 0, rejected)
    assert store.objects("deltas") == []


def test_a_delta_that_becomes_whole_in_time_is_taken(inbox, current, store, send, clock):
    mend = _tear(store, send("a", 1.0, base=2), 5)
    inbox.look(current)
    mend()
    clock.now_s = 125.0
    inbox.look(current)
    assert _state(current) == (1, 1, 0)


def test_a_foreign_object_of_our_form_is_refused_and_other_files_are_left(inbox, current, store, clock):
    store.write("deltas", "g00000002.s000000000001.a.0", b"not safetensors at all")
    store.write("deltas", "something-else", b"x")
    store.mark("deltas", "notes.txt")
    inbox.look(current)
    clock.now_s = 131.0
    inbox.look(current)
    assert _state(current) == (1, 0, 1)
    assert store.names("deltas")[0] == "notes.txt"
    assert [found.label for found in store.objects("deltas")] == ["something-else"]


def test_a_delta_that_cannot_be_read_now_is_read_later(inbox, current, store, send, listener, clock):
    send("a", 1.0, base=2)
    store.broken = {"read"}
    for at_s in (100.0, 200.0):
        clock.now_s = at_s
        inbox.look(current)
    assert _state(current) == (1, 0, 0)
    assert len(listener.warnings) == 1
    store.broken = set()
    inbox.look(current)
    assert _state(current) == (1, 1, 0)


def test_deltas_of_former_steps_are_removed_and_count_no_more(inbox, current, store, send):
    label = send("a", 1.0, base=1)
    inbox.settle([label])
    store.broken = {"remove"}
    inbox.look(current)
    assert len(store.objects("deltas")) == 1
    store.broken = set()
    inbox.look(current)
    assert store.objects("deltas") == []
    assert _state(current) == (0, 0, 0)


def test_a_refused_delta_that_cannot_be_removed_is_refused_once(inbox, current, store, send):
    store.broken = {"remove"}
    send("a", 1.0, base=0)
    for _ in range(3):
        inbox.look(current)
    assert _state(current) == (1, 0, 1)


def test_a_listing_that_forgets_a_delta_for_once_does_not_count_it_twice(inbox, current, store, send):
    send("a", 1.0, base=2)
    inbox.look(current)
    (found,) = store.objects("deltas")
    data = store.read(found)
    store.remove("deltas", found.name)
    inbox.look(current)
    store.write("deltas", found.label, data)
    inbox.look(current)
    assert current.deltas_included == 1


def test_a_store_that_cannot_be_listed_is_the_callers_business(inbox, current, store):
    store.broken = {"list"}
    with pytest.raises(StoreError):
        inbox.look(current)
