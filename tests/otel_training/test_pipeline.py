"""start(): one call for the telemetry of a run, several runs at once, and an end that is on time."""

import contextlib
import gc
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import weakref

import pytest
from opentelemetry import metrics as api
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from otel_training import OTelHook, catalog, process, start

FORKS = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


class Seen:
    """A reader and a span exporter of the user's, and what they saw."""

    def __init__(self):
        self.reader = InMemoryMetricReader()
        self.exporter = InMemorySpanExporter()
        self.arguments = {
            "metric_readers": [self.reader],
            "span_processors": [SimpleSpanProcessor(self.exporter)],
        }

    def spans(self, name=None):
        return [span for span in self.exporter.get_finished_spans() if name in (None, span.name)]

    def value(self, name):
        return value(self.reader, name)


def value(reader, name):
    data = reader.get_metrics_data()
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                if metric.name == name:
                    return sum(point.value for point in metric.data.data_points)
    return None


@pytest.fixture
def seen():
    return Seen()


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    assert process._closables == {}
    assert process._live == {}
    assert process._pipelines == {}


@pytest.fixture
def begin():
    """Call start(); what a test leaves open is closed."""
    opened = []

    def begin(**arguments):
        opened.append(start(**{"prometheus": False, **arguments}))
        return opened[-1]

    yield begin
    for telemetry in opened:
        telemetry.close()


def train(hook, steps=3, first=1):
    hook.on_event("train_start", {"start_step": first - 1, "target_step": first + steps - 1})
    for step in range(first, first + steps):
        hook.on_event("train_step", {"step": step, "loss": 1.0 / step})
    hook.on_event("train_end", {"steps": first + steps - 1, "elapsed_s": 1.0})


def page(telemetry):
    with urllib.request.urlopen(telemetry.url, timeout=20) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {sample.name: sample.value for family in families for sample in family.samples}


def lines(caplog):
    return [record.getMessage() for record in caplog.records]


def our_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("otel_training")]


# --- one run ---


def test_metrics_spans_and_page_of_one_run(begin, seen):
    telemetry = begin(prometheus=True, prometheus_port=0, run_id="r1", **seen.arguments)
    train(telemetry.hook)
    assert seen.value("training.steps") == page(telemetry)["training_steps_total"] == 3
    telemetry.close()
    assert [span.name for span in seen.spans()] == ["training.run.start", "training.window", "training.run"]
    assert seen.spans()[0].resource.attributes["training.run.id"] == "r1"
    assert telemetry.url is None
    assert our_threads() == []


def test_without_anything_configured_there_is_a_page_and_no_thread_that_exports(begin):
    telemetry = begin(prometheus=True, prometheus_port=0)
    assert telemetry.url.startswith("http://127.0.0.1:")
    assert not any("metrics" in thread.name or "spans" in thread.name for thread in our_threads())


def test_disabled_is_nothing_at_all_and_takes_events(monkeypatch, begin, seen):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    telemetry = begin(prometheus=True, prometheus_port=0, **seen.arguments)
    train(telemetry.hook)
    assert telemetry.url is None
    assert telemetry.flush()
    telemetry.close()
    assert seen.value("training.steps") is None
    assert seen.spans() == []


def test_a_context_manager_closes_and_an_exception_fails_the_run(seen):
    error = RuntimeError("out of memory")
    with contextlib.suppress(RuntimeError), start(prometheus=False, **seen.arguments) as telemetry:
        telemetry.hook.on_event("train_start", {"start_step": 0})
        raise error
    [run] = seen.spans("training.run")
    assert run.attributes["training.run.outcome"] == "failed"
    assert run.events[0].attributes["exception.type"] == "RuntimeError"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(0)])
def test_a_context_left_by_an_interrupt_is_no_failure(seen, error):
    with contextlib.suppress(BaseException), start(prometheus=False, **seen.arguments) as telemetry:
        telemetry.hook.on_event("train_start", {"start_step": 0})
        raise error
    [run] = seen.spans("training.run")
    assert run.attributes["training.run.outcome"] == "interrupted"
    assert run.status.is_unset


def test_a_plain_loop(begin, seen):
    telemetry = begin(**seen.arguments)
    with telemetry.run(target_step=2) as run:
        run.step(loss=1.0)
        run.step(loss=0.5)
    assert seen.value("training.loss") == 0.5
    [span] = seen.spans("training.run")
    assert span.attributes["training.step.final"] == 2


