"""MetricLogger, sentence by sentence of its contract."""

import enum
import io
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import trainer.metrics
from trainer.hooks import CallbackList
from trainer.metrics import MetricLogger

ROOT = Path(__file__).resolve().parents[2]


class Recorder:
    """A hook that keeps what it heard."""

    def __init__(self, every_steps=None):
        self.heard = []
        self.closed = 0
        if every_steps is not None:
            self.every_steps = every_steps

    def on_event(self, event, payload):
        self.heard.append((event, payload))

    def close(self):
        self.closed += 1

    @property
    def events(self):
        return [event for event, _ in self.heard]

    def steps(self):
        return [payload["step"] for event, payload in self.heard if event == "train_step"]


class Failing(Recorder):
    def on_event(self, event, payload):
        super().on_event(event, payload)
        raise ValueError("broken")


class Clock:
    """Seconds that stand still until a test moves them."""

    def __init__(self, now_s):
        self.now_s = now_s

    def __call__(self):
        return self.now_s


@pytest.fixture
def stream():
    return io.StringIO()


@pytest.fixture
def json_file(tmp_path):
    return tmp_path / "log.jsonl"


@pytest.fixture
def lines(json_file, strict_json):
    return lambda: [strict_json(line) for line in json_file.read_bytes().splitlines()]


@pytest.fixture
def no_memory(monkeypatch):
    monkeypatch.setattr(trainer.metrics, "memory_usage_bytes", lambda device: None)


# ---- set-up


@pytest.mark.parametrize("level", ["LOUD", "", "info ", 15, None, True, [], 0])
def test_an_unknown_level_raises(level):
    with pytest.raises(ValueError, match=r"level=.*accepted is one of DEBUG, INFO, WARNING, ERROR, CRITICAL"):
        MetricLogger(level=level)


@pytest.mark.parametrize(("level", "name"), [("info", "INFO"), ("Error", "ERROR"), (30, "WARNING")])
def test_levels_go_by_name_or_number(level, name):
    assert MetricLogger(level=level).level == name


@pytest.mark.parametrize("every_steps", [0, -1, 1.0, True, None, "1"])
def test_a_cadence_below_one_raises(every_steps):
    with pytest.raises(ValueError, match=f"every_steps={every_steps!r}: accepted"):
        MetricLogger(every_steps=every_steps)


@pytest.mark.parametrize("setting", ["file", "json_file"])
def test_a_folder_that_cannot_be_made_raises(tmp_path, setting):
    (tmp_path / "in the way").write_text("")
    with pytest.raises(
        OSError, match=f"{setting}='.*in the way/log': accepted is a file that can be written"
    ):
        MetricLogger(**{setting: tmp_path / "in the way" / "log"})


def test_one_file_for_text_and_json_raises(tmp_path):
    with pytest.raises(ValueError, match="json_file="):
        MetricLogger(file=tmp_path / "log", json_file=tmp_path / "." / "log")


@pytest.mark.parametrize("hook", [3, Recorder])
def test_a_hook_that_cannot_be_called_raises(hook):
    with pytest.raises(TypeError):
        MetricLogger(hooks=[hook])


def test_hooks_is_a_plain_public_list(stream):
    given = [Recorder()]
    logger = MetricLogger(stream=stream, hooks=given)
    assert logger.hooks == given
    assert type(logger.hooks) is list
    assert type(MetricLogger(stream=stream).hooks) is list
    late = Recorder()
    logger.hooks.append(late)
    logger.emit("e", {})
    assert late.events == ["e"]


def test_folders_are_made(tmp_path):
    with MetricLogger(file=tmp_path / "a" / "b.log", json_file=str(tmp_path / "c" / "d.jsonl")) as logger:
        logger.emit("e", {})
    assert (tmp_path / "a" / "b.log").read_text().endswith("\n")
    assert (tmp_path / "c" / "d.jsonl").read_text().endswith("\n")


# ---- emit: copy, elapsed_s, cadence, memory_bytes


def test_the_payload_is_copied(stream):
    payload = {"x": [1]}
    hook = Recorder()
    MetricLogger(stream=stream, hooks=[hook]).emit("e", payload)
    assert payload == {"x": [1]}
    assert hook.heard[0][1] is not payload


