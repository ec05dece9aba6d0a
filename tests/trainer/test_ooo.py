"""Stages on streams: which ones, who waits for whom, and when not at all."""

import contextlib

import pytest
import torch
from torch import nn

from trainer.model import GPT
from trainer.ooo import OooReport, StageScheduler, find_stages, plan_ooo

CPU = torch.device("cpu")


class FakeStream:
    """A stream that knows what has been done before its next operation: a set of operations."""

    def __init__(self, name):
        self.name = name
        self.known = set()

    def wait_stream(self, other):
        self.known |= other.known

    def do(self, operation):
        self.known.add(operation)


class FakeStreams:
    """Streams on a machine without any: they keep what must have happened before what."""

    def __init__(self):
        self.main = self.now = FakeStream("main")
        self.made = []
        self.kept = []

    def make(self):
        self.made.append(FakeStream(f"stream {len(self.made)}"))
        return self.made[-1]

    def current(self):
        return self.now

    @contextlib.contextmanager
    def inside(self, stream):
        former, self.now = self.now, stream
        yield
        self.now = former

    def keep(self, tensor, stream):
        self.kept.append((tensor, stream.name))


class Stage(nn.Linear):
    """A stage that notes what has surely happened before it."""

    def __init__(self, name, streams):
        super().__init__(2, 2)
        self.name, self.streams = name, streams

    def forward(self, x):
        self.ran_on = self.streams.now.name
        self.before = set(self.streams.now.known)
        self.streams.now.do(self.name)
        return super().forward(x)


@pytest.fixture
def streams():
    return FakeStreams()


@pytest.fixture
def stages(streams):
    return {name: Stage(name, streams) for name in ("a", "b", "c")}


def test_stages_take_turns_on_the_streams_and_what_follows_waits_for_all(streams, stages):
    scheduler = StageScheduler(stages, streams, 2)
    streams.main.do("batch")
    with scheduler.scheduled():
        x = torch.ones(1, 2)
        for stage in stages.values():
            x = stage(x)
    assert [stage.ran_on for stage in stages.values()] == ["stream 0", "stream 1", "stream 0"]
    assert stages["a"].before == {"batch"}
    assert stages["b"].before == {"batch", "a"}
    assert stages["c"].before == {"batch", "a", "b"}
    assert streams.main.known == {"batch", "a", "b", "c"}
    assert streams.now is streams.main


def test_stages_that_need_nothing_of_each_other_do_not_wait_for_each_other(streams, stages):
    scheduler = StageScheduler(stages, streams, 3)
    batch = torch.ones(1, 2)
    with scheduler.scheduled([{"inputs": [batch]}]):
        left, right = stages["a"](batch), stages["b"](batch)
        stages["c"](left)
    assert stages["b"].before == set()
    assert stages["c"].before == {"a"}
    assert right.requires_grad


def test_work_of_the_surroundings_is_waited_for(streams, stages):
    scheduler = StageScheduler(stages, streams, 3)
    batch = torch.ones(1, 2)
    with scheduler.scheduled([batch]):
        made = stages["a"](batch)
        streams.main.do("sum")
        stages["b"](made + 1)  # a new tensor, made by the surroundings
        assert stages["b"].before == {"a", "sum"}
        with torch.no_grad():
            batch.add_(1)  # the batch, changed by the surroundings
        stages["c"](batch)
        assert "sum" in stages["c"].before


def test_a_tensor_that_takes_the_place_of_another_is_not_taken_for_it(streams, stages):
    scheduler = StageScheduler(stages, streams, 3)
    with scheduler.scheduled():
        for _ in range(50):  # ids are used again
            stages["a"](torch.ones(1, 2))
            streams.main.do("new")
            stages["b"](torch.ones(1, 2))
            assert "new" in stages["b"].before
            streams.main.known.discard("new")
            for stream in streams.made:
                stream.known.discard("new")


def test_memory_is_kept_for_the_stream_that_reads_it(streams, stages):
    scheduler = StageScheduler(stages, streams, 2)
    batch = torch.ones(1, 2)
    with scheduler.scheduled([batch]):
        made = stages["b"](stages["a"](batch))
    names = [name for tensor, name in streams.kept if tensor is batch]
    assert names == ["stream 0"]
    assert [name for tensor, name in streams.kept if tensor is made] == ["main"]


def test_outside_of_the_block_and_after_closing_nothing_is_scheduled(streams, stages):
    scheduler = StageScheduler(stages, streams, 2)
    stages["a"](torch.ones(1, 2))
    assert stages["a"].ran_on == "main"
    scheduler.close()
    with scheduler.scheduled():
        stages["a"](torch.ones(1, 2))
    assert stages["a"].ran_on == "main"


