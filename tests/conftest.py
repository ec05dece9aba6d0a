"""What holds for every test: the surroundings of the machine do not leak in; and a receiver of OTLP."""

from __future__ import annotations

import contextlib
import gzip
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from otel_training.clock import Clock, Moment
from otel_training.testing import TelemetryCapture

# These need an environment of their own: make test-xla.
collect_ignore = ["xla"]

# Launchers and OpenTelemetry are configured by the environment; a test that wants a variable sets it itself.
_LEAKING_PREFIXES = ("OTEL_", "SLURM_", "TORCHELASTIC_", "TRAINER_", "WANDB_")
_LEAKING_NAMES = (
    "GROUP_RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "RANK",
    "TRACEPARENT",
    "TRACESTATE",
    "WORLD_SIZE",
)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith(_LEAKING_PREFIXES) or name in _LEAKING_NAMES:
            monkeypatch.delenv(name)


class FakeClock(Clock):
    """Both clocks stand still until a test moves them."""

    def __init__(self):
        self.monotonic_s = 1000.0
        self.unix_s = 1_800_000_000.0

    def now(self):
        return Moment(self.monotonic_s, self.unix_s)

    def advance(self, seconds):
        """Let time pass and return the new moment."""
        self.monotonic_s += seconds
        self.unix_s += seconds
        return self.now()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def capture(clock):
    """A hook on in-memory providers under a clock that the test moves."""
    capture = TelemetryCapture(clock=clock, run_id="run-1")
    yield capture
    capture.close()


class OtlpSink:
    """A receiver of OTLP over HTTP that keeps what it gets; it can be stopped and started again.

    Args:
        port: Where it listens on loopback; 0 is any free port.
    """

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self.silent = False
        """Whether requests get no answer as long as the sink runs."""
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        """Path, headers by lower-case name and body of each request."""
        self._server: ThreadingHTTPServer | None = None
        self._stopped = threading.Event()
        self._connections: list[socket.socket] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        sink = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                sink._connections.append(self.connection)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                headers = {name.lower(): value for name, value in self.headers.items()}
                sink.requests.append((self.path, headers, body))
                if sink.silent:
                    sink._stopped.wait()
                    self.close_connection = True
                    return
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._stopped.clear()
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        for connection in self._connections:  # clients keep them alive, and with them our threads
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._connections.clear()

    @property
    def paths(self) -> set[str]:
        return {path for path, _, _ in self.requests}

    def spans(self, name: str | None = None) -> list[OtlpSpan]:
        """Return the spans received, in the order of their arrival."""
        found = []
        for path, _, body in list(self.requests):
            if path.endswith("/v1/traces"):
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    about = otlp_attributes(resource.resource.attributes)
                    found += [OtlpSpan(about, span) for scope in resource.scope_spans for span in scope.spans]
        return [span for span in found if name in (None, span.name)]

    def points(self, name: str | None = None) -> list[OtlpPoint]:
        """Return the points received, in the order of their arrival."""
        found = []
        for path, _, body in list(self.requests):
            if path.endswith("/v1/metrics"):
                for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    about = otlp_attributes(resource.resource.attributes)
                    for scope in resource.scope_metrics:
                        for metric in scope.metrics:
                            data = getattr(metric, metric.WhichOneof("data"))
                            found += [OtlpPoint(about, metric, data, point) for point in data.data_points]
        return [point for point in found if name in (None, point.name)]

    def wait_for(self, condition: Callable[[OtlpSink], object], within_s: float = 20.0) -> object:
        """Wait until ``condition`` of this sink is true and return what it returned."""
        deadline_s = time.monotonic() + within_s
        while not (found := condition(self)):
            assert time.monotonic() < deadline_s, f"not received; there is {sorted(self.paths)}"
            time.sleep(0.02)
        return found


class OtlpSpan:
    """A span as it was received."""

    def __init__(self, resource: dict[str, object], span: object) -> None:
        self.resource = resource
        self.raw = span
        self.name = span.name
        self.trace_id, self.span_id, self.parent_id = span.trace_id, span.span_id, span.parent_span_id
        self.links = [(link.trace_id, link.span_id) for link in span.links]
        self.attributes = otlp_attributes(span.attributes)
        self.is_error = span.status.code == 2
        self.events = [(event.name, otlp_attributes(event.attributes)) for event in span.events]


