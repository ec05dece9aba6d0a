"""Calls that may fail."""

import pytest

from trainer.isolation import Tally, attempt


def test_attempt_returns_the_result_or_the_error():
    assert attempt(int, "12", base=3) == (5, None)
    result, error = attempt(int, "x")
    assert result is None
    assert isinstance(error, ValueError)


@pytest.mark.parametrize("request_to_end", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_attempt_lets_a_request_to_end_go_up(request_to_end):
    def stop():
        raise request_to_end

    with pytest.raises(request_to_end):
        attempt(stop)


def test_tally_tells_at_growing_intervals():
    tally = Tally()
    told = [tally.count for _ in range(12_345) if tally.add()]
    assert told == [1, 10, 100, 1000, 10_000]
    assert tally.count == 12_345
