"""The worker's eye on the store."""

import pytest

from trainer.diloco.watch import GlobalWatch


@pytest.fixture
def watch(store, listener):
    watch = GlobalWatch(store, poll_s=0.005, warn=listener.warn)
    watch.start()
    yield watch
    watch.close()


def test_newer_weights_are_fetched(watch, publish):
    assert watch.newer_than(-1) is None
    publish(0, 1.0)
    found = watch.wait_newer(-1, 20.0)
    assert (found.generation, found.tensors["b"].item()) == (0, 1.0)
    assert watch.newer_than(0) is None
    publish(5, 2.0)
    assert watch.wait_newer(0, 20.0).generation == 5


def test_waiting_is_bounded(watch):
    assert watch.wait_newer(-1, 0.02) is None


def test_a_store_that_fails_is_told_of_once_until_it_works(watch, store, publish, listener, until):
    store.broken = {"list"}
    until(lambda: listener.warnings)
    store.broken = set()
    publish(0, 1.0)
    assert watch.wait_newer(-1, 20.0) is not None
    assert len(listener.warnings) == 1
    assert "planted; will be tried again" in listener.warnings[0]
    store.broken = {"list"}
    until(lambda: len(listener.warnings) == 2)