def test_elapsed_s_is_added_when_absent(json_file, lines, no_memory):
    clock = Clock(50.0)
    logger = MetricLogger("ERROR", json_file=json_file, clock=clock)
    clock.now_s = 51.5
    logger.emit("train_step", {"step": 1})
    logger.emit("train_end", {"elapsed_s": 9.0})
    assert lines() == [
        {"event": "train_step", "step": 1, "elapsed_s": 1.5},
        {"event": "train_end", "elapsed_s": 9.0},
    ]


def test_a_step_outside_the_cadence_goes_only_to_hooks_with_a_cadence_that_it_meets(
    monkeypatch, stream, json_file, lines
):
    asked = []
    monkeypatch.setattr(trainer.metrics, "memory_usage_bytes", asked.append)
    plain, each, third = Recorder(), Recorder(every_steps=1), Recorder(every_steps=3)
    logger = MetricLogger(stream=stream, json_file=json_file, every_steps=4, hooks=[plain, each, third])
    for step in range(1, 9):
        logger.emit("train_step", {"step": step})
    assert len(asked) == 2, "no device query outside the cadence"
    assert stream.getvalue().count("\n") == 2
    assert [line["step"] for line in lines()] == [4, 8]
    assert plain.steps() == [4, 8]
    assert each.steps() == list(range(1, 9))
    assert third.steps() == [3, 6]
    assert all("elapsed_s" in payload for _, payload in each.heard)


@pytest.mark.parametrize("payload", [{}, {"step": None}, {"step": "3"}, {"step": 3.0}, {"step": True}])
def test_a_cadence_holds_for_integer_steps_alone(json_file, lines, payload):
    hook = Recorder(every_steps=7)
    MetricLogger("ERROR", json_file=json_file, every_steps=4, hooks=[hook]).emit("train_step", payload)
    assert len(lines()) == 1
    assert len(hook.heard) == 1


def test_a_cadence_holds_for_numpy_steps(json_file, lines):
    logger = MetricLogger("ERROR", json_file=json_file, every_steps=4)
    for step in range(1, 9):
        logger.emit("train_step", {"step": np.int32(step)})
    assert [line["step"] for line in lines()] == [4, 8]


def test_other_events_have_no_cadence(json_file, lines):
    hook = Recorder(every_steps=7)
    MetricLogger("ERROR", json_file=json_file, every_steps=4, hooks=[hook]).emit("checkpoint", {"step": 3})
    assert len(lines()) == len(hook.heard) == 1


def test_a_list_of_hooks_has_the_smallest_cadence_inside(stream):
    each = Recorder(every_steps=1)
    logger = MetricLogger(stream=stream, every_steps=4, hooks=[CallbackList([each])])
    for step in range(1, 5):
        logger.emit("train_step", {"step": step})
    assert each.steps() == [1, 2, 3, 4]


def test_memory_bytes_is_added_when_absent_and_available(monkeypatch, json_file, lines):
    logger = MetricLogger("ERROR", json_file=json_file, clock=Clock(0.0))
    assert logger.device is None
    logger.device = torch.device("cuda:1")
    answers = {torch.device("cuda:1"): 4096}
    monkeypatch.setattr(trainer.metrics, "memory_usage_bytes", answers.get)
    logger.emit("e", {})
    logger.emit("e", {"memory_bytes": 1})
    logger.device = None
    logger.emit("e", {})
    assert [line.get("memory_bytes") for line in lines()] == [4096, 1, None]
    assert "memory_bytes" not in lines()[2], "unknown is absent, not null"


# ---- emit: text


def test_the_text_line(stream, no_memory):
    wall = Clock(time.mktime((2026, 1, 1, 12, 0, 0, 0, 0, -1)) + 0.9)
    logger = MetricLogger(stream=stream, clock=Clock(0.0), wall_clock=wall)
    logger.emit("train_step", {"step": 1, "loss": 1.2, "lr": 0.0003, "elapsed_s": 2.5})
    wall.now_s += 1
    logger.emit("train_step", {"step": 2, "loss": math.nan, "path": "a\nb", "elapsed_s": 1234567.0})
    assert stream.getvalue() == (
        "2026-01-01 12:00:00 | INFO | train_step step=1 loss=1.2 lr=0.0003 elapsed_s=2.5\n"
        "2026-01-01 12:00:01 | INFO | train_step step=2 loss=nan path=a\\nb elapsed_s=1.23457e+06\n"
    )


