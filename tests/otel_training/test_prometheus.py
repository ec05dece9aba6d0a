"""The collector and both text formats, read back by strict parsers and by promtool."""

import io
import math
import re
import shutil
import subprocess

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_fd_to_metric_families

from otel_training import catalog
from otel_training.prometheus import RunCollector, accepts_gzip, render
from otel_training.state import State

IDENTITY = ("run-1", "a run", "0")
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
BOTH_FORMATS = pytest.mark.parametrize("accept", [None, OPENMETRICS], ids=["text", "openmetrics"])

# As Prometheus 2.42 and 3.x send it.
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,"
    "text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


def parse(body, content_type):
    text = body.decode("utf-8")
    if content_type.startswith("application/openmetrics-text"):
        return list(parse_openmetrics(text))
    return list(text_fd_to_metric_families(io.StringIO(text, newline="\n")))


def page(state, accept=None, labels=IDENTITY):
    body, content_type = render(RunCollector(state, labels), accept)
    return {family.name: family for family in parse(body, content_type)}


def values(family):
    return {sample.name: sample.value for sample in family.samples}


def full_state():
    """One series or more of every metric of the catalog."""
    state = State()
    for position, metric in enumerate(catalog.METRICS, start=1):
        labels = tuple(attribute.values[0] if attribute.values else "v" for attribute in metric.attributes)
        if metric.kind == "histogram":
            state.observe(metric, 0.01 * position, 3)
            state.observe(metric, 1e6)
        else:
            state.set(metric, position, *labels)
    return state


@BOTH_FORMATS
def test_every_metric_of_the_catalog_is_on_the_page_with_its_name_kind_meaning_and_value(accept):
    families = page(full_state(), accept)
    assert len(families) == len(catalog.METRICS)
    kinds = {"counter": "counter", "histogram": "histogram"}
    for position, metric in enumerate(catalog.METRICS, start=1):
        name = catalog.prometheus_name(metric)
        family = families[name.removesuffix("_total")]
        assert family.type == kinds.get(metric.kind, "gauge")
        assert family.documentation == metric.brief
        if metric.kind != "histogram":
            assert values(family) == {name: position}


def test_families_come_in_the_order_of_the_catalog():
    state = full_state()
    body, _ = render(RunCollector(state, IDENTITY), None)
    shown = re.findall(r"^# TYPE (\S+)", body.decode(), re.MULTILINE)
    assert shown == [catalog.prometheus_name(metric) for metric in catalog.METRICS]


def test_openmetrics_names_the_units():
    families = page(full_state(), OPENMETRICS)
    assert families["training_step_duration_seconds"].unit == "seconds"
    assert families["training_time_seconds"].unit == "seconds"
    assert families["training_checkpoint_size_bytes"].unit == "bytes"
    assert families["training_throughput_tokens_per_second"].unit == "per_second"
    assert families["training_loss"].unit == ""


@BOTH_FORMATS
def test_every_series_carries_the_identity(accept):
    for family in page(full_state(), accept).values():
        for sample in family.samples:
            assert sample.labels["training_run_id"] == "run-1"
            assert sample.labels["training_run_name"] == "a run"
            assert sample.labels["training_rank"] == "0"


@BOTH_FORMATS
@pytest.mark.parametrize(
    "name", ['a"b\\c\nd', "\\n", "\\\\n\n", '"', "a\rb\u2028c", "日本語 🚀", '{le="1"} # ,=']
)
def test_label_values_read_back_unchanged(name, accept):
    state = State()
    state.set(catalog.LOSS, 1.5)
    state.set(catalog.CUSTOM, 2.5, name, "field")
    families = page(state, accept, ("run-1", name, "0"))
    assert families["training_loss"].samples[0].labels["training_run_name"] == name
    assert families["training_custom"].samples[0].labels["training_event_name"] == name


def test_a_run_name_with_a_newline_stays_one_line():
    state = State()
    state.set(catalog.LOSS, 1.5)
    body, _ = render(RunCollector(state, ("run-1", 'a"b\\c\nd', "0")), None)
    assert len(body.decode().splitlines()) == 3
    assert r'training_run_name="a\"b\\c\nd"' in body.decode()


@BOTH_FORMATS
def test_an_identity_that_is_not_utf_8_does_not_cost_the_page(accept):
    state = State()
    state.set(catalog.LOSS, 1.5)
    family = page(state, accept, ("run-\udcff", "a run", "0"))["training_loss"]
    assert family.samples[0].labels["training_run_id"] == "run-?"


@BOTH_FORMATS
def test_histograms_are_cumulative_and_end_in_infinity(accept):
    state = State()
    state.observe(catalog.STEP_DURATION, 0.0012, 2)
    state.observe(catalog.STEP_DURATION, 0.25)
    state.observe(catalog.STEP_DURATION, 10_000.0)
    family = page(state, accept)["training_step_duration_seconds"]
    buckets = [
        (sample.labels["le"], sample.value) for sample in family.samples if sample.name.endswith("_bucket")
    ]
    assert [float(bound) for bound, _ in buckets] == [*catalog.STEP_BOUNDS_S, math.inf]
    assert dict(buckets)["0.001"] == 0
    assert dict(buckets)["0.0015"] == 2
    assert dict(buckets)["0.2"] == 2
    assert dict(buckets)["0.3"] == 3
    assert dict(buckets)["600.0"] == 3
    assert buckets[-1] == ("+Inf", 4)
    others = {
        sample.name.rpartition("_")[2]: sample.value for sample in family.samples if "le" not in sample.labels
    }
    assert others["count"] == 4
    assert others["sum"] == pytest.approx(10_000.2524, rel=1e-12)


