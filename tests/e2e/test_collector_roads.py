"""The roads of collector-config with real servers: agent to gateway over OTLP, and remote write."""

import contextlib
import importlib.util
import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import yaml

import otel_training
from otel_training import catalog
from otel_training.catalog import naming, spans

FOLDER = Path(__file__).resolve().parents[2] / "collector-config"
JOB = "otel-training"


def run_of_50_steps(telemetry):
    emit = telemetry.hook.on_event
    emit("train_start", {"start_step": 0, "target_step": 50, "tokens": 0})
    for step in range(1, 51):
        emit("train_step", {"step": step, "loss": 2.0 / step, "tokens": step * 64})
    emit("checkpoint", {"step": 50, "path": "c", "duration_s": 0.1})


def gateway(variant):
    return yaml.safe_load((FOLDER / f"gateway-{variant}.yaml").read_text())


@pytest.fixture
def agent_and_gateway(rotel, tmp_path):
    """Two receivers in a row: what comes out of the first goes into the second, then to the sink."""
    program = Path(importlib.util.find_spec("rotel").origin).with_name("rotel-agent")
    agent = type(rotel)(str(program), rotel.http_url, tmp_path / "agent.log")
    agent.start()
    yield agent, rotel
    agent.kill()


class Server:
    """A Prometheus of any configuration and mode, on a free port."""

    def __init__(self, program, folder, config, *flags):
        folder.mkdir()
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.url = f"http://{address}"
        storage = "agent" if "--enable-feature=agent" in flags else "tsdb"
        command = [
            program, f"--config.file={folder / 'prometheus.yaml'}", f"--web.listen-address={address}",
            f"--storage.{storage}.path={folder / 'data'}", *flags,
        ]  # fmt: skip
        self._log = folder / "prometheus.log"
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(command, stderr=output)

    def wait_for(self, expression, within_s=40.0):
        """Return the labels of the one series that the expression has, as soon as there is one."""
        arguments = urllib.parse.urlencode({"query": expression})
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(urllib.error.URLError):
                with urllib.request.urlopen(f"{self.url}/api/v1/query?{arguments}", timeout=5.0) as answer:
                    result = json.load(answer)["data"]["result"]
                if result:
                    [series] = result
                    return series["metric"]
            time.sleep(0.2)
        return pytest.fail(f"no {expression}:\n{self._log.read_text()}")

    def close(self):
        self._process.terminate()
        try:
            self._process.wait(timeout=20.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def prometheus_server(need, tmp_path):
    program = need("prometheus")
    servers = []

    def start(config, *flags):
        servers.append(Server(program, tmp_path / f"server-{len(servers)}", config, *flags))
        return servers[-1]

    yield start
    for server in reversed(
        servers
    ):  # who sends before who receives: else it waits for the other to come back
        server.close()


class TestAgentToGateway:
    """Rotel, another implementation of OTLP, stands in for both, as far as it goes: OTLP in and out."""

    def test_identity_arrives_on_the_resource_where_the_gateway_looks_for_it(
        self, agent_and_gateway, otlp_sink, monkeypatch
    ):
        agent, _ = agent_and_gateway
        environment = {  # as slurm/job.sh has it
            "OTEL_METRICS_EXPORTER": "otlp", "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": agent.http_url, "OTEL_TRAINING_RUN_ID": "slurm-4711",
            "RANK": "3", "WORLD_SIZE": "4",
        }  # fmt: skip
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        telemetry = otel_training.start(run_name="first", devices=())
        assert telemetry.url is None
        run_of_50_steps(telemetry)
        telemetry.close()
        otlp_sink.wait_for(lambda sink: sink.spans(spans.RUN_SPAN.name) and sink.points(catalog.STEPS.name))
        promoted = gateway("prometheus")["exporters"]["prometheus"]["resource_constant_labels"]["included"]
        wanted = dict(zip(promoted, ("slurm-4711", "first", 3), strict=True))
        resources = [arrived.resource for arrived in (*otlp_sink.points(), *otlp_sink.spans())]
        assert [resource for resource in resources if not resource.items() >= wanted.items()] == []

    @pytest.mark.parametrize("which", [0, 1], ids=["agent", "gateway"])
    def test_either_may_be_away_for_a_while(self, agent_and_gateway, otlp_sink, which):
        telemetry = otel_training.start(
            otlp_endpoint=agent_and_gateway[0].http_url, prometheus=False, run_id="r1", devices=()
        )
        run_of_50_steps(telemetry)
        agent_and_gateway[which].kill()
        telemetry.flush(1.0)
        time.sleep(1.0)
        assert not otlp_sink.spans(spans.CHECKPOINT_SAVE_SPAN.name)
        agent_and_gateway[which].start()
        telemetry.close()
        # The checkpoint's span was sent once, into the outage.
        sent = {spans.CHECKPOINT_SAVE_SPAN.name, spans.RUN_SPAN.name}
        otlp_sink.wait_for(lambda sink: sent <= {span.name for span in sink.spans()}, within_s=40.0)
        otlp_sink.wait_for(lambda sink: 50 in {point.value for point in sink.points(catalog.STEPS.name)})


class TestRemoteWrite:
    @pytest.fixture
    def store(self, prometheus_server):
        """A Prometheus that takes what is written to it and scrapes nothing."""
        return prometheus_server({}, "--web.enable-remote-write-receiver")

    def test_a_page_gets_into_a_store_that_does_not_reach_it(self, store, prometheus_server):
        telemetry = otel_training.start(prometheus_port=0, run_id="r1", run_name="first", devices=())
        run_of_50_steps(telemetry)
        page = urllib.parse.urlsplit(telemetry.url).netloc
        config = yaml.safe_load((FOLDER / "prometheus" / "remote-write.yaml").read_text())
        config["global"].update(scrape_interval="1s", scrape_timeout="1s")
        config["scrape_configs"][0]["static_configs"] = [{"targets": [page]}]
        [out] = config["remote_write"]
        out["url"] = store.url + urllib.parse.urlsplit(out["url"]).path
        prometheus_server(config, "--enable-feature=agent")
        steps = naming.prometheus_name(catalog.STEPS)
        series = store.wait_for(f"{steps} == 50")
        telemetry.close()
        identity = {"training_run_id": "r1", "training_run_name": "first", "training_rank": "0"}
        labels = {"job": JOB, **identity, **config["global"]["external_labels"]}
        assert series.items() >= labels.items()


class TestFileDiscovery:
    def test_a_job_that_writes_its_file_is_scraped_and_then_no_more(self, prometheus_server, tmp_path):
        telemetry = otel_training.start(prometheus_port=0, run_id="r2", devices=())
        run_of_50_steps(telemetry)
        page = urllib.parse.urlsplit(telemetry.url).netloc
        config = yaml.safe_load((FOLDER / "prometheus" / "scrape.yaml").read_text())
        [_, files] = config["scrape_configs"]
        files["file_sd_configs"] = [
            {"files": [str(tmp_path / "targets" / "*.json")], "refresh_interval": "1s"}
        ]
        (tmp_path / "targets").mkdir()
        config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [files]}
        server = prometheus_server(config)
        file = tmp_path / "targets" / "4711.json"
        file.with_suffix(".new").write_text(json.dumps([{"targets": [page]}]))
        file.with_suffix(".new").rename(file)
        series = server.wait_for(f'{naming.prometheus_name(catalog.STEPS)}{{training_run_id="r2"}} == 50')
        assert series["job"] == JOB
        file.unlink()
        server.wait_for('absent(up{job="otel-training"})')
        telemetry.close()