def test_text_goes_to_standard_output(capsys):
    MetricLogger().emit("e", {"x": 1})
    out, err = capsys.readouterr()
    assert " | INFO | e x=1 " in out
    assert err == ""


def test_a_file_replaces_the_stream(tmp_path, capsys, stream):
    logger = MetricLogger(file=tmp_path / "log", stream=stream)
    logger.emit("e\ud800", {"x": "\udcff"})
    assert " | INFO | e\\ud800 x=\\udcff " in (tmp_path / "log").read_text(encoding="utf-8")
    assert capsys.readouterr().out == stream.getvalue() == ""


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("DEBUG", ["debug", "info", "warning", "error", "critical", "e"]),
        ("INFO", ["info", "warning", "error", "critical", "e"]),
        ("WARNING", ["warning", "error", "critical"]),
        ("ERROR", ["error", "critical"]),
        ("CRITICAL", ["critical"]),
    ],
)
def test_level_filters_text_only(stream, json_file, lines, level, shown):
    hook = Recorder()
    logger = MetricLogger(level, stream=stream, json_file=json_file, hooks=[hook])
    logger.debug("debug")
    logger.info("info")
    logger.warning("warning")
    logger.error("error")
    logger.log("critical", "critical")
    logger.emit("e", {})
    assert [line.split(" | ")[2].split()[0] for line in stream.getvalue().splitlines()] == shown
    assert [line["event"] for line in lines()] == hook.events == ["e"]


def test_messages_are_one_line_at_their_level_and_in_the_text_only(stream, json_file):
    logger = MetricLogger(stream=stream, json_file=json_file)
    logger.warning("%d of %s\n", 3, "four")
    logger.log(25, "100 %")
    logger.error("%d", "no number")
    logger.info("a", "b")
    assert [line.split(" | ", 1)[1] for line in stream.getvalue().splitlines()] == [
        "WARNING | 3 of four\\n",
        "25 | 100 %",
        "ERROR | %d no number",
        "INFO | a b",
    ]
    assert json_file.read_bytes() == b""
    with pytest.raises(ValueError, match="level='LOUD'"):
        logger.log("LOUD", "x")


def test_fields_that_a_payload_names_as_too_many_are_left_out_of_the_text(stream, json_file, lines):
    class Payload(dict):
        json_only = frozenset({"many"})

    hook = Recorder()
    payload = Payload(step=1, many=2)
    MetricLogger(stream=stream, json_file=json_file, hooks=[hook]).emit("device_stats", payload)
    assert " | INFO | device_stats step=1 elapsed_s=" in stream.getvalue()
    assert lines()[0]["many"] == hook.heard[0][1]["many"] == 2


# ---- emit: JSON lines


def test_the_json_line(json_file, no_memory):
    logger = MetricLogger("ERROR", json_file=json_file, clock=Clock(0.0))
    logger.emit("train_step", {"step": 1, "loss": math.inf, "event": "mine"})
    assert json_file.read_text() == (
        '{"event":"train_step","step":1,"loss":"Infinity","payload_event":"mine","elapsed_s":0.0}\n'
    )


def test_a_line_has_been_handed_to_the_kernel_when_emit_returns(tmp_path, json_file):
    source = (
        "import os, sys; from trainer.metrics import MetricLogger;"
        "MetricLogger(file=sys.argv[1], json_file=sys.argv[2]).emit('e', {'x': 1});"
        "os._exit(7)"  # nothing is flushed on this way out
    )
    done = subprocess.run([sys.executable, "-c", source, tmp_path / "text", json_file], cwd=ROOT, check=False)
    assert done.returncode == 7
    assert json.loads(json_file.read_text())["x"] == 1
    assert " | INFO | e x=1 " in (tmp_path / "text").read_text()


