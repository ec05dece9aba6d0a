"""Single spans: times, parents, attributes, errors."""

import logging
import math

import pytest
import torch
from opentelemetry import trace
from opentelemetry.trace import INVALID_SPAN_CONTEXT, StatusCode, set_span_in_context

from otel_training.catalog import spans
from otel_training.clock import Moment
from otel_training.span_writer import ROOT, SpanWriter, clean

IDENTITY = {"training.run.id": "r1", "training.run.name": "name", "training.rank": 3}


@pytest.fixture
def writer(span_box, set_clock):
    return SpanWriter(span_box.tracer, IDENTITY, set_clock.now())


def test_times_follow_the_monotonic_clock(writer, span_box, set_clock):
    now = set_clock.now()
    writer.whole(spans.COMPILE_SPAN, now.monotonic_s + 1.0, now.monotonic_s + 2.5, ROOT, {})
    span = span_box.one("training.compile")
    assert span.start_time == now.unix_ns + 1_000_000_000
    assert span.end_time == now.unix_ns + 2_500_000_000


def test_a_wall_clock_set_back_makes_no_span_end_before_it_starts(span_box):
    writer = SpanWriter(span_box.tracer, {}, Moment(0.0, 2000.0))
    span = writer.start(spans.RUN_SPAN, 5.0, ROOT, {})
    writer.end(span, 6.0, {})  # whatever the wall clock says by now
    run = span_box.one("training.run")
    assert run.end_time - run.start_time == 1_000_000_000


def test_a_negative_duration_becomes_zero(writer, span_box):
    writer.whole(spans.COMPILE_SPAN, 1002.0, 1001.0, ROOT, {})
    span = span_box.one("training.compile")
    assert span.start_time == span.end_time


def test_identity_is_on_every_span(writer, span_box):
    writer.whole(spans.COMPILE_SPAN, 1.0, 2.0, ROOT, {spans.STEP: 1})
    assert dict(span_box.one("training.compile").attributes) == {**IDENTITY, "training.step.number": 1}


def test_the_parent_is_the_given_one_and_never_the_thread_s(writer, span_box):
    outer = span_box.tracer.start_span("outer")
    with trace.use_span(outer, end_on_exit=True):
        root = writer.start(spans.RUN_SPAN, 1.0, ROOT, {})
        writer.whole(spans.COMPILE_SPAN, 1.0, 2.0, set_span_in_context(root, ROOT), {})
    writer.end(root, 2.0, {})
    run = span_box.one("training.run")
    assert run.parent is None
    assert span_box.one("training.compile").parent.span_id == run.context.span_id


def test_links_leave_out_what_is_no_span(writer, span_box):
    other = span_box.tracer.start_span("other")
    context = other.get_span_context()
    writer.end(writer.start(spans.WINDOW_SPAN, 1.0, ROOT, {}, (context, INVALID_SPAN_CONTEXT)), 2.0, {})
    assert [link.context for link in span_box.one("training.window").links] == [context]


@pytest.mark.parametrize(
    ("error", "kind", "message", "description"),
    [
        (RuntimeError("out of memory"), "RuntimeError", "out of memory", "RuntimeError: out of memory"),
        ("ValueError: a: b", "ValueError", "a: b", "ValueError: a: b"),
        ("torch.OutOfMemoryError: 2 GiB", "torch.OutOfMemoryError", "2 GiB", "torch.OutOfMemoryError: 2 GiB"),
        (KeyboardInterrupt(), "KeyboardInterrupt", "", "KeyboardInterrupt"),
        ("no compiler here", None, "no compiler here", "no compiler here"),
        ("TimeoutError", "TimeoutError", "", "TimeoutError"),
    ],
)
def test_an_error_gives_status_and_exception_event(writer, span_box, error, kind, message, description):
    writer.whole(spans.COMPILE_SPAN, 1.0, 2.0, ROOT, {}, error)
    span = span_box.one("training.compile")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, description)
    [event] = span.events
    assert event.name == "exception"
    assert event.attributes.get("exception.type") == kind
    assert event.attributes["exception.message"] == message
    assert event.timestamp == span.end_time


def test_a_long_error_is_cut(writer, span_box):
    writer.whole(spans.COMPILE_SPAN, 1.0, 2.0, ROOT, {}, "E: " + "x" * 10_000)
    assert len(span_box.one("training.compile").status.description) == 256


def test_without_an_error_the_status_stays_unset(writer, span_box):
    writer.whole(spans.COMPILE_SPAN, 1.0, 2.0, ROOT, {})
    span = span_box.one("training.compile")
    assert span.status.status_code is StatusCode.UNSET
    assert span.events == ()


class Rude:
    def __str__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, True),
        (3, 3),
        (2**70, float(2**70)),
        (0.5, 0.5),
        (torch.tensor(2.5), 2.5),
        ("bf16", "bf16"),
        ("\ud800", "?"),
        (torch.float32, "torch.float32"),
        (Rude(), "Rude"),
        (None, None),
        (math.nan, None),
        (math.inf, None),
        (torch.tensor(math.nan), None),
    ],
)
def test_attributes_are_what_otlp_can_carry(value, expected, caplog):
    with caplog.at_level(logging.WARNING):
        found = clean({spans.STEP: value})
    assert found.get("training.step.number") == expected
    assert type(found.get("training.step.number")) is type(expected)
    assert caplog.records == []


def test_texts_are_cut_at_their_attribute_s_length():
    assert len(clean({spans.PATH: "p" * 1000})["training.checkpoint.path"]) == 256
