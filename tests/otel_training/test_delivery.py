"""Exporters under watch: few lines in the log, bounded memory, nothing lost that can still be sent."""

import logging
import threading

import pytest
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, get_value
from opentelemetry.sdk import metrics as sdk
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    MetricExporter,
    MetricExportResult,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from otel_training.delivery import (
    MAX_UNSENT_DELTAS,
    GuardedProcessor,
    SpanDelivery,
    Watch,
    WatchedMetricExporter,
)
from otel_training.guard import REPEAT_AFTER_S, Guard, Notices

SDK_LOGGER = logging.getLogger("opentelemetry.exporter.otlp.test")


class Time:
    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def time_s():
    return Time()


@pytest.fixture
def watch(time_s):
    watch = Watch("export of things to there", Notices(time_s))
    yield watch
    watch.close()


def lines(caplog):
    return [record.getMessage() for record in caplog.records]


def fails():
    raise ConnectionError("refused")


# --- what is told ---


def test_a_delivery_is_silent(watch, caplog):
    assert watch.deliver(lambda: "ok", "ok")
    assert lines(caplog) == []


def test_a_failure_is_told_at_once_then_every_five_minutes_and_its_end_once(watch, time_s, caplog):
    for second in range(0, 900, 10):
        time_s.now_s = float(second)
        assert not watch.deliver(fails, "ok")
    assert watch.deliver(lambda: "ok", "ok")
    assert watch.deliver(lambda: "ok", "ok")
    first, second, third, last = lines(caplog)
    assert first == "export of things to there fails, training goes on: ConnectionError: refused"
    assert second == third == first + " (29 more since the last line on this)"
    assert last == "export of things to there: delivered again"


def test_a_receiver_that_comes_and_goes_is_two_lines_in_five_minutes(watch, time_s, caplog):
    for second in range(0, int(REPEAT_AFTER_S), 10):
        time_s.now_s = float(second)
        watch.deliver(fails, "ok")
        watch.deliver(lambda: "ok", "ok")
    assert len(lines(caplog)) == 2


def test_a_failure_without_an_exception_is_told_too(watch, caplog):
    assert not watch.deliver(lambda: "no", "ok")
    assert lines(caplog) == [
        "export of things to there fails, training goes on: the exporter reported a failure"
    ]


def test_an_sdk_s_line_for_each_retry_becomes_our_one_line(caplog):
    SDK_LOGGER.setLevel(logging.DEBUG)
    watch = Watch("things", Notices())

    def retries():
        for attempt in range(5):
            SDK_LOGGER.warning("retry %d\nand more", attempt)
            SDK_LOGGER.debug("detail")
        return "no"

    watch.deliver(retries, "ok")
    watch.close()
    assert lines(caplog) == ["things fails, training goes on: retry 0 and more"]


def test_other_threads_log_as_ever_and_so_does_this_one_afterwards(caplog):
    watch = Watch("things", Notices())

    def export():
        other = threading.Thread(target=SDK_LOGGER.warning, args=("of another thread",))
        other.start()
        other.join()
        return "ok"

    watch.deliver(export, "ok")
    SDK_LOGGER.warning("afterwards")
    watch.close()
    assert lines(caplog) == ["of another thread", "afterwards"]


def test_closing_leaves_the_loggers_as_they_were():
    before = list(SDK_LOGGER.filters)
    watch = Watch("things", Notices())
    assert len(SDK_LOGGER.filters) == len(before) + 1
    watch.close()
    assert SDK_LOGGER.filters == before


def test_what_is_hidden_is_in_no_line(caplog):
    watch = Watch("things", Notices(), lambda text: text.replace("secret", "***"))

    def export():
        SDK_LOGGER.error("url ?token=secret")
        raise RuntimeError("secret")

    watch.deliver(export, "ok")
    watch.close()
    assert lines(caplog) == ["things fails, training goes on: url ?token=***"]


def test_requests_of_an_export_are_no_subject_of_the_user_s_telemetry(watch):
    seen = []
    watch.deliver(lambda: seen.append(get_value(_SUPPRESS_INSTRUMENTATION_KEY)), None)
    assert seen == [True]
    assert get_value(_SUPPRESS_INSTRUMENTATION_KEY) is None