def test_a_resumed_log_keeps_its_lines_and_closes_off_a_torn_one(tmp_path, json_file, strict_json):
    text_file = tmp_path / "log"
    for attempt, steps in enumerate([(1, 2, 3, 4, 5), (4, 5, 6)]):
        with MetricLogger(file=text_file, json_file=json_file) as logger:
            for step in steps:
                logger.emit("train_step", {"step": step, "attempt": attempt})
            logger.emit("train_step", {"step": 2})  # a step before the last one is written like any other
        whole = json_file.read_bytes()
        if attempt == 0:
            json_file.write_bytes(whole[:-20])
            text_file.write_bytes(text_file.read_bytes()[:-20])
    lines = json_file.read_bytes().splitlines()
    torn = lines.pop(5)
    with pytest.raises(json.JSONDecodeError):
        strict_json(torn)
    assert [strict_json(line)["step"] for line in lines] == [1, 2, 3, 4, 5, 4, 5, 6, 2]
    assert len(text_file.read_text().splitlines()) == 10


def test_a_full_disk_warns_counts_and_training_goes_on(caplog, json_file, lines):
    hook = Recorder()
    logger = MetricLogger(file="/dev/full", json_file=json_file, hooks=[hook])
    for step in range(1, 51):
        logger.emit("train_step", {"step": step})
    logger.close()
    assert logger.write_failure_count == 50
    assert len(caplog.records) == 2
    assert len(lines()) == len(hook.heard) == 50


def test_devices_may_be_both_files():
    with MetricLogger(file=os.devnull, json_file="/dev/full") as logger:
        logger.emit("e", {})
    assert logger.write_failure_count == 1


# ---- emit: hooks


def test_hooks_are_called_in_order_each_with_its_own_copy(stream):
    heard = []

    def first(event, payload):
        heard.append(("first", event, payload.pop("x")))

    class Second:
        def on_event(self, event, payload):
            heard.append(("second", event, payload["x"]))

        def __call__(self, event, payload):
            raise AssertionError("on_event the method wins")

    MetricLogger(stream=stream, hooks=[first, Second()]).emit("e", {"x": 1})
    assert heard == [("first", "e", 1), ("second", "e", 1)]


def test_hooks_are_called_on_a_snapshot_of_the_list(stream):
    late = Recorder()
    last = Recorder()

    def changing(event, payload):
        logger.hooks.append(late)
        logger.hooks.remove(changing)

    logger = MetricLogger(stream=stream, hooks=[changing, last])
    logger.emit("one", {})
    assert (late.events, last.events) == ([], ["one"])
    logger.emit("two", {})
    assert (late.events, last.events) == (["two"], ["one", "two"])


def test_hooks_hear_what_was_added(stream, monkeypatch):
    monkeypatch.setattr(trainer.metrics, "memory_usage_bytes", lambda device: 5)
    hook = Recorder()
    MetricLogger(stream=stream, hooks=[hook], clock=Clock(0.0)).emit("e", {"x": 1})
    assert hook.heard == [("e", {"x": 1, "elapsed_s": 0.0, "memory_bytes": 5})]


def test_a_hook_s_exception_is_isolated_warned_about_counted_and_told(stream, json_file, lines, caplog):
    failing, last = Failing(), Recorder()
    logger = MetricLogger(stream=stream, json_file=json_file, hooks=[failing, last])
    for step in range(1, 151):
        logger.emit("train_step", {"step": step})
    told = [payload for event, payload in last.heard if event == "hook_failed"]
    assert [payload["count"] for payload in told] == [1, 10, 100]
    assert {key: told[0][key] for key in ("hook", "failed_event", "error")} == {
        "hook": "Failing", "failed_event": "train_step", "error": "ValueError: broken",
    }  # fmt: skip
    assert last.events[:3] == ["train_step", "hook_failed", "train_step"]
    assert failing.steps() == last.steps() == list(range(1, 151))
    assert "hook_failed" not in failing.events, "the failed hook is not told of itself"
    assert [line["count"] for line in lines() if line["event"] == "hook_failed"] == [1, 10, 100]
    assert (
        stream.getvalue().count(" | WARNING | hook_failed hook=Failing failed_event=train_step error=") == 3
    )
    assert len(caplog.records) == 3
    assert logger.hook_failure_counts == {"Failing": 150}