def test_close_is_idempotent_and_events_after_it_are_nothing(begin, seen):
    telemetry = begin(**seen.arguments)
    train(telemetry.hook)
    telemetry.close()
    telemetry.close()
    train(telemetry.hook, first=10)
    assert not telemetry.flush()
    assert len(seen.spans("training.run")) == 1
    assert seen.value("training.steps") == 3


def test_after_flush_a_span_exporter_has_what_was_told(begin, seen):
    telemetry = begin(**seen.arguments)
    train(telemetry.hook)
    assert telemetry.flush()
    assert len(seen.spans("training.run")) == 1


@pytest.mark.parametrize(
    ("variable", "value"),
    [("OTEL_EXPORTER_PROMETHEUS_HOST", "nowhere.invalid"), ("OTEL_EXPORTER_OTLP_CERTIFICATE", "not/there")],
)
def test_a_setting_that_is_refused_leaves_nothing_behind(seen, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=value):
        start(otlp_endpoint="https://127.0.0.1:1", prometheus_port=0, **seen.arguments)
    assert our_threads() == []


@pytest.mark.parametrize("setting", ["metric_readers", "span_processors"])
def test_what_is_no_reader_or_processor_is_refused_by_name(setting):
    with pytest.raises(ValueError, match=f"{setting} holds 'mine': accepted are objects of"):
        start(prometheus=False, devices=(), **{setting: ["mine"]})
    assert our_threads() == []


def test_the_random_numbers_of_the_training_are_not_used(begin, seen):
    def draws():
        random.seed(7)
        return [random.random() for _ in range(5)]

    expected = draws()
    random.seed(7)
    telemetry = begin(step_span_ratio=0.5, **seen.arguments)
    telemetry.hook.on_event("train_start", {"start_step": 0})
    drawn = []
    for step in range(1, 6):
        telemetry.hook.on_event("train_step", {"step": step})
        drawn.append(random.random())
    telemetry.close()
    assert drawn == expected


def test_memory_is_given_back(seen):
    providers = []
    for _ in range(20):
        telemetry = start(prometheus=False, metric_readers=[InMemoryMetricReader()])
        train(telemetry.hook)
        providers.append(weakref.ref(telemetry._pipeline))
        telemetry.close()
    del telemetry
    gc.collect()
    assert [provider for provider in providers if provider() is not None] == []


# --- several at once ---


def test_runs_one_after_another(begin):
    for number in range(3):
        seen = Seen()
        telemetry = begin(run_id=f"r{number}", **seen.arguments)
        train(telemetry.hook)
        telemetry.close()
        assert seen.value("training.steps") == 3
        assert len(seen.spans("training.run")) == 1


def test_runs_side_by_side_keep_apart(begin):
    all_seen = [Seen() for _ in range(3)]
    telemetries = [begin(run_id=f"r{i}", **seen.arguments) for i, seen in enumerate(all_seen)]
    for number, telemetry in enumerate(telemetries):
        train(telemetry.hook, steps=number + 1)
    for number, seen in enumerate(all_seen):
        assert seen.value("training.steps") == number + 1
        assert {span.resource.attributes["training.run.id"] for span in seen.spans()} == {f"r{number}"}


def test_two_starts_of_one_run_share_it_and_count_once(otlp_sink, begin):
    first_seen, second_seen = Seen(), Seen()
    arguments = {"run_id": "same", "otlp_endpoint": otlp_sink.url, "prometheus": True, "prometheus_port": 0}
    first = begin(**arguments, **first_seen.arguments)
    second = begin(**arguments, **second_seen.arguments)
    assert first.url == second.url
    for event, payload in (
        ("train_start", {"start_step": 0}),
        ("train_step", {"step": 1}),
        ("train_step", {"step": 2}),
    ):
        first.hook.on_event(event, payload)
        second.hook.on_event(event, payload)
    assert page(first)["training_steps_total"] == 2
    assert first_seen.value("training.steps") == second_seen.value("training.steps") == 2

    first.close()
    second.hook.on_event("train_step", {"step": 3})
    assert page(second)["training_steps_total"] == 3
    assert first_seen.spans("training.run") == []
    second.close()
    assert len(first_seen.spans("training.run")) == len(second_seen.spans("training.run")) == 1
    assert len(otlp_sink.spans("training.run")) == 1
    assert second_seen.value("training.steps") == 3
    assert second.url is None


def test_a_second_start_with_other_settings_says_that_they_do_nothing(begin, caplog):
    begin(run_id="same")
    begin(run_id="same", window_s=30.0)
    assert len(lines(caplog)) == 1
    assert "same" in lines(caplog)[0]


