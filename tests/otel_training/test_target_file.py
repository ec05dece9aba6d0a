"""Discovery files: one shared by all ranks of a machine, or one for each, and what killed ranks leave."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

import otel_training
from otel_training import target_file
from otel_training.identity import Identity
from otel_training.kinds import File
from otel_training.target_file import TargetFile

SOMEBODY = Identity(run_id="r1", run_name="first", world_size=4, host="node-1")


def targets_in(path):
    return [target for group in json.loads(path.read_text()) for target in group["targets"]]


def make(path, rank=0, **identity):
    about = replace(SOMEBODY, rank=rank, **identity)
    return TargetFile(File(str(path), "prometheus_discovery"), about)


# Adds a target as a rank of its own process, and then does what the test says.
RANK = """
import os, signal, sys, time
from otel_training.identity import Identity
from otel_training.kinds import File
from otel_training.target_file import TargetFile
path, rank, then = sys.argv[1], int(sys.argv[2]), sys.argv[3]
identity = Identity(run_id="r1", run_name="first", rank=rank, world_size=8, host="node-1")
targets = TargetFile(File(path, "prometheus_discovery"), identity)
targets.add(f"http://127.0.0.1:{9464 + rank}")
if then == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
print("added", flush=True)
sys.stdin.read()
targets.remove()
"""


@pytest.fixture
def rank_process():
    processes = []

    def start(path, rank, then="wait"):
        process = subprocess.Popen(
            [sys.executable, "-c", RANK, str(path), str(rank), then],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_the_file_is_there_as_long_as_the_page(tmp_path):
    file = tmp_path / "targets.json"
    telemetry = otel_training.start(prometheus_port=0, devices=(), prometheus_discovery=str(file))
    assert targets_in(file) == [telemetry.url.split("/")[2]]
    telemetry.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_has_a_file_for_each_rank(tmp_path):
    folder = tmp_path / "targets"
    first, second = make(folder, 0), make(folder, 1)
    first.add("http://127.0.0.1:1")
    second.add("http://127.0.0.1:2")
    assert sorted(targets_in(path)[0] for path in folder.iterdir()) == ["127.0.0.1:1", "127.0.0.1:2"]
    first.remove()
    [left] = folder.iterdir()
    assert targets_in(left) == ["127.0.0.1:2"]
    second.remove()
    assert list(folder.iterdir()) == []


def test_ranks_share_a_file(tmp_path):
    file = tmp_path / "targets.json"
    ranks = [make(file, rank) for rank in range(4)]
    for number, rank in enumerate(ranks):
        rank.add(f"http://127.0.0.1:{number}")
    ranks[1].remove()
    assert targets_in(file) == ["127.0.0.1:0", "127.0.0.1:2", "127.0.0.1:3"]


def test_a_rank_that_tells_twice_has_one_target(tmp_path):
    file = tmp_path / "targets.json"
    make(file).add("http://127.0.0.1:1")
    make(file).add("http://127.0.0.1:2")
    assert targets_in(file) == ["127.0.0.1:2"]


def test_an_attempt_that_lets_go_late_leaves_the_next_one_s_target(tmp_path, rank_process):
    file = tmp_path / "targets.json"
    former = make(file, 1)
    former.add("http://127.0.0.1:1")
    assert rank_process(file, 1).stdout.readline() == "added\n"
    former.remove()
    assert targets_in(file) == ["127.0.0.1:9465"]


def test_many_writers_at_once_lose_no_target_and_readers_see_whole_files(tmp_path, rank_process):
    file = tmp_path / "targets.json"
    mine = make(file, 7)
    mine.add("http://127.0.0.1:7")
    processes = [rank_process(file, rank) for rank in range(3)]

    def churn(number):
        for _ in range(20):
            other = make(file, 4 + number % 2, run_id=f"run-{number}")
            other.add(f"http://127.0.0.1:{number}")
            assert "127.0.0.1:7" in targets_in(file)
            other.remove()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(churn, range(100, 104)))
    for process in processes:
        assert process.stdout.readline() == "added\n"
    assert sorted(targets_in(file)) == ["127.0.0.1:7", "127.0.0.1:9464", "127.0.0.1:9465", "127.0.0.1:9466"]
    for process in processes:
        process.communicate("")
    mine.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["targets.json", "targets"])
def test_what_a_killed_rank_left_is_taken_away_by_the_next(tmp_path, rank_process, path):
    path = tmp_path / path
    assert rank_process(path, 3, "kill").wait() == -9
    files = [path] if path.suffix else list(path.iterdir())
    assert targets_in(files[0]) == ["127.0.0.1:9467"]
    next_one = make(path, 0)
    next_one.add("http://127.0.0.1:1")
    files = [path] if path.suffix else list(path.iterdir())
    assert [targets_in(file) for file in files] == [["127.0.0.1:1"]]


def test_what_is_not_of_this_machine_or_not_ours_stays(tmp_path):
    file = tmp_path / "targets.json"
    by_hand = {"targets": ["elsewhere:1"], "labels": {"team": "a"}}
    file.write_text(json.dumps([by_hand, {"targets": ["elsewhere:2"]}]))
    make(file, 1, host="node-2").add("http://node-2:9464")
    rank = make(file, 0)
    rank.add("http://node-1:9464")
    rank.remove()
    assert targets_in(file) == ["elsewhere:1", "elsewhere:2", "node-2:9464"]
    assert json.loads(file.read_text())[0] == by_hand


@pytest.mark.parametrize("content", ["{}", "[1]", "no json", "\udcff"])
def test_a_file_with_something_else_in_it_is_refused_and_kept(tmp_path, content):
    file = tmp_path / "targets.json"
    file.write_text(content, errors="surrogateescape")
    before = file.read_bytes()
    with pytest.raises(ValueError, match=r"prometheus_discovery=.*something else"):
        make(file)
    assert file.read_bytes() == before


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"prometheus_discovery=.*cannot be written"):
        otel_training.start(prometheus_port=0, devices=(), prometheus_discovery=tmp_path / "file" / "t.json")


def test_a_folder_that_goes_away_costs_nothing_but_a_line(tmp_path, caplog):
    folder = tmp_path / "targets"
    telemetry = otel_training.start(prometheus_port=0, devices=(), prometheus_discovery=folder)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    telemetry.close()
    [record] = caplog.records
    assert record.getMessage().startswith("prometheus_discovery failed, training goes on")


def test_a_lock_that_is_never_let_go_is_not_waited_for(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(target_file, "LOCK_TIMEOUT_S", 0.05)
    file = tmp_path / "targets.json"
    with target_file._locked(tmp_path):
        telemetry = otel_training.start(prometheus_port=0, devices=(), prometheus_discovery=file)
    assert "another process holds the lock" in caplog.text
    assert telemetry.url is not None
    telemetry.close()


def test_without_locks_a_shared_file_is_refused_in_a_line_and_files_of_ranks_work(tmp_path, monkeypatch):
    monkeypatch.setattr(target_file, "_lock", lambda descriptor: False)
    with pytest.raises(OSError, match="name a folder"):
        make(tmp_path / "targets.json").add("http://127.0.0.1:1")
    rank = make(tmp_path / "targets")
    rank.add("http://127.0.0.1:1")
    [file] = (tmp_path / "targets").iterdir()
    assert targets_in(file) == ["127.0.0.1:1"]
    rank.remove()


def test_without_a_page_it_is_told_that_there_is_nothing_to_tell(tmp_path, caplog):
    otel_training.start(prometheus=False, devices=(), prometheus_discovery=tmp_path).close()
    assert "no scrape page" in caplog.text
    assert list(tmp_path.iterdir()) == []