def test_hook_failed_is_never_told_of_hook_failed(stream, json_file, lines):
    class Other(Failing):
        pass

    failing, other = Failing(), Other()
    logger = MetricLogger(stream=stream, json_file=json_file, hooks=[failing, other])
    logger.emit("e", {})
    assert [line["event"] for line in lines()] == ["e", "hook_failed", "hook_failed"]
    assert failing.events == other.events == ["e", "hook_failed"]
    assert logger.hook_failure_counts == {"Failing": 2, "Other": 2}


def test_a_hook_that_fails_at_hook_failed_alone_is_told_at_close(stream, json_file, lines):
    def touchy(event, payload):
        if event == "hook_failed":
            raise KeyError("touchy")

    logger = MetricLogger(stream=stream, json_file=json_file, hooks=[Failing(), touchy])
    logger.emit("e", {})
    assert [line.get("hook") for line in lines()] == [None, "Failing"]
    logger.close()
    # Telling of the one made the other fail once more, so that its count is told again.
    assert [(line["hook"], line["count"]) for line in lines()[2:]] == [("touchy", 1), ("Failing", 2)]


def test_close_tells_the_final_count(stream, json_file, lines):
    last = Recorder()
    logger = MetricLogger(stream=stream, json_file=json_file, hooks=[Failing(), last])
    for _ in range(37):
        logger.emit("e", {})
    logger.close()
    assert [line["count"] for line in lines() if line["event"] == "hook_failed"] == [1, 10, 37]
    assert last.heard[-1][1]["count"] == 37


def test_a_hook_that_is_appended_and_cannot_be_called_fails_alone(stream):
    last = Recorder()
    logger = MetricLogger(stream=stream)
    logger.hooks += [3, last]
    logger.emit("e", {})
    assert last.events == ["e", "hook_failed"]
    assert logger.hook_failure_counts == {"int": 1}


def test_ctrl_c_in_a_hook_goes_up(stream):
    def stop(event, payload):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        MetricLogger(stream=stream, hooks=[stop]).emit("e", {})


def test_an_event_s_name_is_a_plain_string_for_all(stream, json_file, lines):
    class Name(str, enum.Enum):
        STEP = "train_step"

    hook = Recorder()
    MetricLogger(stream=stream, json_file=json_file, hooks=[hook], every_steps=2).emit(Name.STEP, {"step": 1})
    MetricLogger(stream=stream, json_file=json_file, hooks=[hook]).emit(Name.STEP, {"step": 1})
    assert [type(event) for event in hook.events] == [str]
    assert " | train_step step=1 " in stream.getvalue()
    assert [line["event"] for line in lines()] == ["train_step"]


def test_any_payload_reaches_the_hook_and_both_logs(tmp_path, strict_json):
    loop = []
    loop.append(loop)

    class Bad:
        def __str__(self):
            raise RuntimeError("no")

    payload = {
        "nan": math.nan, "tensor": torch.zeros(3), "big": 2**200, "bytes": b"\0", 7: "key", "loop": loop,
        "bad": Bad(), "surrogate": "\udc80", "step": None, "elapsed_s": "soon",
    }  # fmt: skip
    hook = Recorder()
    with MetricLogger(file=tmp_path / "log", json_file=tmp_path / "jsonl", hooks=[hook]) as logger:
        logger.emit("e", payload)
    (line,) = (tmp_path / "jsonl").read_bytes().splitlines()
    assert strict_json(line)["7"] == "key"
    assert len((tmp_path / "log").read_text(encoding="utf-8").splitlines()) == 1
    assert hook.heard[0][1]["bad"] is payload["bad"]
    assert logger.write_failure_count == 0


@pytest.mark.parametrize("payload", [None, 3, "text", [1], (pair for pair in "ab")], ids=type)
def test_a_payload_that_is_no_dict_is_a_field_of_one(stream, json_file, lines, payload):
    hook = Recorder()
    MetricLogger(stream=stream, json_file=json_file, hooks=[hook]).emit("e", payload)
    assert hook.heard[0][1]["payload"] == payload
    (line,) = lines()
    assert line["payload"] == (str(payload) if type(payload) not in (int, list, type(None)) else payload)