def test_a_cell_that_is_run_again_without_close_goes_on(set_clock):
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    hooks = []
    for _ in range(3):  # the same seed, so the same events
        hooks.append(OTelHook(meter_provider=provider, run_id="notebook", clock=set_clock))
        train(hooks[-1])
        set_clock.after(60.0)
    assert value(reader, "training.runs") == 3
    for hook in hooks:
        hook.close()


def test_given_and_global_providers_and_a_pipeline_of_our_own_at_once(begin, seen):
    given = InMemoryMetricReader()
    hooks = [
        OTelHook(meter_provider=MeterProvider([given], shutdown_on_exit=False), run_id="r"),
        OTelHook(run_id="r"),  # on the global provider, which is none here
        begin(run_id="r", **seen.arguments).hook,
    ]
    for hook in hooks:
        train(hook)
    assert seen.value("training.steps") == 3
    names = [
        metric.name
        for resource in given.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ]
    assert len(names) == len(set(names))
    for hook in hooks:
        hook.close()


def test_a_global_provider_is_left_alone(begin, seen):
    before = api.get_meter_provider()
    begin(**seen.arguments)
    assert api.get_meter_provider() is before


def test_sixteen_threads_emit_while_one_closes(begin, seen):
    telemetry = begin(**seen.arguments)
    telemetry.hook.on_event("train_start", {"start_step": 0})
    go, stop = threading.Barrier(18), threading.Event()

    def emit(number):
        go.wait()
        while not stop.is_set():
            telemetry.hook.on_event("surprise", {f"field{number}": 1.0})
            telemetry.hook.on_event("checkpoint", {"step": number, "path": "p", "duration_s": 0.0})

    def collect():
        go.wait()
        while not stop.is_set():
            seen.reader.get_metrics_data()

    threads = [threading.Thread(target=emit, args=(number,)) for number in range(16)]
    threads.append(threading.Thread(target=collect))
    for thread in threads:
        thread.start()
    go.wait()
    time.sleep(0.05)
    closes = threading.Thread(target=telemetry.close)
    closes.start()
    closes.join()
    stop.set()
    for thread in threads:
        thread.join()
    assert len(seen.spans("training.run")) == 1
    assert seen.value("training.checkpoints") >= len(seen.spans("training.checkpoint.save")) > 0


# --- what the user attaches misbehaves ---


class Hangs(InMemoryMetricReader):
    released = threading.Event()

    def force_flush(self, timeout_millis=10_000):
        self.released.wait()
        return True


class HangingProcessor(SpanProcessor):
    def force_flush(self, timeout_millis=30_000):
        Hangs.released.wait()
        return True


def test_a_reader_and_a_processor_that_hang_do_not_hang_the_close(seen, caplog):
    telemetry = start(
        prometheus=False,
        shutdown_timeout_s=0.2,
        metric_readers=[Hangs(), seen.reader],
        span_processors=[HangingProcessor(), *seen.arguments["span_processors"]],
    )
    train(telemetry.hook)
    assert not telemetry.flush(0.05)
    begun_s = time.monotonic()
    telemetry.close()
    took_s = time.monotonic() - begun_s
    Hangs.released.set()
    assert 0.1 < took_s < 10.0
    assert lines(caplog) == ["closed with HangingProcessor and Hangs not delivered"]
    assert len(seen.spans("training.run")) == 1
    deadline_s = time.monotonic() + 20
    while our_threads():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


# --- over OTLP, in time ---


@pytest.fixture
def refused_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def test_what_came_in_before_close_arrives(otlp_sink, begin):
    telemetry = begin(otlp_endpoint=otlp_sink.url, export_interval_s=1000.0)
    train(telemetry.hook, steps=7)
    telemetry.close()
    assert [point.value for point in otlp_sink.points("training.steps")] == [7]
    assert len(otlp_sink.spans("training.run")) == 1
    assert our_threads() == []


def test_the_start_of_a_run_leaves_at_once(otlp_sink, begin, monkeypatch):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1000000")
    telemetry = begin(otlp_endpoint=otlp_sink.url)
    telemetry.hook.on_event("train_start", {"start_step": 0})
    otlp_sink.wait_for(lambda sink: sink.spans("training.run.start"))


def test_losses_are_counted_on_the_page(begin, refused_port, monkeypatch):
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "5")
    telemetry = begin(
        otlp_endpoint=f"http://127.0.0.1:{refused_port}", step_span_ratio=1.0, shutdown_timeout_s=0.1,
        prometheus=True, prometheus_port=0,
    )  # fmt: skip
    train(telemetry.hook, steps=50)
    assert page(telemetry)["training_bridge_drops_total"] > 0


