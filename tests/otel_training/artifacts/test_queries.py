import pytest

from otel_training import catalog
from otel_training.artifacts.queries import Queries, aggregate, any_of, equals

QUERIES = Queries('job="x"', window="5m")


def test_a_selector_has_the_common_matchers_first():
    assert QUERIES.series(catalog.STEPS, 'a="b"') == 'training_steps_total{job="x", a="b"}'


def test_without_matchers_a_selector_is_the_name():
    assert Queries(window="1m").series(catalog.LOSS) == "training_loss"


def test_a_fraction_is_selected_in_both_spellings():
    assert QUERIES.series(catalog.GOODPUT_UTILIZATION) == (
        '{__name__=~"training_goodput_utilization|training_goodput_utilization_ratio", job="x"}'
    )


def test_the_window_of_a_rate():
    assert QUERIES.rate(catalog.STEPS) == 'rate(training_steps_total{job="x"}[5m])'
    assert QUERIES.rate(catalog.STEPS, window="1h") == 'rate(training_steps_total{job="x"}[1h])'


def test_the_mean_is_sum_by_count():
    assert QUERIES.mean(catalog.STEP_DURATION, ("job",)) == (
        'sum by (job) (rate(training_step_duration_seconds_sum{job="x"}[5m]))'
        ' / sum by (job) (rate(training_step_duration_seconds_count{job="x"}[5m]))'
    )


def test_a_quantile_keeps_the_buckets_bounds():
    assert QUERIES.quantile(0.99, catalog.STEP_DURATION, ("job",)) == (
        "histogram_quantile(0.99, sum by (job, le)"
        ' (rate(training_step_duration_seconds_bucket{job="x"}[5m])))'
    )


def test_matchers_of_attributes():
    assert equals(catalog.TIME_STATE, "step") == 'training_state="step"'
    assert any_of(catalog.TIME_STATE, "step", "idle") == 'training_state=~"step|idle"'
    assert equals(catalog.EVENT_NAME, "anything") == 'training_event_name="anything"'


@pytest.mark.parametrize("make", [equals, any_of])
def test_a_value_that_the_attribute_never_has_is_an_error(make):
    with pytest.raises(ValueError, match=r"training\.state has the values .*not \['stepp'\]"):
        make(catalog.TIME_STATE, "stepp")


def test_aggregation():
    assert aggregate("sum", "x", ("a", "b")) == "sum by (a, b) (x)"
