"""Delivery of events to hooks."""

from trainer.dispatch import Dispatcher


def failing(event, payload):
    raise ValueError(f"at {event}")


def test_each_hook_gets_a_copy_of_its_own():
    payload = {"n": 1, "stages": ["a"]}
    heard = []

    def spoil(event, own):
        own["stages"].clear()
        own["n"] = 0

    Dispatcher().deliver([spoil, lambda event, own: heard.append((event, own))], "e", payload)
    assert payload == {"n": 1, "stages": ["a"]}
    assert heard == [("e", payload)]


def test_failures_are_told_at_growing_intervals(caplog):
    dispatcher = Dispatcher()
    told = [
        dispatcher.failure(name)
        for number in range(1, 1001)
        for name in dispatcher.deliver([failing], f"e{number}", {})
    ]
    assert [failure["count"] for failure in told] == [1, 10, 100, 1000]
    assert told[1] == {"hook": "failing", "failed_event": "e10", "error": "ValueError: at e10", "count": 10}
    assert len(caplog.records) == 4
    assert caplog.records[0].getMessage() == "hook failing failed at e1 (1 so far); training goes on"
    assert caplog.records[0].exc_info[0] is ValueError, "the trace says where"
    assert dispatcher.untold() == []


def test_what_was_not_told_is_known():
    dispatcher = Dispatcher()
    for _ in range(3):
        for name in dispatcher.deliver([failing], "e", {}):
            dispatcher.failure(name)
    assert dispatcher.untold() == ["failing"]
    assert dispatcher.failure("failing")["count"] == 3
    assert dispatcher.untold() == []


def test_an_error_whose_str_raises_is_told_by_its_type():
    class Mute(Exception):  # noqa: N818 - not an error of ours
        def __str__(self):
            raise RuntimeError("no")

    def hook(event, payload):
        raise Mute

    dispatcher = Dispatcher()
    (name,) = dispatcher.deliver([hook], "e", {})
    assert name == "hook"
    assert "Mute" in dispatcher.failure(name)["error"]


def test_a_request_to_end_goes_up_and_leaves_nothing_on_its_way():
    dispatcher = Dispatcher()
    heard = []

    def stop(event, payload):
        raise KeyboardInterrupt

    try:
        dispatcher.deliver([stop, lambda *event: heard.append(event)], "e", {})
    except KeyboardInterrupt:
        dispatcher.finish()
    assert heard == []
