"""Telemetry beside other processes: loader workers of every kind, and several ranks on one host."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from otel_training import catalog
from otel_training.catalog import devices

# Workers live while the telemetry exports; with "spawn" and "forkserver" they import this file.
LOADER = """
import os, sys, threading, time, urllib.request, warnings
from torch.utils.data import DataLoader, Dataset
import otel_training

warnings.filterwarnings("ignore", message=".*multi-threaded.*fork")
warnings.filterwarnings("ignore", message=".*pin_memory.*")
telemetry = None  # a worker made by fork finds the parent's here

class Items(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, item):
        time.sleep(0.05)
        if telemetry is not None:
            telemetry.hook.on_event("train_step", {"step": 1_000_000})
            telemetry.flush(0.1)
        ours = [thread.name for thread in threading.enumerate() if thread.name.startswith("otel")]
        return len(ours), os.getpid()

def main(method, endpoint):
    global telemetry
    telemetry = otel_training.start(
        otlp_endpoint=endpoint, export_interval_s=0.1, prometheus_port=0,
        devices=("cpu",), device_interval_s=0.1,
    )
    port = int(telemetry.url.split(":")[2].split("/")[0])
    emit = telemetry.hook.on_event
    emit("train_start", {"start_step": 0})
    step = 0
    loaders = [
        DataLoader(
            Items(), batch_size=None, multiprocessing_context=method,
            num_workers=1 + persistent, persistent_workers=persistent,
        )
        for persistent in (False, True)
    ]
    for loader in loaders:
        for _ in range(1 + loader.persistent_workers):
            for threads, pid in loader:
                assert threads == 0 and pid != os.getpid(), (threads, pid)
                step += 1
                emit("train_step", {"step": step})
    assert step == 12
    urllib.request.urlopen(telemetry.url, timeout=20).read()
    telemetry.close()
    # The persistent workers are there still, and hold no copy of the port.
    again = otel_training.start(prometheus_port=port, devices=())
    assert f":{port}/" in again.url, again.url
    again.close()
    print(os.getpid(), flush=True)

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.mark.timeout(180)  # each worker imports torch, on a machine that may be busy
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_loader_workers_of_every_kind_are_silent_and_hold_nothing(method, tmp_path, otlp_sink):
    (tmp_path / "program.py").write_text(LOADER)
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py", method, otlp_sink.url],
        capture_output=True, text=True, timeout=170, env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    points = otlp_sink.points(catalog.STEPS.name)
    assert {point.resource["process.pid"] for point in points} == {int(done.stdout)}
    values = [point.value for point in points]
    assert values == sorted(values)
    assert values[-1] == 12


RANK = """
import sys
import otel_training
telemetry = otel_training.start(
    prometheus_port=int(sys.argv[1]), prometheus_discovery=sys.argv[2],
    device_interval_s=0.1, devices=("cpu",),
)
emit = telemetry.hook.on_event
emit("train_start", {"start_step": 0, "world_size": 4})
for step in range(1, 11):
    emit("train_step", {"step": step})
print(telemetry.url, flush=True)
sys.stdin.read()
telemetry.close()
"""


class Rank:
    """A training process of a run of four on this host."""

    def __init__(self, rank, port, file):
        environ = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "4",
            "TORCHELASTIC_RUN_ID": "job",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK, str(port), str(file)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **environ},
        )  # fmt: skip

    def wait_ready(self):
        self.url = self.process.stdout.readline().strip()
        assert self.url, self.process.stderr.read()
        self.port = int(self.url.split(":")[2].split("/")[0])
        return self

    def names(self):
        """Return the names of the families on the page and the ranks on them."""
        with urllib.request.urlopen(self.url, timeout=20) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        ranks = {sample.labels["training_rank"] for family in families for sample in family.samples}
        return {sample.name for family in families for sample in family.samples}, ranks

    def end(self):
        _, errors = self.process.communicate("", timeout=30)
        return self.process.returncode, errors


def free_ports():
    """Return a port that was free a moment ago, and so were the three after it."""
    import socket
    from contextlib import ExitStack

    for port in range(20_000, 30_000, 7):
        with ExitStack() as stack:
            try:
                for number in range(port, port + 4):
                    stack.enter_context(socket.create_server(("127.0.0.1", number)))
            except OSError:
                continue
            return port
    raise AssertionError("no four free ports in a row")


@pytest.fixture
def start_rank(tmp_path):
    ranks = []
    port = free_ports()

    def start_rank(rank):
        ranks.append(Rank(rank, port, tmp_path / "targets.json"))
        return ranks[-1]

    yield start_rank
    for rank in ranks:
        rank.process.kill()
        rank.process.communicate()


def targets(tmp_path):
    groups = json.loads((tmp_path / "targets.json").read_text())
    return sorted(int(target.rsplit(":")[1]) for group in groups for target in group["targets"])


def test_ranks_of_a_host_have_a_port_each_one_discovery_file_and_one_voice_for_the_host(start_rank, tmp_path):
    ranks = [start_rank(rank) for rank in range(4)]
    ports = [rank.wait_ready().port for rank in ranks]
    assert ports == list(range(ports[0], ports[0] + 4))
    assert targets(tmp_path) == ports

    host, process = devices.SYSTEM_MEMORY_LIMIT, devices.PROCESS_MEMORY_USAGE
    for number, rank in enumerate(ranks):
        names, seen = rank.names()
        assert seen == {str(number)}
        assert (catalog.prometheus_name(host) in names) == (number == 0)
        assert catalog.prometheus_name(process) in names
        assert catalog.prometheus_name(catalog.STEPS) in names

    ranks[2].process.kill()
    ranks[2].process.wait()
    assert targets(tmp_path) == ports  # nobody has looked yet: Prometheus sees that the target is down
    assert ranks[1].end() == (0, "")
    assert targets(tmp_path) == [ports[0], ports[3]]
    restarted = start_rank(2).wait_ready()
    assert restarted.port == ports[2]
    assert targets(tmp_path) == [ports[0], ports[2], ports[3]]
    for rank in (ranks[0], ranks[3], restarted):
        assert rank.end() == (0, "")
    assert list(tmp_path.iterdir()) == []
