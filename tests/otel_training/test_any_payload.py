"""Any payload through the hook: no exception, both roads can carry what comes of it, good values arrive."""

import gc
import io
import json
import math
import weakref
from decimal import Decimal

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_fd_to_metric_families

from otel_training import catalog
from otel_training.prometheus import RunCollector, render
from otel_training.testing import TelemetryCapture
from trainer import MetricLogger

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Cheating:
    """Raises whatever is asked of it."""

    def __str__(self):
        raise RuntimeError("no")

    __repr__ = __float__ = __int__ = __bool__ = __len__ = __iter__ = __eq__ = __hash__ = __str__


class CheatingFloat(float):
    def __float__(self):
        raise RuntimeError("no")


def cycle():
    items = {}
    items["self"] = items
    return [items]


NUMBERS = st.one_of(
    st.booleans(),
    st.integers(),
    st.integers(10**18, 10**30),
    st.floats(),
    st.decimals(),
    st.fractions(),
    st.floats(width=32).map(np.float32),
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
    st.floats().map(lambda value: np.array([value])),
    st.floats(width=32).map(lambda value: torch.tensor(value, requires_grad=True)),
    st.floats(-1e30, 1e30).map(lambda value: torch.tensor(value, dtype=torch.bfloat16)),
    st.integers(-(2**63), 2**63 - 1).map(lambda value: torch.tensor([value])),
)
OTHERS = st.one_of(
    st.none(),
    st.text(alphabet=st.characters(), max_size=50),
    st.binary(max_size=20),
    st.just(10**400),
    st.just(Decimal("sNaN")),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=5), st.floats(), max_size=3),
    st.sampled_from([1j, object, ..., torch.float32, np.datetime64("NaT")]),
    st.builds(Cheating),
    st.builds(CheatingFloat),
    st.builds(cycle),
    st.builds(lambda: torch.zeros(100, 100)),
    st.builds(lambda: torch.empty(1, device="meta")),
    st.builds(lambda: np.zeros(1000)),
)
KEYS = st.one_of(
    st.sampled_from(sorted(set().union(*catalog.EVENTS.values()))),
    st.text(alphabet=st.characters(), max_size=30),
    st.text(alphabet=st.characters(), min_size=1, max_size=3).map(lambda text: text * 5000),
    st.integers(),
    st.tuples(st.text(max_size=3), st.integers()),
    st.none(),
)
PAYLOADS = st.dictionaries(KEYS, NUMBERS | OTHERS, max_size=12)
EVENTS = st.one_of(
    st.sampled_from(sorted(catalog.EVENTS)),
    st.just("train_step"),
    st.text(alphabet=st.characters(), max_size=20),
)


@pytest.fixture
def quiet(caplog):
    """The log lines that bad values deserve, kept from the terminal."""
    caplog.set_level("CRITICAL")


def make_capture():
    # A fresh one for each example, as hypothesis runs them in one test.
    return TelemetryCapture(run_id="run-1")


def pages(capture):
    collector = RunCollector(capture.hook._to.run.state, ("run-1", "a run", "0"))
    text, _ = render(collector, None)
    openmetrics, _ = render(collector, OPENMETRICS)
    return (
        list(text_fd_to_metric_families(io.StringIO(text.decode(), newline="\n"))),
        list(parse_openmetrics(openmetrics.decode())),
    )


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(EVENTS, PAYLOADS), min_size=1, max_size=8))
def test_no_payload_costs_more_than_its_bad_values(quiet, events):
    capture = make_capture()
    for event, payload in events:
        before = list(payload)
        capture.hook.on_event(event, payload)
        assert list(payload) == before
    capture.hook.on_event("train_step", {"step": 7, "loss": 0.5, "my/metric@1": 0.25})
    failed = capture.value("training.bridge.events", training_event_outcome="failed")
    encode_metrics(capture._reader.get_metrics_data()).SerializeToString()
    encode_spans(capture.spans()).SerializeToString()
    for families in pages(capture):
        samples = {sample.name: sample.value for family in families for sample in family.samples}
        assert samples["training_loss"] == 0.5
        assert all(math.isfinite(value) for value in samples.values())
    assert failed is None
    assert capture.value("training.custom", training_field="my/metric@1") == 0.25
    capture.close()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payload=PAYLOADS)