def test_a_stage_that_raises_gives_its_stream_back(streams, stages):
    scheduler = StageScheduler(stages, streams, 2)
    with pytest.raises(RuntimeError, match="shapes"), scheduler.scheduled():
        stages["a"](torch.ones(1, 3))
    assert streams.now is streams.main
    with scheduler.scheduled():
        stages["b"](torch.ones(1, 2))
    assert stages["b"].ran_on == "stream 1"


def test_gradients_are_those_of_the_ordinary_pass(streams, stages):
    def gradients(block):
        model = nn.ModuleDict(stages)
        model.zero_grad()
        with block:
            loss = sum(stage(torch.ones(1, 2)).sum() for stage in stages.values())
        loss.backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    expected = gradients(contextlib.nullcontext())
    found = gradients(StageScheduler(stages, streams, 2).scheduled())
    assert all(map(torch.equal, found, expected))


# ---- Which stages ----


def test_stages_of_the_gpt():
    names = list(find_stages(GPT(layers=3, width=8, heads=2, context=4)))
    assert names == [
        *["token_embedding", "position_embedding"],
        *["blocks.0", "blocks.1", "blocks.2"],
        *["norm", "head"],
    ]


def test_containers_are_opened_and_modules_without_parameters_or_met_before_are_left_out():
    shared = nn.Linear(2, 2)
    model = nn.Sequential(
        nn.ModuleDict({"x": shared, "y": nn.ReLU()}), nn.Sequential(shared, nn.Linear(2, 2))
    )
    assert list(find_stages(model)) == ["0.x", "1.1"]


def test_a_model_may_name_its_stages():
    model = GPT(layers=2, width=8, heads=2, context=4)
    model.ooo_stages = ["blocks.1", "blocks.0.attention"]
    assert list(find_stages(model)) == ["blocks.1", "blocks.0.attention"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["nope", "norm"], "'nope' is no module of GPT"),
        ([""], "'' is no module"),
        (["norm", "norm"], "'norm' is named twice"),
        (["blocks.0", "blocks.0.attention"], r"'blocks\.0\.attention' lies inside 'blocks\.0'"),
    ],
)
def test_stages_that_cannot_be(names, message):
    model = GPT(layers=2, width=8, heads=2, context=4)
    model.ooo_stages = names
    with pytest.raises(ValueError, match=message):
        find_stages(model)


# ---- When ----


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"streams": None}, "needs a CUDA device, this is cpu"),
        ({"compiled": True}, "the model is compiled"),
        ({"ranks": 2}, "2 ranks train together"),
        ({"model": nn.Sequential(nn.Linear(2, 2), nn.ReLU())}, "1 of at least 2 stages"),
    ],
)
def test_why_it_is_off(streams, options, reason):
    model = options.pop("model", nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    given = {"compiled": False, "ranks": 1, "streams": streams, **options}
    report, scheduler = plan_ooo(model, CPU, 4, **given)
    assert scheduler is None
    assert (report.enabled, report.streams) == (False, 0)
    assert reason in report.reason


def test_no_more_streams_than_stages(streams):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    report, scheduler = plan_ooo(model, CPU, 4, compiled=False, ranks=1, streams=streams)
    assert report == OooReport(True, "2 stages on 2 streams", 2, ("0", "1"))
    assert scheduler.stream_count == 2


@pytest.mark.parametrize("count", [0, 9])
def test_a_number_of_streams_out_of_range(streams, stages, count):
    with pytest.raises(ValueError, match="must be 1 to 8"):
        StageScheduler(stages, streams, count)


def test_a_trainer_says_why_it_is_off(make_run, quiet_logger, heard):
    make_run(logger=quiet_logger, max_steps=1, ooo_streams=4).fit()
    assert heard.names[:2] == ["ooo_backprop", "train_start"]
    (told,) = heard.of("ooo_backprop")
    assert told == {**heard.of("train_start")[0]["ooo_backprop"], "elapsed_s": told["elapsed_s"]}
    assert (told["enabled"], told["streams"], told["stages"]) == (False, 0, [])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("count", [1, 2, 4])
def test_gradients_on_streams_equal_those_of_the_ordinary_pass(count):
    device = torch.device("cuda")
    torch.manual_seed(1)
    model = GPT(layers=4, width=64, heads=4, context=32).to(device)
    tokens = torch.randint(256, (8, 32), device=device)

    def gradients(block):
        model.zero_grad()
        with block:
            _, loss = model(tokens, tokens)
        loss.backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    expected = gradients(contextlib.nullcontext())
    report, scheduler = plan_ooo(model, device, count, compiled=False, ranks=1)
    assert (report.enabled, report.streams) == (True, count)
    for _ in range(20):
        found = gradients(scheduler.scheduled([tokens]))
        torch.cuda.synchronize()
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)
