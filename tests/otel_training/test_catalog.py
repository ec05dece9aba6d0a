"""The catalog keeps OpenTelemetry's naming rules, and both Prometheus spellings of each metric are pinned."""

import itertools
import re
from collections import Counter

import pytest

from otel_training import catalog
from otel_training.catalog import Metric, prometheus_name, prometheus_unit

EVERY_METRIC = pytest.mark.parametrize("metric", catalog.METRICS, ids=lambda metric: metric.name)

# The page's spelling; a second one where the Collector's differs. Dashboards and alert rules stand on these.
SPELLINGS = """
    training_run_info
    training_run_active
    training_run_ranks
    training_runs_total
    training_restarts_total
    training_model_parameters
    training_steps_total
    training_step_current
    training_step_target
    training_step_last_time_seconds
    training_step_duration_seconds
    training_step_skips_total
    training_step_replays_total
    training_samples_total
    training_tokens_total
    training_micro_batches_total
    training_throughput_steps_per_second
    training_throughput_samples_per_second
    training_throughput_tokens_per_second
    training_loss
    training_learning_rate
    training_gradient_norm
    training_validation_loss
    training_nonfinite_values_total
    training_flops_utilization training_flops_utilization_ratio
    training_data_wait_duration_seconds
    training_time_seconds_total
    training_goodput_utilization training_goodput_utilization_ratio
    training_checkpoints_total
    training_checkpoint_duration_seconds
    training_checkpoint_size_bytes
    training_checkpoint_last_step
    training_checkpoint_last_time_seconds
    training_compile_attempts_total
    training_ooo_backprop_enabled
    training_ooo_backprop_streams
    training_shape_warnings_total
    training_shape_alignment
    training_outer_steps_total
    training_outer_step_current
    training_outer_candidates
    training_outer_deltas_total
    training_outer_step_duration_seconds
    training_delta_uploads_total
    training_delta_stale_total
    training_delta_active_uploads
    training_delta_upload_duration_seconds
    training_device_memory_usage_bytes
    training_hook_failures_total
    training_custom
    training_bridge_events_total
    training_bridge_drops_total
    system_cpu_utilization system_cpu_utilization_ratio
    system_memory_usage_bytes
    system_memory_utilization system_memory_utilization_ratio
    system_memory_limit_bytes
    system_paging_usage_bytes
    system_paging_utilization system_paging_utilization_ratio
    container_memory_usage_bytes
    container_memory_available_bytes
    process_cpu_utilization process_cpu_utilization_ratio
    process_cpu_time_seconds_total
    process_memory_usage_bytes
    process_thread_count
    torch_cuda_memory_allocated_bytes
    torch_cuda_memory_reserved_bytes
    torch_cuda_memory_active_bytes
    torch_cuda_memory_inactive_split_bytes
    torch_cuda_memory_requested_bytes
    torch_cuda_memory_limit_bytes
    torch_cuda_memory_peak_allocated_bytes
    torch_cuda_memory_peak_reserved_bytes
    torch_cuda_memory_peak_active_bytes
    torch_cuda_memory_pool_allocated_bytes
    torch_cuda_memory_pool_reserved_bytes
    torch_cuda_memory_pool_active_bytes
    torch_cuda_memory_pool_peak_allocated_bytes
    torch_cuda_memory_pool_peak_reserved_bytes
    torch_cuda_memory_pool_peak_active_bytes
    torch_cuda_allocator_ooms_total
    torch_cuda_allocator_retries_total
    torch_cuda_allocator_allocations_total
    torch_cuda_allocator_frees_total
    torch_cuda_memory_stat
    hw_gpu_utilization hw_gpu_utilization_ratio
    hw_gpu_memory_usage_bytes
    hw_gpu_memory_limit_bytes
    hw_gpu_memory_utilization hw_gpu_memory_utilization_ratio
    hw_temperature_celsius
    hw_power_watts
    hw_energy_joules_total
    hw_errors_total
    torch_mps_memory_allocated_bytes
    torch_mps_memory_driver_allocated_bytes
    torch_xla_memory_usage_bytes
    torch_xla_memory_free_bytes
    torch_xla_memory_limit_bytes
    torch_xla_memory_utilization torch_xla_memory_utilization_ratio
    torch_xla_events_total
    torch_xla_compiles_total
    torch_xla_compile_time_seconds_total
    torch_xla_executions_total
    torch_xla_execute_time_seconds_total
    training_device_read_duration_seconds
    training_device_read_failures_total
"""