def test_the_good_values_of_a_bad_payload_arrive(quiet, payload):
    capture = make_capture()
    known = catalog.EVENTS["train_step"]
    bad = {key: value for key, value in payload.items() if not (isinstance(key, str) and key in known)}
    capture.hook.on_event("train_start", {"start_step": 0})
    good = {"step": 1, "loss": torch.tensor(0.5), "lr": 0.25, "tokens": 10, "mine": np.float32(1.5)}
    capture.hook.on_event("train_step", {**bad, **good})
    assert capture.value("training.loss") == 0.5
    assert capture.value("training.learning_rate") == 0.25
    assert capture.value("training.tokens") == 10
    assert capture.value("training.custom", training_field="mine") == 1.5
    capture.close()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payload=PAYLOADS)
def test_json_lines_and_hook_together(quiet, tmp_path_factory, payload):
    path = tmp_path_factory.mktemp("any") / "run.jsonl"
    capture = make_capture()
    stream = io.StringIO()
    with MetricLogger(stream=stream, json_file=path, hooks=[capture.hook]) as logger:
        logger.emit("train_step", {**payload, "step": 1})

    def refuse(word):
        raise ValueError(word)

    line, rest = path.read_bytes().split(b"\n")
    assert rest == b""
    json.loads(line, parse_constant=refuse)
    assert len(stream.getvalue().splitlines()) == 1
    capture.close()


def test_ten_thousand_keys_are_two_hundred_series(capture, quiet):
    payload = {f"key{position}": float(position) for position in range(10_000)}
    for _ in range(2):
        capture.hook.on_event("train_step", {"step": 1, **payload})
    points = capture.points("training.custom")
    assert len(points) == catalog.MAX_CUSTOM_FIELDS + 1
    assert capture.value("training.custom", training_field="key0") == 0.0
    assert capture.value("training.bridge.drops", training_drop_reason="cardinality") == 2 * 9_800


def test_many_events_and_fields_leave_a_page_of_bounded_size(capture, quiet):
    for position in range(3000):
        capture.hook.on_event(f"event{position}", {f"field{position}": position, "reason": f"r{position}"})
        capture.hook.on_event("delta_upload_skipped", {"step": position, "reason": f"reason {position}"})
        capture.hook.on_event("train_end", {"outcome": f"o{position}", "error": f"E{position}: e"})
        capture.hook.on_event("train_start", {"precision": f"p{position}", "device": f"d{position}"})
    assert len(capture.points()) < 700


def test_no_tensor_is_kept(capture):
    graph = torch.ones(3, requires_grad=True)
    loss = (graph * 2).sum()
    many = torch.zeros(1000)
    alive = [weakref.ref(each) for each in (loss, many, graph)]
    payload = {"step": 1, "loss": loss, "grad_norm": loss, "weights": many, loss: 1.0, "error": many}
    for event in catalog.EVENTS:
        capture.hook.on_event(event, payload)
    del loss, many, graph, payload
    gc.collect()
    assert [reference() for reference in alive] == [None, None, None]
    assert capture.value("training.loss") == 6.0


def test_nothing_on_a_device_is_read(capture, quiet):
    elsewhere = torch.empty(1, device="meta")  # reading it raises, as a device would wait
    fields = set().union(*catalog.EVENTS.values())
    for event in catalog.EVENTS:
        capture.hook.on_event(event, dict.fromkeys(fields, elsewhere))
    assert capture.value("training.bridge.events", training_event_outcome="failed") is None
    assert capture.value("training.bridge.events", training_event_outcome="handled") == len(catalog.EVENTS)


@pytest.mark.parametrize("duration_s", [1e12, 1e300, -1e300])
def test_no_duration_makes_a_span_that_cannot_be_sent(capture, quiet, duration_s):
    capture.hook.on_event("train_end", {"elapsed_s": duration_s})
    for event in ("checkpoint", "checkpoint_restore", "compile", "validation_end", "outer_step"):
        capture.hook.on_event(event, {"duration_s": duration_s})
    assert len(capture.spans()) == 6
    encode_spans(capture.spans()).SerializeToString()
