"""The master's loop, on a real thread: outer steps, restarts, and a store that fails."""

import pytest
import torch

from trainer.diloco.objects import delta_label, encode, read_newest_globals
from trainer.diloco.outer import OuterLoop
from trainer.diloco.store import Store

MASTER = {"role": "master", "store": "/unused", "workers": 2, "outer_lr": 1.0, "outer_momentum": 0.0}


@pytest.fixture
def start(store, listener, settings, weights):
    """Starts a master; stopped at the end."""
    started = []

    def start(initial=10.0, **values):
        loop = OuterLoop(
            settings(**{**MASTER, **values}), store, weights(initial), emit=listener.emit, warn=listener.warn
        )
        loop.start()
        started.append(loop)
        return loop

    yield start
    for loop in started:
        loop.close(20.0)


@pytest.fixture
def newest(store):
    return lambda: read_newest_globals(store)


def _steps(listener):
    return [
        tuple(payload[key] for key in ("outer_step", "deltas_found", "deltas_included", "deltas_rejected"))
        for payload in listener.of("outer_step")
    ]


def test_the_initial_weights_are_published_first(start, newest, until):
    start()
    until(newest)
    assert (newest().generation, newest().tensors["b"].item()) == (0, 10.0)


def test_an_outer_step_is_made_when_all_have_sent(start, newest, send, listener, store, until):
    loop = start()
    until(newest)
    first = send("a", 1.0)
    until(lambda: loop._round.found == 1)
    assert listener.events == []
    second = send("b", 3.0)
    until(lambda: listener.of("outer_step"))
    found = newest()
    assert (found.generation, found.tensors["w"].tolist()) == (1, [8.0] * 3)
    assert found.included == {"a": [first], "b": [second]}
    assert _steps(listener) == [(1, 2, 2, 0)]
    assert listener.of("outer_step")[0]["duration_s"] > 0
    assert listener.threads["outer_step"] == {"diloco-outer"}
    until(lambda: not store.objects("deltas"), "removing what is included")


def test_it_does_not_wait_for_ever(start, newest, send, listener, until):
    start(round_timeout_s=0.05)
    until(newest)
    send("a", 1.0)
    until(lambda: listener.of("outer_step"))
    assert newest().tensors["b"].item() == 9.0


def test_required_workers_are_enough(start, newest, send, listener, until):
    start(workers=3, required_workers=2)
    until(newest)
    send("a", 1.0)
    send("b", 1.0)
    until(lambda: listener.of("outer_step"))
    assert _steps(listener) == [(1, 2, 2, 0)]


def test_workers_that_are_done_are_not_waited_for(start, newest, send, store, listener, until):
    loop = start()
    until(newest)
    store.mark("finished", "b")
    send("a", 1.0)
    until(lambda: listener.of("outer_step"))
    assert not loop.wait(0.05)
    store.mark("finished", "a")
    assert loop.wait(20.0)


def test_bad_deltas_are_counted_and_cost_nobody_else(start, newest, send, listener, until):
    loop = start()
    until(newest)
    send("c", 1.0, size=8)
    send("c", float("inf"), step=20)
    send("c", 1.0, base=7)
    send("a", 1.0)
    until(lambda: loop._round.found == 4)
    send("b", 1.0)
    until(lambda: listener.of("outer_step"))
    assert _steps(listener) == [(1, 5, 2, 3)]
    assert newest().tensors["b"].item() == 9.0
    assert len(listener.warnings) == 3


def test_a_late_delta_is_stale(start, newest, send, listener, until):
    start(round_timeout_s=0.05)
    until(newest)
    send("a", 1.0)
    until(lambda: _steps(listener) == [(1, 1, 1, 0)])
    send("b", 1.0, base=0)
    until(lambda: listener.warnings)
    send("a", 1.0, base=1)
    until(lambda: len(listener.of("outer_step")) == 2)
    assert _steps(listener)[1] == (2, 2, 1, 1)


def test_old_generations_are_removed(start, newest, send, store, listener, until):
    start(workers=1, keep_generations=2)
    until(newest)
    for base in range(5):
        send("a", 1.0, base=base, step=10 * base)
        until(lambda base=base: newest().generation == base + 1)
    until(lambda: len(listener.of("outer_step")) == 5)
    until(lambda: [found.label for found in store.objects("globals")] == ["g00000004", "g00000005"])
    until(lambda: [found.label for found in store.objects("outer")] == ["g00000004", "g00000005"])


def _run_steps(start, send, newest, until, deltas, restart):
    loop = start(workers=1, outer_lr=0.7, outer_momentum=0.9)
    until(newest)
    for base, value in enumerate(deltas):
        send("a", value, base=base, step=base)
        until(lambda base=base: newest().generation == base + 1)
        if restart:
            loop.close(20.0)
            loop = start(initial=-1.0, workers=1, outer_lr=0.7, outer_momentum=0.9)
    return newest()