def test_an_event_that_is_no_string_is_told_as_one(stream, json_file, lines):
    hook = Recorder()
    MetricLogger(stream=stream, json_file=json_file, hooks=[hook]).emit(None, {})
    assert hook.events == ["None"]
    assert [line["event"] for line in lines()] == ["None"]


# ---- threads, forks, signals


def test_emit_is_safe_from_many_threads(tmp_path, json_file, lines):
    busy = []

    def alone(event, payload):
        busy.append(1)
        assert len(busy) == 1, "two threads are in a hook at once"
        busy.pop()

    logger = MetricLogger(file=tmp_path / "log", json_file=json_file, hooks=[alone])

    def work(worker):
        for number in range(200):
            logger.emit("e", {"worker": worker, "number": number, "pad": "x" * number})

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    logger.close()
    assert logger.hook_failure_counts == {}
    assert {(line["worker"], line["number"]) for line in lines()} == {
        (w, n) for w in range(8) for n in range(200)
    }
    assert len((tmp_path / "log").read_text().splitlines()) == 1600


def test_a_hook_may_emit(stream, json_file, lines):
    last = Recorder()

    def echo(event, payload):
        if event == "e":
            logger.emit("echo", {})

    logger = MetricLogger(stream=stream, json_file=json_file, hooks=[echo, last])
    logger.emit("e", {})
    assert [line["event"] for line in lines()] == ["e", "echo"]
    assert sorted(last.events) == ["e", "echo"]


def test_a_forked_child_emits_though_another_thread_held_the_lock(json_file, lines):
    held, release = threading.Event(), threading.Event()

    def hold(event, payload):
        if event == "hold":
            held.set()
            release.wait(20)

    logger = MetricLogger("ERROR", json_file=json_file, hooks=[hold])
    thread = threading.Thread(target=logger.emit, args=("hold", {}))
    thread.start()
    held.wait(20)
    child = fork()
    if child == 0:
        signal.alarm(10)  # a deadlock ends the child with a status that is not 0
        logger.emit("child", {})
        logger.close()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    release.set()
    thread.join()
    logger.emit("parent", {})
    assert status == 0
    assert [line["event"] for line in lines()] == ["hold", "child", "parent"]


def test_a_forked_child_leaves_a_broken_line_to_its_parent(json_file, full_at):
    logger = MetricLogger("CRITICAL", json_file=json_file)
    full_at(10)
    logger.emit("parent", {"step": 1, "elapsed_s": 0})
    full_at(None)
    child = fork()
    if child == 0:
        logger.emit("child", {"elapsed_s": 0})
        os._exit(0)
    os.waitpid(child, 0)
    logger.emit("parent", {"step": 2, "elapsed_s": 0})
    assert json_file.read_text().splitlines() == [
        '{"event":"',
        '{"event":"child","elapsed_s":0}',
        'parent","step":1,"elapsed_s":0}',
        '{"event":"parent","step":2,"elapsed_s":0}',
    ]


