"""Secrets planted wherever a user puts them stand in nothing that the programs say, write or serve."""

import base64
import os
import subprocess
import sys
import traceback
import urllib.request

import pytest

import otel_training
from otel_training.settings import resolve
from trainer import load_config
from trainer.plugins import HOOKS_GROUP, build_plugin
from trainer.problems import ConfigError

SECRET = "hush-hush-4711"

# A whole run against a collector that refuses, told about at the most talkative level.
PROGRAM = """
import logging, os, sys, urllib.request
logging.basicConfig(level=logging.DEBUG)
import otel_training
from trainer import MetricLogger

secret, endpoint, folder = sys.argv[1:]
os.environ["MY_API_TOKEN"] = secret
os.environ["OTEL_EXPORTER_OTLP_HEADERS"] = f"authorization=Bearer {secret},x-key={secret}"
os.environ["OTEL_EXPORTER_OTLP_TIMEOUT"] = "300"
telemetry = otel_training.start(
    otlp_endpoint=endpoint.replace("SECRET", secret), export_interval_s=0.1, prometheus_port=0,
    shutdown_timeout_s=0.5,
    prometheus_discovery=folder + "/targets.json", prometheus_textfile=folder + "/run.prom",
    otlp_headers={"x-other": secret} if "argument" in endpoint else None,
)
print(telemetry, repr(telemetry), telemetry.hook, vars(telemetry._pipeline), telemetry._pipeline._settings)
files = {"file": folder + "/log.txt", "json_file": folder + "/log.jsonl"}
log = MetricLogger(level="DEBUG", **files, hooks=[telemetry.hook])
log.emit("train_start", {"start_step": 0})
for step in range(1, 11):
    log.emit("train_step", {"step": step, "loss": 1.0})
telemetry.flush(2.0)
for path in ("/", "/metrics", "/healthz", "/" + secret, "/metrics?" + secret):
    try:
        print(urllib.request.urlopen(telemetry.url.replace("/metrics", path)).read().decode())
    except urllib.error.HTTPError as error:
        print(error.read().decode())
log.emit("train_end", {"steps": 10})
log.close()
"""


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://ADDRESS",
        "http://me:SECRET@ADDRESS/argument",
        "ADDRESS",
        "https://me:SECRET@ADDRESS",
    ],
)
def test_a_whole_run_says_and_writes_no_secret(endpoint, tmp_path, otlp_sink):
    otlp_sink.stop()  # so that every export fails and is told
    endpoint = endpoint.replace("ADDRESS", otlp_sink.url.removeprefix("http://"))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, SECRET, endpoint, str(tmp_path)],
        capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "train_step" in (tmp_path / "log.txt").read_text()
    assert "training_steps_total" in done.stdout
    said = [done.stdout, done.stderr, *(path.read_text() for path in tmp_path.iterdir())]
    said += ["\n".join(path.name for path in tmp_path.iterdir())]
    for text in said:
        assert not shown_in(text)


def shown_in(text):
    """Return what of the secret a text shows, also as the header that user and password become."""
    basic = base64.b64encode(f"me:{SECRET}".encode()).decode()
    return [form for form in (SECRET, basic, base64.b64encode(SECRET.encode()).decode()[:12]) if form in text]


def test_points_and_spans_carry_no_secret_no_path_and_no_environment(tmp_path, otlp_sink, monkeypatch):
    monkeypatch.setenv("MY_API_TOKEN", SECRET)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"x-key={SECRET}")
    with otel_training.start(
        otlp_endpoint=otlp_sink.url.replace("//", f"//me:{SECRET}@"), prometheus_port=0,
        prometheus_textfile=tmp_path / "run.prom", prometheus_discovery=tmp_path / "targets.json",
    ) as telemetry:  # fmt: skip
        emit = telemetry.hook.on_event
        emit("train_start", {"start_step": 0, "device": "cpu", "precision": "fp32"})
        emit("train_step", {"step": 1, "loss": 1.0})
        emit("checkpoint", {"step": 1, "path": str(tmp_path / "step-1"), "duration_s": 0.1})
        emit("train_end", {"steps": 1, "outcome": "failed", "error": f"OSError: {tmp_path} {SECRET}"})
        landing = urllib.request.urlopen(telemetry.url.replace("metrics", "")).read().decode()
        page = urllib.request.urlopen(telemetry.url).read().decode()
    bodies = b"".join(body for path, _, body in otlp_sink.requests if path.endswith("metrics"))
    for text in (landing, page, bodies.decode("utf-8", "replace")):
        assert SECRET not in text
        assert str(tmp_path) not in text
        assert os.environ["PATH"] not in text
    assert "OSError" in page
    # What a trainer itself tells of a checkpoint and of an error is in its span, and nowhere else.
    for span in otlp_sink.spans():
        told = {**span.attributes, **span.resource}
        where = {name for name, value in told.items() if str(tmp_path) in str(value)}
        assert where <= {"training.checkpoint.path"}
        assert not [name for name, value in told.items() if SECRET in str(value)]