def test_a_page_lingers_for_one_more_scrape(begin):
    telemetry = begin(prometheus=True, prometheus_port=0, linger_s=20.0)
    train(telemetry.hook)
    closes = threading.Thread(target=telemetry.close)
    closes.start()
    seen = 0.0
    while closes.is_alive():
        with contextlib.suppress(OSError, TypeError, AttributeError):
            seen = page(telemetry)["training_steps_total"]
    assert seen == 3
    closes.join()


# --- children ---


@FORKS
def test_a_forked_child_is_silent_and_may_start_telemetry_of_its_own(otlp_sink, begin, seen):
    telemetry = begin(otlp_endpoint=otlp_sink.url, prometheus=True, prometheus_port=0, **seen.arguments)
    telemetry.hook.on_event("train_start", {"start_step": 0})
    port = int(telemetry.url.split(":")[2].split("/")[0])
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            train(telemetry.hook)
            telemetry.close()
            own = start(otlp_endpoint=otlp_sink.url, prometheus_port=0, run_id="child")
            train(own.hook, steps=2)
            own.close()
            code = 0 if len(threading.enumerate()) == 1 else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert {point.value for point in otlp_sink.points("training.steps")} == {2}
    [run] = otlp_sink.spans("training.run")
    assert run.resource["training.run.id"] == "child"
    telemetry.close()
    with socket.create_server(("127.0.0.1", port)):
        pass  # the child holds the port no more than its parent


# --- the import ---


def test_starting_a_page_alone_does_not_import_the_sdk():
    code = (
        "import sys, json, otel_training; otel_training.start(prometheus_port=0).close();"
        "heavy = 'opentelemetry.sdk', 'torch', 'grpc';"
        "print(json.dumps([name for name in sys.modules if name.startswith(heavy)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert json.loads(done.stdout) == [], done.stderr


def test_a_failure_to_close_is_told_and_not_raised(begin, seen, caplog):
    telemetry = begin(**seen.arguments)
    telemetry._pipeline._run = None  # a defect of ours
    telemetry.close()
    assert any("close failed, training goes on" in line for line in lines(caplog))


# --- exemplars ---

OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}


def exemplars(telemetry):
    """Return the exemplars of the step durations as OpenMetrics has them, by the bucket's bound."""
    request = urllib.request.Request(telemetry.url, headers=OPENMETRICS)
    with urllib.request.urlopen(request, timeout=20) as answer:
        families = list(parse_openmetrics(answer.read().decode()))
    samples = [sample for family in families for sample in family.samples if sample.exemplar]
    name = catalog.prometheus_name(catalog.STEP_DURATION)
    assert {sample.name for sample in samples} <= {f"{name}_bucket"}
    return {sample.labels["le"]: sample.exemplar for sample in samples}


def test_a_step_s_bucket_leads_to_its_own_span_or_to_its_window(begin, seen):
    telemetry = begin(prometheus=True, prometheus_port=0, step_span_ratio=0.5, **seen.arguments)
    train(telemetry.hook, steps=4)
    steps, [window] = seen.spans("training.step"), seen.spans("training.window")
    known = {(span.context.trace_id, span.context.span_id) for span in (*steps, window)}
    found = exemplars(telemetry)
    assert found
    for bound, exemplar in found.items():
        assert (int(exemplar.labels["trace_id"], 16), int(exemplar.labels["span_id"], 16)) in known
        assert 0 <= exemplar.value <= float(bound)
        assert float(exemplar.timestamp) == pytest.approx(time.time(), abs=60)


@pytest.mark.parametrize("why", ["no spans", "not sampled"])
def test_there_is_no_exemplar_that_leads_nowhere(begin, seen, monkeypatch, why, caplog):
    arguments = seen.arguments
    if why == "no spans":
        arguments = {"metric_readers": [seen.reader]}
    else:
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    telemetry = begin(prometheus=True, prometheus_port=0, **arguments)
    train(telemetry.hook)
    assert exemplars(telemetry) == {}


def test_the_older_text_format_has_no_exemplars(begin, seen):
    telemetry = begin(prometheus=True, prometheus_port=0, **seen.arguments)
    train(telemetry.hook)
    with urllib.request.urlopen(telemetry.url, timeout=20) as answer:
        assert b" # {" not in answer.read()