class OtlpPoint:
    """A point of a metric as it was received."""

    def __init__(self, resource: dict[str, object], metric: object, data: object, point: object) -> None:
        self.resource = resource
        self.raw = point
        self.name, self.unit = metric.name, metric.unit
        self.kind = metric.WhichOneof("data")
        self.temporality = getattr(data, "aggregation_temporality", 0)
        self.monotonic = getattr(data, "is_monotonic", False)
        self.attributes = otlp_attributes(point.attributes)
        self.value = (
            point.count if hasattr(point, "count") else getattr(point, point.WhichOneof("value") or "as_int")
        )


def otlp_attributes(pairs: object) -> dict[str, object]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@pytest.fixture
def otlp_sink():
    """A receiver of OTLP over HTTP on a free port of this machine."""
    sink = OtlpSink()
    sink.start()
    yield sink
    sink.stop()


class OtlpGrpcSink(OtlpSink):
    """The same for gRPC."""

    def start(self) -> None:
        methods = {
            f"/opentelemetry.proto.collector.{package}.v1.{service}/Export": (
                f"/{service}/v1/{signal}",
                answer,
            )
            for package, signal, service, answer in (
                ("trace", "traces", "TraceService", ExportTraceServiceResponse),
                ("metrics", "metrics", "MetricsService", ExportMetricsServiceResponse),
            )
        }

        sink = self

        class Handler(grpc.GenericRpcHandler):
            def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
                path, answer = methods[call.method]

                def export(body: bytes, _context: object) -> bytes:
                    sink.requests.append((path, dict(call.invocation_metadata), body))
                    return answer().SerializeToString()

                return grpc.unary_unary_rpc_method_handler(export)

        self._grpc = grpc.server(ThreadPoolExecutor(4), handlers=[Handler()])
        self.port = self._grpc.add_insecure_port(f"127.0.0.1:{self.port}")
        self._grpc.start()

    def stop(self) -> None:
        self._grpc.stop(None).wait()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def calls(self) -> set[str]:
        return {path.split("/")[1] for path in self.paths}


@pytest.fixture
def otlp_grpc_sink():
    """A receiver of OTLP over gRPC on a free port of this machine."""
    sink = OtlpGrpcSink()
    sink.start()
    yield sink
    sink.stop()


@pytest.fixture
def transformers_trainer(tmp_path, monkeypatch):
    """Makes a Hugging Face Trainer of a one-weight model with a callback; it asks no hub for anything."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import torch
    import transformers

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(
            self, x, return_loss=True
        ):  # by this name the Trainer knows that there is one without labels
            return {"loss": (self.weight * x).mean()}

    def make(callback, **arguments):
        data = [{"x": torch.ones(1)}] * 8
        settings = {
            "max_steps": 5,
            "logging_steps": 1,
            "save_strategy": "no",
            "learning_rate": 0.1,
            **arguments,
        }
        return transformers.Trainer(
            model=Model(),
            args=transformers.TrainingArguments(
                output_dir=str(tmp_path / "transformers"),
                use_cpu=True,
                report_to=[],
                disable_tqdm=True,
                per_device_train_batch_size=1,
                lr_scheduler_type="constant",
                dataloader_pin_memory=False,
                label_names=[],
                **settings,
            ),
            train_dataset=data,
            eval_dataset=data[:2],
            callbacks=[callback],
        )

    return make


@pytest.fixture
def lightning_trainer(tmp_path):
    """Makes a Lightning Trainer with a callback, and a fit of a one-weight module that raises at step 3."""
    import torch
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self, fault):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))
            self.fault = fault

        def training_step(self, batch, batch_idx):
            if self.fault is not None and self.global_step == 2:
                raise self.fault
            return (self.weight * batch).mean()

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", 0.25)

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            halving = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": halving, "interval": "step"}}

    def make(callback, fault=None, **settings):
        trainer = Trainer(
            accelerator="cpu",
            default_root_dir=tmp_path,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[callback],
            **{"max_steps": 5, "limit_val_batches": 0, **settings},
        )
        loader = torch.utils.data.DataLoader(torch.ones(10), batch_size=1)
        return trainer, lambda: trainer.fit(Module(fault), loader, loader)

    return make
