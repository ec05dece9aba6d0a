"""The W&B and TensorBoard hooks, on the real packages."""

import json
import math
import os
import struct
import sys
import time

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trainer.integrations import is_main_rank
from trainer.integrations.tensorboard import TensorboardHook
from trainer.integrations.wandb import WandbHook
from trainer.metrics import MetricLogger


@pytest.fixture
def log_dir(tmp_path):
    return tmp_path / "tensorboard"


@pytest.fixture
def scalars(log_dir):
    def read():
        events = EventAccumulator(str(log_dir), size_guidance={"scalars": 0})
        events.Reload()
        return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}

    return read


# ---- ranks


@pytest.mark.parametrize(
    ("rank", "main"), [(None, True), ("0", True), (" 0 ", True), ("", True), ("1", False)]
)
def test_rank_0_under_torchrun_or_the_only_process(monkeypatch, rank, main):
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    assert is_main_rank() is main


def test_other_ranks_do_nothing_and_need_no_package(monkeypatch, log_dir):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    for hook in (WandbHook(project="p"), TensorboardHook(log_dir)):
        hook.on_event("e", {"x": 1})
        hook.close()
        assert hook.location is None
    assert not log_dir.exists()


# ---- missing extras


@pytest.mark.parametrize(
    ("package", "make"),
    [("wandb", WandbHook), ("tensorboard", TensorboardHook)],
)
def test_a_missing_extra_is_one_clear_error(monkeypatch, tmp_path, package, make):
    monkeypatch.chdir(tmp_path)
    for module in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard.writer", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=rf'pip install "otel-training\[{package}\]"') as raised:
        make()
    assert raised.value.__suppress_context__, "the user sees one error, not two"