def test_a_restarted_master_goes_on_with_its_weights_and_momentum(
    start, send, newest, until, store, listener
):
    restarted = _run_steps(start, send, newest, until, [1.0, -2.0, 0.5], restart=True)
    assert "going on from generation 1" in listener.warnings[0]
    velocity, weight = 0.0, 10.0
    for delta in (1.0, -2.0, 0.5):
        velocity = 0.9 * velocity + delta
        weight -= 0.7 * (delta + 0.9 * velocity)
    torch.testing.assert_close(restarted.tensors["b"], torch.tensor([weight]))


def test_deltas_that_wait_when_the_master_comes_back_are_taken(start, newest, send, listener, until):
    loop = start()
    until(newest)
    send("a", 1.0)
    until(lambda: loop._round.found == 1)
    loop.close(20.0)
    send("b", 3.0)
    start()
    until(lambda: listener.of("outer_step"))
    assert _steps(listener) == [(1, 2, 2, 0)]
    assert newest().tensors["b"].item() == 8.0


def test_killed_between_momentum_and_weights_the_step_is_made_again(
    start, newest, send, store, listener, until
):
    loop = start(workers=1, outer_momentum=0.9)
    until(lambda: loop.generation == 0)
    store.broken = {"write globals"}
    send("a", 1.0)
    until(lambda: store.objects("outer"), "writing the momentum")
    loop.close(20.0)
    assert listener.of("outer_step") == []
    store.broken = set()
    send("b", 5.0)  # so that the step made again is another one, and its momentum too
    start(workers=2, outer_momentum=0.9)
    until(lambda: listener.of("outer_step"))
    assert newest().tensors["b"].item() == pytest.approx(10.0 - 1.9 * 3.0)
    loop = start(workers=1, outer_momentum=0.9)
    until(lambda: loop.generation == 1)
    assert loop._optimizer.momentum()["b"].item() == pytest.approx(3.0)


def test_killed_after_publishing_included_deltas_are_not_taken_again(
    start, newest, send, store, listener, until
):
    store.broken = {"remove"}
    loop = start(workers=1)
    until(newest)
    send("a", 1.0)
    until(lambda: listener.of("outer_step"))
    loop.close(20.0)
    assert len(store.objects("deltas")) == 1
    store.broken = set()
    start(workers=1)
    until(lambda: not store.objects("deltas"))
    send("a", 1.0, base=1)
    until(lambda: len(listener.of("outer_step")) == 2)
    assert _steps(listener)[1] == (2, 1, 1, 0)
    assert newest().tensors["b"].item() == 8.0


@pytest.mark.parametrize("broken", ["list", "read", "write", "remove"])
def test_a_store_that_fails_for_a_while_costs_time_only(
    start, newest, weights, store, url, listener, until, broken
):
    loop = start(workers=1)
    until(lambda: loop.generation == 0)
    store.broken = {broken}
    Store(url).write("deltas", delta_label(0, 10, "a", "0"), encode(weights(1.0)))
    until(lambda: listener.warnings, "telling of the failure")
    assert len(listener.of("outer_step")) == (broken == "remove")
    store.broken = set()
    until(lambda: listener.of("outer_step"))
    assert newest().tensors["b"].item() == 9.0
    until(lambda: not store.objects("deltas"))
    assert len(listener.warnings) == 1


def test_a_store_of_another_model_is_refused(start, publish, until, weights, store, listener, settings):
    publish(4, 1.0)
    loop = OuterLoop(
        settings(**MASTER), store, {"other": torch.ones(2)}, emit=listener.emit, warn=listener.warn
    )
    loop.start()
    with pytest.raises(ValueError, match="weights of another model: b is not expected"):
        until(lambda: loop.wait(0.05))


def test_global_weights_of_which_none_is_whole_are_not_begun_anew(start, publish, store, until):
    publish(4, 1.0)
    (found,) = store.objects("globals")
    store._fs.pipe_file(store._path(f"globals/{found.name}"), b"half")
    loop = start()
    with pytest.raises(ValueError, match="none that are whole"):
        until(lambda: loop.wait(0.05))


def test_without_deltas_it_ends_after_a_while(start, listener):
    assert start(idle_timeout_s=0.05).wait(20.0)
    assert "idle_timeout_s" in listener.warnings[0]


def test_workers_that_were_done_before_may_train_on(start, newest, store, until):
    store.mark("finished", "a")
    store.mark("finished", "b")
    loop = start()
    until(newest)
    assert not loop.wait(0.1)
    store.remove("finished", "a")
    until(lambda: loop._finished == ["b"])
    store.mark("finished", "a")
    assert loop.wait(20.0)


def test_a_master_whose_workers_were_done_ends_when_nobody_joins(start, store):
    for worker in "ab":
        store.mark("finished", worker)
    assert start(join_timeout_s=0.05).wait(20.0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_loop_that_dies_is_no_end(start, send, until):
    loop = start(workers=1)
    until(lambda: loop.generation == 0)

    def fail(delta):
        raise RuntimeError("planted")

    loop._optimizer.step = fail
    send("a", 1.0)
    with pytest.raises(RuntimeError, match="outer loop has died"):
        until(lambda: loop.wait(0.05))
