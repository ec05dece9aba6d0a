"""torch.compile with a way back."""

import pytest
import torch
from torch import nn

from trainer.compile import CompiledForward


def _refuse(graph, inputs):
    raise RuntimeError("no compiler here\n\nlong advice")


def _fail_at_call(graph, inputs):
    def run(*args):
        raise ArithmeticError("bad kernel")

    return run


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _losses(heard):
    return [step["loss"] for step in heard.of("train_step")]


def test_a_compiled_run_equals_an_eager_one(make_run, quiet_logger, heard):
    make_run(logger=quiet_logger, max_steps=5).fit()
    expected = _losses(heard)
    heard.events.clear()
    make_run(logger=quiet_logger, max_steps=5, compile=True, compile_backend="eager").fit()
    assert heard.names[:2] == ["compile", "train_start"]
    (told,) = heard.of("compile")
    assert told["enabled"] is True
    assert told["duration_s"] > 0
    assert "reason" not in told
    assert _losses(heard) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("backend", "reason"), [(_refuse, "no compiler here"), (_fail_at_call, "bad kernel")]
)
def test_a_failing_compiler_falls_back_before_the_first_step(make_run, quiet_logger, heard, backend, reason):
    make_run(logger=quiet_logger, max_steps=5).fit()
    expected = _losses(heard)
    heard.events.clear()
    result = make_run(logger=quiet_logger, max_steps=5, compile=True, compile_backend=backend).fit()
    (told,) = heard.of("compile")
    assert told["enabled"] is False
    assert reason in told["reason"]
    assert "advice" not in told["reason"]
    assert len(told["reason"]) <= 256
    assert result.time_by_state_s["compile"] == pytest.approx(told["duration_s"], rel=0.5)
    assert _losses(heard) == expected


def test_a_model_that_fails_is_told_as_itself(quiet_logger, heard):
    from trainer.trainer import Trainer

    class Failing(nn.Linear):
        def forward(self, x):
            raise KeyError("mine")

    model = Failing(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [(torch.ones(1, 2), torch.ones(1, 1))]
    trainer = Trainer(
        model, optimizer, data, device="cpu", logger=quiet_logger, compile=True, loss_fn=nn.MSELoss()
    )
    with pytest.raises(KeyError, match="mine"):
        trainer.fit()
    assert heard.of("train_end")[0]["error"] == "KeyError: 'mine'"


def test_a_later_shape_that_cannot_be_compiled_falls_back():
    compiled_once = []

    def backend(graph, inputs):
        if compiled_once:
            raise RuntimeError("no second shape")
        compiled_once.append(graph)
        return graph.forward

    reasons = []
    forward = CompiledForward(nn.Linear(2, 1), backend=backend, on_fallback=reasons.append)
    assert forward(torch.ones(3, 2)).shape == (3, 1)
    assert reasons == []
    assert forward(torch.ones(5, 2)).shape == (5, 1)
    assert len(reasons) == 1
    assert forward(torch.ones(6, 2)).shape == (6, 1)
    assert len(reasons) == 1


def test_warming_up_leaves_no_trace():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rng = torch.get_rng_state()
    forward = CompiledForward(model, backend="eager", on_fallback=pytest.fail)
    assert forward.warm_up(lambda: forward(torch.randn(4, 2)).sum()) is None
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(parameter.grad is None for parameter in model.parameters())
