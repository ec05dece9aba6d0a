"""No failure of the bridge reaches training, and none floods the log."""

import pytest

from otel_training.guard import REPEAT_AFTER_S, Guard, Notices, attempt, describe, failure, outcome


class UnspeakableError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


@pytest.fixture
def now_s():
    return [1000.0]


@pytest.fixture
def notices(now_s):
    return Notices(clock=lambda: now_s[0])


def lines(caplog):
    return [record.getMessage() for record in caplog.records]


def fail(error):
    raise error


def test_a_part_that_works_says_so(notices, caplog):
    seen = []
    assert Guard(notices).run("part", seen.append, 7) is True
    assert seen == [7]
    assert lines(caplog) == []


@pytest.mark.parametrize(
    "error", [ValueError("no"), UnspeakableError(), RecursionError(), MemoryError(), StopIteration()]
)
def test_a_part_that_fails_is_told_and_goes_no_further(notices, caplog, error):
    assert Guard(notices).run("part", fail, error) is False
    (line,) = lines(caplog)
    assert line.startswith(f"part failed, training goes on: {type(error).__name__}")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_what_ends_the_program_goes_through(notices, error):
    with pytest.raises(type(error)):
        Guard(notices).run("part", fail, error)
    with pytest.raises(type(error)):
        attempt(fail, error)


def test_a_log_that_fails_does_not_reach_training(notices):
    notices.warn = fail
    assert Guard(notices).run("part", fail, ValueError()) is False


def test_a_subject_has_a_line_at_once_and_then_a_summary_every_five_minutes(notices, now_s, caplog):
    for _ in range(100):
        notices.warn("export", "no answer")
    now_s[0] += REPEAT_AFTER_S - 1
    notices.warn("export", "no answer")
    assert lines(caplog) == ["no answer"]
    now_s[0] += 1
    notices.warn("export", "no answer")
    notices.warn("export", "no answer")
    assert lines(caplog)[1:] == ["no answer (100 more since the last line on this)"]
    now_s[0] += REPEAT_AFTER_S
    notices.warn("export", "no answer")
    assert lines(caplog)[2:] == ["no answer (1 more since the last line on this)"]


def test_subjects_do_not_silence_each_other(notices, caplog):
    for subject in "ab":
        notices.warn(subject, f"{subject} failed")
    assert lines(caplog) == ["a failed", "b failed"]


def test_a_recovery_is_told_once_and_only_after_trouble(notices, caplog):
    notices.recovered("export", "works again")
    notices.warn("export", "no answer")
    notices.recovered("export", "works again")
    notices.recovered("export", "works again")
    assert lines(caplog) == ["no answer", "works again"]


def test_what_fails_and_recovers_in_turns_does_not_flood_the_log(notices, caplog):
    for _ in range(50):
        notices.warn("export", "no answer")
        notices.recovered("export", "works again")
    assert len(lines(caplog)) == 2


def test_attempt_gives_the_result_or_none():
    assert attempt(int, "7") == 7
    assert attempt(int, "seven") is None


def test_callers_with_words_of_their_own_are_given_the_exception():
    error = ValueError("no")
    assert outcome(fail, error) == (None, error)
    assert outcome(int, "7") == (7, None)
    assert failure(fail, error) is error
    assert failure(int, "7") is None


@pytest.mark.parametrize(
    ("error", "described"),
    [
        (ValueError("a\n b"), "ValueError: a b"),
        (ValueError(), "ValueError"),
        (UnspeakableError(), "UnspeakableError"),
        (ValueError("x" * 1000), "ValueError: " + "x" * 288),
    ],
)
def test_an_exception_is_described_in_one_short_line(error, described):
    assert describe(error) == described