# --- metrics ---


class Metrics(MetricExporter):
    def __init__(self, temporality=None):
        super().__init__(preferred_temporality=temporality)
        self.up = True
        self.sent = []
        self.ends = 0

    def export(self, metrics_data, timeout_millis=10_000, **kwargs):
        if self.up:
            self.sent.append(metrics_data)
        return MetricExportResult.SUCCESS if self.up else MetricExportResult.FAILURE

    def force_flush(self, timeout_millis=10_000):
        return True

    def shutdown(self, timeout_millis=30_000, **kwargs):
        self.ends += 1
        raise RuntimeError("no")


def watched(exporter):
    losses = []
    return WatchedMetricExporter(exporter, Watch("metrics", Notices()), losses.append), losses


def test_a_cumulative_export_that_failed_is_in_the_next():
    exporter = Metrics()
    watched_exporter, losses = watched(exporter)
    exporter.up = False
    assert watched_exporter.export("1") is MetricExportResult.FAILURE
    assert not watched_exporter.delivered
    exporter.up = True
    assert watched_exporter.export("2") is MetricExportResult.SUCCESS
    assert watched_exporter.delivered
    assert (exporter.sent, losses) == (["2"], [1])


def test_deltas_that_failed_go_before_the_next():
    exporter = Metrics({sdk.Counter: AggregationTemporality.DELTA})
    watched_exporter, losses = watched(exporter)
    exporter.up = False
    for number in range(3):
        watched_exporter.export(number)
    exporter.up = True
    watched_exporter.export(3)
    assert (exporter.sent, losses) == ([0, 1, 2, 3], [])


def test_deltas_for_a_dead_receiver_are_bounded_and_counted():
    exporter = Metrics({sdk.Counter: AggregationTemporality.DELTA})
    watched_exporter, losses = watched(exporter)
    exporter.up = False
    for number in range(1000):
        watched_exporter.export(number)
    assert len(losses) == 1000 - MAX_UNSENT_DELTAS
    exporter.up = True
    watched_exporter.export(1000)
    assert exporter.sent == list(range(1000 - MAX_UNSENT_DELTAS, 1001))


def test_shutdown_counts_what_is_left_and_stops_listening_though_the_exporter_raises():
    exporter = Metrics({sdk.Counter: AggregationTemporality.DELTA})
    before = list(SDK_LOGGER.filters)
    watched_exporter, losses = watched(exporter)
    exporter.up = False
    watched_exporter.export(1)
    with pytest.raises(RuntimeError):
        watched_exporter.shutdown()
    assert (losses, exporter.ends) == ([1], 1)
    assert SDK_LOGGER.filters == before


# --- spans ---


class Spans(SpanExporter):
    """Takes spans, but for those whose name it refuses and those that come while it is down."""

    def __init__(self):
        self.up = True
        self.refused = "-"
        self.calls = 0
        self.batches = []
        self.ends = 0

    def export(self, spans):
        self.calls += 1
        names = [span.name for span in spans]
        if not self.up or self.refused in names:
            return SpanExportResult.FAILURE
        self.batches.append(names)
        return SpanExportResult.SUCCESS

    def names(self):
        return [name for batch in self.batches for name in batch]

    def shutdown(self):
        self.ends += 1


class Delivery:
    """A delivery with its exporter, losses and a tracer that feeds it."""

    def __init__(self, queue_size=10, batch_size=4, sampler=None):
        self.exporter = Spans()
        self.losses = []
        self.full = 0
        self.delivery = SpanDelivery(
            self.exporter,
            Watch("spans", Notices()),
            queue_size=queue_size,
            batch_size=batch_size,
            on_full=self.on_full,
            on_loss=lambda count, reason: self.losses.append((count, reason)),
        )
        provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        provider.add_span_processor(self.delivery)
        self._tracer = provider.get_tracer("test")

    def on_full(self):
        self.full += 1

    def end(self, *names):
        for name in names:
            self._tracer.start_span(str(name)).end()


@pytest.fixture
def delivery():
    delivery = Delivery()
    yield delivery
    delivery.delivery.finish()