def test_both_spellings_of_every_metric_are_pinned():
    pinned = [line.split() for line in SPELLINGS.strip().splitlines()]
    assert [
        [prometheus_name(metric), prometheus_name(metric, ratio_suffix=True)] for metric in catalog.METRICS
    ] == [[names[0], names[-1]] for names in pinned]


@pytest.mark.parametrize(
    ("unit", "kind", "word", "name", "ratio_name"),
    [
        ("", "gauge", "", "a_b", "a_b"),
        ("1", "gauge", "", "a_b", "a_b_ratio"),
        ("1", "counter", "", "a_b_total", "a_b_total"),
        ("s", "gauge", "seconds", "a_b_seconds", "a_b_seconds"),
        ("s", "counter", "seconds", "a_b_seconds_total", "a_b_seconds_total"),
        ("By", "updown", "bytes", "a_b_bytes", "a_b_bytes"),
        ("W", "gauge", "watts", "a_b_watts", "a_b_watts"),
        ("J", "counter", "joules", "a_b_joules_total", "a_b_joules_total"),
        ("Cel", "gauge", "celsius", "a_b_celsius", "a_b_celsius"),
        ("{thing}", "updown", "", "a_b", "a_b"),
        ("{thing}/s", "gauge", "per_second", "a_b_per_second", "a_b_per_second"),
        ("By/s", "gauge", "bytes_per_second", "a_b_bytes_per_second", "a_b_bytes_per_second"),
    ],
)
def test_units_become_words(unit, kind, word, name, ratio_name):
    metric = Metric("a.b", kind, unit, "A thing.")
    assert prometheus_unit(metric) == word
    assert prometheus_name(metric) == name
    assert prometheus_name(metric, ratio_suffix=True) == ratio_name


def test_a_unit_that_the_name_ends_with_is_not_said_twice():
    assert prometheus_name(Metric("a.seconds", "gauge", "s", "A thing.")) == "a_seconds"


def test_characters_that_prometheus_does_not_know_collapse_into_one():
    assert prometheus_name(Metric("a.-b..c", "gauge", "", "A thing.")) == "a_b_c"


@EVERY_METRIC
def test_names_are_lower_case_words_in_one_namespace(metric):
    namespace, *_ = metric.name.split(".")
    assert re.fullmatch(r"[a-z][a-z_]*(\.[a-z][a-z0-9]*(_[a-z0-9]+)*)+", metric.name)
    assert namespace in {"training", "system", "process", "container", "hw", "torch", "torch_xla"}


@EVERY_METRIC
def test_names_hold_no_unit_and_no_total(metric):
    words = re.split(r"[._]", metric.name)
    assert not {"total", "seconds", "second", "ms", "bytes", "percent", "ratio", "per"} & set(words)


def test_no_metric_is_also_a_namespace():
    names = {metric.name for metric in catalog.METRICS}
    namespaces = {name.rsplit(".", depth)[0] for name in names for depth in range(1, name.count(".") + 1)}
    assert not names & namespaces


@EVERY_METRIC
def test_units_are_base_units_or_annotated_counts(metric):
    assert re.fullmatch(r"|1|s|By|Cel|W|J|\{[a-z]+\}(/s)?", metric.unit)


@EVERY_METRIC
def test_annotated_units_are_in_the_singular(metric):
    annotation = re.search(r"\{(.*)\}", metric.unit)
    assert annotation is None or not annotation[1].endswith("s") or annotation[1].endswith("ss")


