"""The Slurm scripts, run with stand-ins for Slurm's commands that note how they were called."""

import json
import os
import re
import signal
import subprocess
import time

import pytest

from otel_training import identity, settings

HOSTS = 'printf "node-1\\nnode-2\\n"'


@pytest.fixture
def slurm(tmp_path):
    """Call it with a script of collector-config/slurm; ``commands`` are bodies of stand-ins in bash."""
    tools = tmp_path / "tools"
    tools.mkdir()

    def environment(commands, **variables):
        for name, body in commands.items():
            (tools / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
            (tools / name).chmod(0o755)
        job = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "node-[1-2]", "SLURM_JOB_NUM_NODES": "2"}
        return {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "USER": "somebody",
            "OUT": str(tmp_path),
            **job,
            **variables,
        }

    return environment


class TestScrapeTargets:
    def run(self, folder, environment, *arguments):
        script = folder / "slurm" / "scrape_targets.sh"
        return subprocess.run(
            [script, *map(str, arguments)], env=environment, capture_output=True, text=True, check=False
        )

    def test_prometheus_is_told_of_every_rank_of_every_node(self, folder, slurm, tmp_path):
        done = self.run(folder, slurm({"scontrol": HOSTS}), "add", tmp_path, 2)
        assert done.returncode == 0, done.stderr
        [group] = json.loads((tmp_path / "4711.json").read_text())
        assert group == {"targets": ["node-1:9464", "node-1:9465", "node-2:9464", "node-2:9465"]}
        assert not list(tmp_path.glob("*.new"))

    def test_the_page_may_have_another_port(self, folder, slurm, tmp_path):
        environment = slurm({"scontrol": HOSTS}, OTEL_EXPORTER_PROMETHEUS_PORT="9600")
        self.run(folder, environment, "add", tmp_path, 1)
        [group] = json.loads((tmp_path / "4711.json").read_text())
        assert group["targets"] == ["node-1:9600", "node-2:9600"]

    def test_the_end_of_the_job_takes_them_away_however_often(self, folder, slurm, tmp_path):
        environment = slurm({"scontrol": HOSTS})
        self.run(folder, environment, "add", tmp_path, 1)
        assert [self.run(folder, environment, "remove", tmp_path).returncode for _ in range(2)] == [0, 0]
        assert not list(tmp_path.glob("*.json"))

    @pytest.mark.parametrize(
        "arguments", [(), ("add",), ("add", "folder"), ("add", "folder", "eight"), ("x", "y")]
    )
    def test_a_call_that_is_not_understood_says_how_to(self, folder, slurm, tmp_path, arguments):
        done = self.run(folder, slurm({"scontrol": HOSTS}), *arguments)
        assert done.returncode == 2
        assert "scrape_targets.sh add FOLDER RANKS_PER_NODE" in done.stderr


class TestJob:
    """The training is ``env``; the stand-in for srun runs it as the second task of the second node."""

    SRUN = """
if [[ $* == *agent.sh* ]]; then
  echo "$*" >"$OUT/agent"
  exec sleep 50
fi
SLURM_PROCID=9 SLURM_LOCALID=1 SLURM_NTASKS=16 exec "$@"
"""

    def run(self, folder, environment, *command):
        script = folder / "slurm" / "job.sh"
        environment = {**environment, "COLLECTOR_CONFIG": str(folder)}
        return subprocess.run(
            [script, *command], env=environment, capture_output=True, text=True, check=False
        )

    def test_each_rank_has_the_runs_id_and_one_road_for_metrics(self, folder, slurm):
        done = self.run(folder, slurm({"scontrol": HOSTS, "srun": self.SRUN}), "env")
        assert done.returncode == 0, done.stderr
        seen = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
        found = identity.detect(environ=seen)
        assert (found.run_id, found.rank, found.local_rank, found.world_size) == ("slurm-4711", 9, 1, 16)
        resolved = settings.resolve({}, seen)
        assert not resolved.prometheus
        assert resolved.metrics_exporters == resolved.traces_exporters == ("otlp",)
        assert str(resolved.metrics_otlp.endpoint) == "http://127.0.0.1:4318/v1/metrics"
        assert seen["MASTER_ADDR"] == "node-1"

    def test_a_run_that_goes_on_keeps_its_id(self, folder, slurm):
        environment = slurm({"scontrol": HOSTS, "srun": self.SRUN}, OTEL_TRAINING_RUN_ID="gpt-7")
        assert "OTEL_TRAINING_RUN_ID=gpt-7\n" in self.run(folder, environment, "env").stdout

    def test_agents_live_as_long_as_the_training_and_its_status_is_the_jobs(self, folder, slurm, tmp_path):
        environment = slurm({"scontrol": HOSTS, "srun": self.SRUN}, GATEWAY_ENDPOINT="http://gateway:4318")
        done = self.run(
            folder, environment, "bash", "-c", "until [[ -s $OUT/agent ]]; do sleep 0.05; done; exit 3"
        )
        assert done.returncode == 3
        agent = (tmp_path / "agent").read_text()
        assert "--nodes=2 --ntasks-per-node=1" in agent
        assert f"{folder}/slurm/agent.sh {folder}/agent.yaml" in agent


class TestAgent:
    COLLECTOR = """
echo "$* $AGENT_QUEUE_DIR" >"$OUT/started"
trap 'echo ended >"$OUT/ended"; exit 0' TERM
while :; do sleep 0.05; done
"""
    # The collector's own metrics: bytes in the queue of each signal, until the outage is over.
    CURL = """
[[ $* == *http://127.0.0.1:8888/metrics ]] || exit 2
echo asked >>"$OUT/asked"
left=0
[[ -e $OUT/outage ]] && left=100
printf 'otelcol_exporter_queue_size{data_type="%s"} %s\\n' metrics $left traces 0
"""

    @pytest.fixture
    def agent(self, folder, slurm, tmp_path):
        started = []

        def start(**variables):
            variables = {"GATEWAY_ENDPOINT": "http://gateway:4318", "TMPDIR": "/scratch", **variables}
            environment = slurm({"otelcol-contrib": self.COLLECTOR, "curl": self.CURL}, **variables)
            command = [folder / "slurm" / "agent.sh", folder / "agent.yaml"]
            started.append(subprocess.Popen(command, env=environment))
            wait_for(tmp_path / "started")
            return started[0]

        yield start
        for process in started:
            process.kill()
            process.wait()

    def test_it_ends_when_everything_is_delivered(self, agent, folder, tmp_path):
        (tmp_path / "outage").touch()
        process = agent()
        assert (tmp_path / "started").read_text().split() == [
            f"--config={folder}/agent.yaml",
            "/scratch/otel-training-agent-somebody",
        ]
        process.send_signal(signal.SIGTERM)
        wait_for(tmp_path / "asked")
        assert not (tmp_path / "ended").exists()
        (tmp_path / "outage").unlink()
        assert process.wait(timeout=20.0) == 0
        assert (tmp_path / "ended").exists()

    def test_it_does_not_wait_for_ever(self, agent, tmp_path):
        (tmp_path / "outage").touch()
        process = agent(DRAIN_S="1")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20.0) == 0
        assert (tmp_path / "ended").exists()

    def test_it_asks_for_the_gateway(self, folder, slurm):
        command = [folder / "slurm" / "agent.sh", folder / "agent.yaml"]
        done = subprocess.run(command, env=slurm({}), capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert re.search("GATEWAY_ENDPOINT: the base URL of the gateway", done.stderr)


def wait_for(path, within_s=20.0):
    deadline = time.monotonic() + within_s
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert path.exists()
