"""gRPC is imported without its fork handlers and lines of its own, and only when it is used."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
{first}
from otel_training.grpc_import import import_grpc
import_grpc()
print("grpc" in sys.modules, os.environ.get("GRPC_ENABLE_FORK_SUPPORT"), os.environ.get("GRPC_VERBOSITY"))
"""

# A fork every few milliseconds while the telemetry exports: with gRPC's fork handlers children abort.
FORKS = """
import os, sys, time, warnings
import otel_training
warnings.simplefilter("ignore")
telemetry = otel_training.start(
    otlp_endpoint=sys.argv[1], otlp_protocol="grpc", prometheus=False, devices=(), export_interval_s=0.1
)
telemetry.hook.on_event("train_start", {"start_step": 0})
for step in range(1, 101):
    telemetry.hook.on_event("train_step", {"step": step})
    telemetry.hook.on_event("train_start", {"start_step": step})  # which exports at once
    time.sleep(step % 7 / 1000)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert status == 0, status
telemetry.close()
"""


@pytest.mark.parametrize(
    ("first", "asked", "left"),
    [
        ("", {}, "None None"),
        ("import grpc", {}, "None None"),
        ("", {"GRPC_ENABLE_FORK_SUPPORT": "1", "GRPC_VERBOSITY": "ERROR"}, "1 ERROR"),
    ],
)
def test_the_environment_is_as_before(first, asked, left):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(first=first)],
        capture_output=True, text=True, timeout=50, env={**os.environ, **asked},
    )  # fmt: skip
    assert done.stdout == f"True {left}\n", done.stderr


def test_children_forked_in_the_middle_of_an_export_live(otlp_grpc_sink):
    done = subprocess.run(
        [sys.executable, "-c", FORKS, otlp_grpc_sink.address], capture_output=True, text=True, timeout=55
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert otlp_grpc_sink.points("training.steps")[-1].value == 100