def test_spans_go_out_in_order_and_in_batches(delivery):
    delivery.end(*range(6))
    assert delivery.full == 1
    assert delivery.delivery.export()
    assert delivery.exporter.batches == [["0", "1", "2", "3"], ["4", "5"]]
    assert delivery.delivery.export()
    assert delivery.exporter.calls == 2


def test_spans_that_are_not_sampled_stay_here():
    delivery = Delivery(sampler=ALWAYS_OFF)
    delivery.end("a")
    assert delivery.delivery.export()
    assert delivery.exporter.calls == 0
    delivery.delivery.finish()


def test_a_full_queue_counts_what_it_has_no_room_for(delivery):
    delivery.end(*range(15))
    assert delivery.losses == [(1, "queue")] * 5
    delivery.delivery.export()
    assert delivery.exporter.names() == [str(number) for number in range(10)]


def test_spans_of_an_outage_arrive_afterwards_however_long_it_was(delivery):
    delivery.exporter.up = False
    for number in range(8):
        delivery.end(number)
        for _ in range(50):
            assert not delivery.delivery.export()
    delivery.exporter.up = True
    assert delivery.delivery.export()
    assert sorted(delivery.exporter.names()) == [str(number) for number in range(8)]
    assert delivery.losses == []


def test_a_dead_receiver_is_asked_once_per_export(delivery):
    delivery.exporter.up = False
    for number in range(5):
        delivery.end(number)
        delivery.delivery.export()
    calls = delivery.exporter.calls
    delivery.delivery.export()
    assert delivery.exporter.calls == calls + 1


def test_memory_for_a_dead_receiver_is_bounded(delivery):
    delivery.exporter.up = False
    for number in range(1000):
        delivery.end(number)
        delivery.delivery.export()
    assert delivery.losses == [(1, "queue")] * 990
    delivery.exporter.up = True
    delivery.delivery.export()
    assert len(delivery.exporter.names()) == 10


def test_a_batch_that_is_refused_while_others_pass_is_given_up(delivery):
    delivery.exporter.refused = "bad"
    delivery.end("bad", "with it")
    delivery.delivery.export()
    for number in range(5):
        delivery.end(number)
        delivery.delivery.export()
    assert delivery.exporter.batches == [["0"], ["1"], ["2"], ["3"], ["4"]]
    assert delivery.losses == [(2, "export")]


def test_a_refused_batch_does_not_stand_in_the_way_of_others_that_failed(delivery):
    delivery.exporter.up = False
    delivery.exporter.refused = "bad"
    for name in ("bad", "good 1", "good 2"):
        delivery.end(name)
        delivery.delivery.export()
    delivery.exporter.up = True
    for number in range(4):
        delivery.end(number)
        delivery.delivery.export()
    assert {"good 1", "good 2"} <= set(delivery.exporter.names())
    assert delivery.losses == [(1, "export")]


def test_the_end_counts_what_is_left(delivery):
    delivery.exporter.up = False
    delivery.end("a", "b")
    delivery.delivery.export()
    delivery.end("c")
    delivery.delivery.finish()
    assert delivery.losses == [(3, "export")]
    assert delivery.exporter.ends == 1


def test_spans_of_many_threads_all_arrive():
    delivery = Delivery(queue_size=10_000, batch_size=64)
    threads = [threading.Thread(target=delivery.end, args=range(200)) for _ in range(16)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        delivery.delivery.export()
    delivery.delivery.export()
    assert len(delivery.exporter.names()) == 3200
    delivery.delivery.finish()


# --- processors of the user ---


class Raises:
    def on_start(self, span, parent_context=None):
        raise RuntimeError("start")

    def on_end(self, span):
        raise RuntimeError("end")


def test_a_processor_that_raises_costs_itself_alone_and_one_line(delivery, caplog):
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(GuardedProcessor(Raises(), Guard(Notices())))
    provider.add_span_processor(delivery.delivery)
    tracer = provider.get_tracer("test")
    for name in "abc":
        tracer.start_span(name).end()
    delivery.delivery.export()
    assert delivery.exporter.names() == ["a", "b", "c"]
    assert lines(caplog) == ["span processor Raises failed, training goes on: RuntimeError: start"]