def fork():
    """Fork without the warning that threads and forks do not go together: that they do is what is tested."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def test_a_signal_handler_may_emit_and_close(stream, json_file, lines):
    def interrupted(event, payload):
        signal.raise_signal(signal.SIGUSR1)

    hook = Recorder()
    logger = MetricLogger(stream=stream, json_file=json_file, hooks=[interrupted, hook])

    def handle(number, frame):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        logger.emit("signal", {})
        logger.close()

    former = signal.signal(signal.SIGUSR1, handle)
    try:
        logger.emit("e", {})
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert [line["event"] for line in lines()] == ["e", "signal"]
    assert sorted(hook.events) == ["e", "signal"]
    assert hook.closed == 1


# ---- close


def test_close_closes_files_and_every_hook_that_has_close(tmp_path, json_file):
    open_before = set(Path("/proc/self/fd").iterdir())
    hooks = [Recorder(), print, Recorder()]
    logger = MetricLogger(file=tmp_path / "log", json_file=json_file, hooks=hooks)
    logger.hooks.append(hooks[0])
    logger.close()
    logger.close()
    assert hooks[0].closed == hooks[2].closed == 1
    assert set(Path("/proc/self/fd").iterdir()) == open_before


def test_close_goes_on_when_a_hook_fails_to_close(stream, json_file, lines, caplog):
    class Stuck(Recorder):
        def close(self):
            super().close()
            raise OSError("stuck")

    stuck, last = Stuck(), Recorder()
    logger = MetricLogger(stream=stream, json_file=json_file, hooks=[stuck, last])
    logger.close()
    assert stuck.closed == last.closed == 1
    (line,) = lines()
    assert (line["event"], line["failed_event"], line["error"]) == ("hook_failed", "close", "OSError: stuck")
    assert "hook Stuck failed at close" in caplog.text
    assert " | WARNING | hook_failed " in stream.getvalue()


def test_close_flushes_the_stream():
    class Stream(io.StringIO):
        flushed = 0

        def flush(self):
            self.flushed += 1

    stream = Stream()
    MetricLogger(stream=stream).close()
    assert stream.flushed == 1
    assert not stream.closed


def test_emit_after_close_is_a_counted_no_op(stream, json_file):
    hook = Recorder()
    logger = MetricLogger(stream=stream, json_file=json_file, hooks=[hook])
    logger.close()
    logger.emit("e", {})
    logger.info("text")
    assert logger.late_count == 2
    assert json_file.read_bytes() == b""
    assert stream.getvalue() == ""
    assert hook.heard == []


def test_close_from_a_hook_lets_the_event_reach_every_hook(stream, json_file, lines):
    first, last = Recorder(), Recorder()

    def closing(event, payload):
        if event == "train_end":
            logger.close()

    logger = MetricLogger(stream=stream, json_file=json_file, hooks=[first, closing, Failing(), last])
    logger.emit("e", {})
    logger.emit("train_end", {})
    assert [event for event in last.events if event != "hook_failed"] == ["e", "train_end"]
    assert first.closed == last.closed == 1
    assert [line.get("count") for line in lines()] == [None, 1, None, 2], (
        "failures on the way are told as well"
    )
    assert logger.late_count == logger.write_failure_count == 0


@pytest.mark.parametrize("order", [1, -1])
def test_a_failure_on_the_way_of_a_close_is_told_once(stream, json_file, lines, order):
    def closing(event, payload):
        logger.close()

    logger = MetricLogger(stream=stream, json_file=json_file, hooks=[closing, Failing()][::order])
    logger.emit("e", {})
    assert [line["event"] for line in lines()] == ["e", "hook_failed"]
    assert logger.write_failure_count == 0


def test_close_does_not_wait_for_a_thread_that_waits_for_it(stream):
    class Sampler:
        """Emits from a thread of its own, which close() joins."""

        def __init__(self):
            self.stop = threading.Event()
            self.thread = threading.Thread(target=self.work)

        def work(self):
            self.stop.wait()
            logger.emit("sample", {})

        def on_event(self, event, payload):
            pass

        def close(self):
            self.stop.set()
            self.thread.join()

    sampler = Sampler()
    logger = MetricLogger(stream=stream, hooks=[sampler])
    sampler.thread.start()
    logger.close()
    assert logger.late_count == 1


def test_the_logger_is_a_context_manager(json_file, lines):
    hook = Recorder()
    with MetricLogger("ERROR", json_file=json_file, hooks=[hook]) as logger:
        logger.emit("e", {})
        assert hook.closed == 0
    assert hook.closed == 1
    assert len(lines()) == 1


def test_ctrl_c_while_a_hook_closes_still_closes_the_files(json_file):
    class Stopped(Recorder):
        def close(self):
            raise KeyboardInterrupt

    open_before = set(Path("/proc/self/fd").iterdir())
    logger = MetricLogger("ERROR", json_file=json_file, hooks=[Stopped()])
    with pytest.raises(KeyboardInterrupt):
        logger.close()
    assert set(Path("/proc/self/fd").iterdir()) == open_before


# ---- imports


def test_the_logger_needs_no_torch(run_python, json_file):
    run_python(
        "import sys; from trainer.metrics import MetricLogger;"
        "MetricLogger(json_file=sys.argv[1]).emit('e', {'x': 1});"
        "assert not {'torch', 'numpy'} & set(sys.modules)",
        json_file,
    )
