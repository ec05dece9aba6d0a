import pytest

from otel_training import catalog
from otel_training.artifacts.variables import CHOSEN_RANKS, interpolated, of_runs


def test_each_variable_offers_what_those_before_it_leave():
    queries = {variable.build().name: variable.build().query for variable in of_runs()}
    assert queries["job"] == "label_values(training_bridge_events_total, job)"
    assert queries["rank"] == (
        'label_values(training_bridge_events_total{job=~"$job", training_run_name=~"$name",'
        ' training_run_id=~"$run"}, training_rank)'
    )


def test_the_chosen_ranks_are_those_of_all_variables():
    assert CHOSEN_RANKS.series(catalog.LOSS) == (
        'training_loss{job=~"$job", training_run_name=~"$name", training_run_id=~"$run",'
        ' training_rank=~"$rank"}'
    )


def test_variables_are_filled_in_the_longest_name_first():
    values = {"__range": "1h", "__rate_interval": "1m", "run": "r", "rank": "0"}
    assert interpolated("$rank $run ${run} [$__range] [$__rate_interval]", values) == "0 r r [1h] [1m]"


def test_a_variable_without_a_value_is_an_error():
    with pytest.raises(ValueError, match=r"no value for a variable in .*\$job"):
        interpolated("up{job=$job}", {"run": "r"})