@EVERY_METRIC
def test_unit_1_is_for_fractions_and_utilization_is_one(metric):
    assert (metric.unit == "1") == metric.name.endswith(".utilization")
    if metric.unit == "1":
        assert metric.kind == "gauge"


@EVERY_METRIC
def test_the_words_with_a_fixed_meaning_have_its_unit(metric):
    last = metric.name.rsplit(".", 1)[-1]
    if last in ("duration", "time", "last_time"):
        assert metric.unit == "s"
    if last == "duration" and metric is not catalog.DEVICE_READ_DURATION:  # the last one is enough
        assert metric.kind == "histogram"
    if last == "usage":
        assert metric.kind == "updown"


@EVERY_METRIC
def test_every_metric_says_in_one_line_what_it_means(metric):
    assert re.fullmatch(r"[A-Z0-9][^\n]*[^.\s]\.", metric.brief)


@EVERY_METRIC
def test_histograms_and_only_they_have_bounds_that_ascend(metric):
    assert bool(metric.bounds) == (metric.kind == "histogram")
    assert list(metric.bounds) == sorted(set(metric.bounds))
    assert all(bound > 0 for bound in metric.bounds)


@pytest.mark.parametrize(
    ("bounds", "first_s", "last_s"),
    [
        (catalog.STEP_BOUNDS_S, 0.001, 600.0),
        (catalog.WAIT_BOUNDS_S, 0.001, 3600.0),
        (catalog.LONG_BOUNDS_S, 0.01, 3600.0),
    ],
)
def test_bounds_reach_from_milliseconds_to_minutes_in_even_steps(bounds, first_s, last_s):
    assert (bounds[0], bounds[-1]) == (first_s, last_s)
    assert all(1.1 < upper / lower < 2.6 for lower, upper in itertools.pairwise(bounds))


@EVERY_METRIC
def test_labels_of_a_series_do_not_clash(metric):
    labels = [attribute.label for attribute in (*catalog.IDENTITY, *metric.attributes)]
    assert len(labels) == len(set(labels))
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", label) for label in labels)
    # le is the histogram's own; Prometheus writes the others itself.
    assert not {"le", "quantile", "job", "instance", "__name__"} & set(labels)


def test_no_two_attributes_of_the_catalog_become_one_label():
    attributes = {id(attribute): attribute for metric in catalog.METRICS for attribute in metric.attributes}
    labels = Counter(attribute.label for attribute in (*attributes.values(), *catalog.IDENTITY))
    assert not {label for label, times in labels.items() if times > 1}


@EVERY_METRIC
def test_every_attribute_is_bounded(metric):
    for attribute in metric.attributes:
        assert bool(attribute.values) != bool(attribute.cap), attribute.name


@EVERY_METRIC
def test_no_attribute_holds_what_is_different_each_time(metric):
    names = {attribute.name.rsplit(".", 1)[-1] for attribute in metric.attributes}
    assert not {"step", "path", "error", "message", "time"} & names


def test_no_sample_name_stands_for_two_metrics():
    suffixes = {"counter": ("", "_created"), "histogram": ("", "_bucket", "_sum", "_count", "_created")}
    names = []
    for metric in catalog.METRICS:
        name = prometheus_name(metric)
        names += [name + suffix for suffix in suffixes.get(metric.kind, ("",))]
        if metric.kind == "counter":
            names.append(name.removesuffix("_total"))  # the family's name in OpenMetrics
    assert not {name for name, times in Counter(names).items() if times > 1}


@EVERY_METRIC
def test_events_that_feed_a_metric_are_in_the_catalog(metric):
    assert set(metric.events) <= set(catalog.EVENTS)


def test_every_event_has_the_fields_that_the_log_adds_everywhere():
    assert all(fields >= catalog.EVERYWHERE for fields in catalog.EVENTS.values())


def test_metrics_are_told_apart_by_identity_and_names_are_unique():
    assert (
        len({metric.name for metric in catalog.METRICS}) == len(catalog.METRICS) == len(set(catalog.METRICS))
    )