def test_wandb_without_a_login_is_one_clear_error(monkeypatch, tmp_path):
    for name in ("HOME", "NETRC", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(ValueError, match=r"wandb cannot begin a run: .*API key"):
        WandbHook(project="p", mode="online", dir=str(tmp_path))


# ---- TensorBoard


def test_each_number_is_at_event_and_key_at_its_step(log_dir, scalars):
    hook = TensorboardHook(log_dir)
    assert hook.location == str(log_dir)
    hook.on_event("train_start", {"target_step": 9, "device": "cpu"})
    hook.on_event("train_step", {"step": 1, "loss": 2.5, "lr": torch.tensor(0.5, requires_grad=True)})
    hook.on_event(
        "train_step", {"step": 2, "loss": 1.5, "name": "x", "none": None, "list": [1], "big": 10**400}
    )
    hook.on_event("train_end", {"loss": 1.25})
    hook.on_event("val/@k", {"a b": 1})
    hook.close()
    assert scalars() == {
        "train_start/target_step": [(0, 9.0)],
        "train_step/step": [(1, 1.0), (2, 2.0)],
        "train_step/loss": [(1, 2.5), (2, 1.5)],
        "train_step/lr": [(1, 0.5)],
        "train_end/loss": [(2, 1.25)],
        "val/@k/a b": [(2, 1.0)],
    }


def test_booleans_nested_and_non_finite_values(log_dir, scalars):
    hook = TensorboardHook(log_dir)
    payload = {"step": 3, "on": True, "off": False, "nan": math.nan, "inf": math.inf}
    hook.on_event("e", {**payload, "ooo": {"enabled": True, "deep": {"streams": 2}, "reason": "x"}})
    hook.close()
    read = scalars()
    assert math.isnan(read.pop("e/nan")[0][1])
    assert read == {
        "e/step": [(3, 3.0)], "e/on": [(3, 1.0)], "e/off": [(3, 0.0)], "e/inf": [(3, math.inf)],
        "e/ooo/enabled": [(3, 1.0)], "e/ooo/deep/streams": [(3, 2.0)],
    }  # fmt: skip


def test_tensors_elsewhere_and_large_ones_are_not_read(log_dir, scalars):
    hook = TensorboardHook(log_dir)
    hook.on_event(
        "e", {"step": torch.tensor(4), "meta": torch.zeros((), device="meta"), "large": torch.zeros(3)}
    )
    hook.close()
    assert scalars() == {"e/step": [(4, 4.0)]}


def test_tensorboard_close_is_idempotent_and_final(log_dir, scalars):
    hook = TensorboardHook(log_dir)
    hook.on_event("e", {"x": 1})
    hook.close()
    hook.close()
    hook.on_event("e", {"y": 1})
    assert list(scalars()) == ["e/x"]
    assert len(list(log_dir.iterdir())) == 1


def test_a_forked_child_does_not_wait_for_the_writer_s_thread(log_dir, scalars):
    hook = TensorboardHook(log_dir)
    child = os.fork()
    if child == 0:
        for number in range(5000):
            hook.on_event("child", {"x": number})
        hook.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    hook.on_event("parent", {"x": 1})
    hook.close()
    assert list(scalars()) == ["parent/x"]


def test_tensorboard_in_a_logger(log_dir, scalars):
    with MetricLogger("ERROR", every_steps=2, hooks=[TensorboardHook(log_dir)]) as logger:
        for step in range(1, 5):
            logger.emit("train_step", {"step": step, "loss": 1.0 / step})
    assert scalars()["train_step/loss"] == [(2, 0.5), (4, 0.25)]
    assert logger.hook_failure_counts == {}


# ---- W&B


@pytest.fixture
def wandb_hook(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    hooks = []

    def make(**settings):
        hooks.append(WandbHook(project="p", mode="offline", dir=tmp_path, **settings))
        return hooks[-1]

    yield make
    for hook in hooks:
        hook.close()


def leveldb_records(data):
    """Yield the records of a log in LevelDB's format, without its checksums."""
    header, block_bytes, header_bytes = struct.Struct("<IHB"), 32_768, 7
    at, record = header_bytes, b""  # the file begins with a header of W&B's own, of the same length
    while at + header_bytes <= len(data):
        left_bytes = block_bytes - at % block_bytes
        if left_bytes < header_bytes:
            at += left_bytes
            continue
        _, length, kind = header.unpack_from(data, at)
        at += header_bytes + length
        record += data[at - length : at]
        if kind in (1, 4):  # whole, or the last of several parts
            yield record
            record = b""


@pytest.fixture
def history(tmp_path):
    """Reads the rows of the one run, and its (metric, step metric) pairs, from the file of an offline run."""

    def records():
        from wandb.proto.wandb_internal_pb2 import Record

        (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
        return [Record.FromString(data) for data in leveldb_records(path.read_bytes())]

    def read():
        # finish() returns shortly before W&B's own process has written the file to its end.
        found = records()
        while "exit" not in [record.WhichOneof("record_type") for record in found]:
            time.sleep(0.05)
            found = records()
        rows = [
            {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            for record in found
            if record.WhichOneof("record_type") == "history"
        ]
        metrics = [record.metric for record in found if record.WhichOneof("record_type") == "metric"]
        return (
            [{key: row[key] for key in row if not key.startswith("_")} for row in rows],
            [(metric.name or metric.glob_name, metric.step_metric) for metric in metrics],
        )

    return read


def test_each_event_is_a_row_with_step_as_the_step_metric(wandb_hook, history):
    hook = wandb_hook(name="named")
    run = hook._run
    assert run.name == "named"
    hook.on_event("train_start", {"device": "cpu", "event": "overwritten"})
    hook.on_event("train_step", {"step": 5, "loss": torch.tensor(0.25, requires_grad=True), "nan": math.nan})
    hook.on_event("train_step", {"step": 3, "ok": True, "ooo": {"streams": 2}, "stages": ["a"], "none": None})
    hook.on_event("e", {"gpu": torch.zeros((), device="meta"), "nested": [torch.zeros((), device="meta")]})
    hook.close()
    assert hook._run is run, "it stays reachable"
    rows, definitions = history()
    assert math.isnan(rows[1].pop("nan"))
    assert rows == [
        {"step": 0, "device": "cpu", "event": "train_start"},
        {"step": 5, "loss": 0.25, "event": "train_step"},
        {"step": 3, "ok": True, "ooo/streams": 2, "stages": ["a"], "none": None, "event": "train_step"},
        # W&B itself adds the last step to events that have none.
        {
            "step": 3,
            "gpu": "tensor((), torch.float32)",
            "nested": ["tensor((), torch.float32)"],
            "event": "e",
        },
    ]
    assert definitions == [("step", ""), ("*", "step")]


def test_one_value_that_wandb_does_not_know_does_not_cost_the_row(wandb_hook, history):
    hook = wandb_hook()
    ring = [1]
    ring.append(ring)
    hook.on_event("e", {"x": 1, "odd": object, 7: "key", "big": 2**70, "surrogate": "a\udc80"})
    hook.on_event("e", {"x": 2, "ring": ring})
    hook.close()
    rows, _ = history()
    assert [row["x"] for row in rows] == [1, 2]
    assert rows[0]["odd"] == "<class 'object'>"
    assert rows[0]["7"] == "key"
    assert rows[1]["ring"] == [1, "..."]


def test_what_wandb_draws_is_passed_on_as_it_is(wandb_hook, history):
    import wandb

    hook = wandb_hook()
    hook.on_event("e", {"histogram": wandb.Histogram([1, 2, 2])})
    hook.close()
    rows, _ = history()
    assert rows[0]["histogram/_type"] == "histogram"


def test_location_of_an_offline_run_is_its_folder(wandb_hook, tmp_path):
    hook = wandb_hook()
    assert hook.location is not None
    assert hook.location.startswith(str(tmp_path))


def test_wandb_close_is_idempotent_and_final(wandb_hook, history):
    hook = wandb_hook()
    hook.on_event("e", {"x": 1})
    hook.close()
    hook.close()
    hook.on_event("e", {"x": 2})
    rows, _ = history()
    assert [row["x"] for row in rows] == [1]


def test_a_forked_child_leaves_the_run_alone(wandb_hook, history):
    hook = wandb_hook()
    child = os.fork()
    if child == 0:
        hook.on_event("child", {"x": 0})
        hook.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    hook.on_event("parent", {"x": 1})
    hook.close()
    rows, _ = history()
    assert [row["event"] for row in rows] == ["parent"]