@BOTH_FORMATS
def test_absent_attributes_are_empty_labels_so_that_a_family_has_one_set_of_names(accept):
    state = State()
    state.add(catalog.DELTA_UPLOADS, 1, "uploaded", None)
    state.add(catalog.DELTA_UPLOADS, 2, "skipped", "queue_full")
    samples = page(state, accept)["training_delta_uploads"].samples
    assert {
        (sample.labels["training_delta_outcome"], sample.labels["training_skip_reason"], sample.value)
        for sample in samples
    } == {
        ("uploaded", "", 1),
        ("skipped", "queue_full", 2),
    }


@BOTH_FORMATS
def test_nothing_is_shown_of_when_series_began(accept):
    body, _ = render(RunCollector(full_state(), IDENTITY), accept)
    assert b"_created" not in body


@BOTH_FORMATS
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_not_shown(value, accept):
    state = State()
    state.set(catalog.LOSS, value)
    state.set(catalog.VALIDATION_LOSS, value, "validation")
    state.set(catalog.VALIDATION_LOSS, 2.0, "test")
    state.observe(catalog.STEP_DURATION, value)
    families = page(state, accept)
    assert list(families) == ["training_validation_loss"]
    assert [sample.value for sample in families["training_validation_loss"].samples] == [2.0]


def test_a_state_without_numbers_is_an_empty_page():
    assert render(RunCollector(State(), IDENTITY), None)[0] == b""
    assert render(RunCollector(State(), IDENTITY), OPENMETRICS)[0] == b"# EOF\n"


@BOTH_FORMATS
def test_scrapes_of_the_same_numbers_are_the_same_bytes(accept):
    state = full_state()
    state.set(catalog.VALIDATION_LOSS, 1.0, "validation")
    collector = RunCollector(state, IDENTITY)
    first = render(collector, accept)
    assert render(collector, accept) == first
    # A series that comes back goes to the end of the state, and must not move on the page.
    state.withdraw(catalog.VALIDATION_LOSS, "v")
    state.set(catalog.VALIDATION_LOSS, catalog.METRICS.index(catalog.VALIDATION_LOSS) + 1, "v")
    assert render(collector, accept) == first


@BOTH_FORMATS
@pytest.mark.parametrize(
    "number", [0, -3, 2**53, 2**63 - 1, 1e-320, 1.7976931348623157e308, 0.1, 1_764_800_000.25]
)
def test_numbers_read_back_as_they_are(number, accept):
    state = State()
    state.set(catalog.LOSS, number)
    assert values(page(state, accept)["training_loss"]) == {"training_loss": float(number)}


def test_trouble_in_one_family_costs_that_family_alone_and_is_told(caplog):
    state = full_state()
    with_all = page(state)
    state._values[catalog.LOSS][()] = "not a number"
    without_loss = page(state)
    assert set(with_all) - set(without_loss) == {"training_loss"}
    assert set(without_loss) < set(with_all)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "training.loss" in caplog.text


def test_a_collector_can_be_put_in_a_users_registry():
    registry = CollectorRegistry()
    registry.register(RunCollector(full_state(), IDENTITY))
    assert render(registry, None) == render(RunCollector(full_state(), IDENTITY), None)


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        (None, False),
        ("", False),
        ("*/*", False),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", False),
        ("text/plain", False),
        ("text/plain;version=1.0.0;escaping=dots", False),
        ("application/openmetrics-text", True),
        ("Application/OpenMetrics-Text ; Version=1.0.0", True),
        ("application/openmetrics-text;version=1.0.0;escaping=dots", True),
        ("application/openmetrics-text;version=2.0.0", False),
        ("application/openmetrics-text;version=2.0.0,application/openmetrics-text;version=1.0.0;q=0.5", True),
        ("application/openmetrics-text;version=0.0.1", False),
        ("application/openmetrics-text;version=1.0.0;q=0", False),
        ("application/openmetrics-text;version=1.0.0;q=0.3,text/plain;version=0.0.4;q=0.6", False),
        ("application/openmetrics-text;version=nonsense;q=nonsense;;=;,,", False),
        (PROMETHEUS_2, True),
        (PROMETHEUS_3, True),
    ],
)
def test_the_client_chooses_the_format_and_never_the_names(accept, openmetrics):
    body, content_type = render(RunCollector(full_state(), IDENTITY), accept)
    assert content_type == (
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
        if openmetrics
        else "text/plain; version=0.0.4; charset=utf-8"
    )
    assert body.endswith(b"# EOF\n") == openmetrics
    assert b"\ntraining_learning_rate{" in body


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        (None, False),
        ("identity", False),
        ("gzip", True),
        ("GZIP;q=0.5", True),
        ("deflate, gzip;q=1.0, *;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip;q=0.000", False),
        ("xgzip", False),
    ],
)
def test_gzip_is_used_only_for_clients_that_ask(header, accepted):
    assert accepts_gzip(header) is accepted


PROMTOOL_OBJECTS_TO = [
    # The name is OpenTelemetry's own, and a gauge in Prometheus; to promtool it is a part of a histogram.
    'process_thread_count non-histogram and non-summary metrics should not have "_count" suffix',
]


def test_promtool_has_nothing_to_say_but_what_is_known():
    promtool = shutil.which("promtool")
    assert promtool, "promtool is needed: make tools"
    body, _ = render(RunCollector(full_state(), ("run-1", 'a"b\\c\nd', "0")), None)
    check = subprocess.run([promtool, "check", "metrics"], input=body, capture_output=True, check=False)
    assert (check.stdout + check.stderr).decode().splitlines() == PROMTOOL_OBJECTS_TO