@pytest.mark.parametrize(
    "arguments",
    [
        {"otlp_headers": f"Authorization: Bearer {SECRET}"},
        {"otlp_headers": {"authorization": SECRET + "\n"}},
        {"otlp_headers": {SECRET + " x": "1"}},
        {"otlp_headers": [SECRET]},
        {"otlp_endpoint": f"http://me:{SECRET}@host:port"},
        {"otlp_endpoint": f"ftp://me:{SECRET}@host"},
        {"otlp_endpoint": f"http://host/?token={SECRET}"},
        {"otlp_endpoint": f"http://me:{SECRET}@h", "otlp_protocol": "grpc"},
        {"otlp_endpoint": f"http://me:{SECRET}@h", "otlp_protocol": "thrift"},
        {"otlp_endpoint": f"http://me:{SECRET}@h", "export_interval_s": -1},
        {"otlp_endpoint": "http://h", "otlp_headers": {"x": SECRET}, "prometheus_port": -1},
    ],
)
def test_errors_of_set_up_show_no_secret(arguments):
    with pytest.raises(ValueError, match="is not accepted") as refused:
        otel_training.start(prometheus=False, devices=(), **arguments)
    lines = traceback.format_exception(refused.value)
    # The line of this test itself apart, which a traceback quotes.
    assert not shown_in("".join(lines))
    assert not shown_in(repr(refused.value))


def test_no_secret_is_in_the_settings_as_text():
    settings = resolve(
        {"otlp_endpoint": f"http://me:{SECRET}@h/x", "otlp_headers": {"x-key": SECRET}},
        {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://h/?token={SECRET}"},
    )
    for text in (repr(settings), str(settings), f"{settings.metrics_otlp} {settings.traces_otlp.endpoint}"):
        assert not shown_in(text)


CONFIGS = [
    "logging: {hooks: [{otel: {otlp_headers: {authorization: SECRET}, prometheus_port: -1}}]}",
    "logging: {hooks: [{otel: {otlp_headers: 'Bearer SECRET'}}]}",
    "logging: {hooks: [{otel: {otlp_endpoint: 'http://me:SECRET@h:port'}}]}",
    "logging: {hooks: [{otel: {otlp_endpoint: 'http://me:SECRET@h'}, more: 1}]}",
    "logging: {hooks: {otel: {otlp_headers: {x: SECRET}}}}",
    "logging: {hooks: [{wandb: {api_key: SECRET}}, 7]}",
    "logging: {hooks: [{otel: 'http://me:SECRET@h'}]}",
    "logging: {level: LOUD, hooks: [{otel: {otlp_headers: {x: SECRET}}}]}",
    "loging: {hooks: [{otel: {otlp_headers: {x: SECRET}}}]}",
    "api_key: SECRET",
    "data: {storage_options: {secret: SECRET}, batch_size: zero}",
    "diloco: {storage_options: {key: SECRET, secret: SECRET}, url: 5}",
    "diloco: {store: 's3://me:SECRET@bucket', inner_steps: -1}",
    "diloco: {store: {token: SECRET}}",
    "logging: {hooks: [{otel: {otlp_headers: {x: SECRET}",
    "logging: 'http://me:SECRET@h'",
    "logging: {level: *SECRET}",
    "logging: {level: !SECRET x}",
    "logging: {hooks: [otel]}\nlogging.hooks.otel.token: SECRET\n\tx: 1",
]


@pytest.mark.parametrize("text", CONFIGS)
def test_errors_of_a_configuration_show_no_secret(tmp_path, text):
    file = tmp_path / "run.yaml"
    file.write_text(text.replace("SECRET", SECRET))
    with pytest.raises(ConfigError) as refused:
        build_hooks(load_config(file))
    said = "".join(traceback.format_exception(refused.value))
    assert not shown_in(said)
    assert len(str(refused.value)) > 20


@pytest.mark.parametrize(
    "override",
    [
        "logging.hooks.otel.otlp_headers.authorization:SECRET",
        "logging.hooks.otel.otlp_headers={SECRET",
        "logging.hooks.otel.otlp_endpoint=http://me:SECRET@h:port",
        "logging.level=http://me:SECRET@h",
        "data.token.more=SECRET",
    ],
)
def test_errors_of_single_values_show_no_secret(override):
    with pytest.raises(ConfigError) as refused:
        build_hooks(load_config(None, [override.replace("SECRET", SECRET)]))
    assert not shown_in("".join(traceback.format_exception(refused.value)))


def build_hooks(config):
    for spec in config.logging.hooks:
        build_plugin(spec, key="logging.hooks", group=HOOKS_GROUP, context={"run_id": "r"}).close()
