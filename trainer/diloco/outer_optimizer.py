"""The outer optimizer: Nesterov SGD on the global weights, whose momentum outlives its process."""

from __future__ import annotations

import torch
from torch import nn

from trainer.diloco.objects import Tensors


class OuterOptimizer:
    """Applies averaged deltas to the global weights.

    With the delta D, the mean of what the workers' weights fell short of the global ones, as its gradient:
    v <- momentum * v + D, then w <- w - lr * (D + momentum * v). Source: Douillard et al. 2023, who found
    Nesterov with lr 0.7 and momentum 0.9 best.

    Args:
        weights: The global weights to go on from, copied.
        lr: Outer learning rate, > 0.
        momentum: 0 <= momentum < 1; 0 is plain SGD.
    """

    def __init__(self, weights: Tensors, *, lr: float, momentum: float) -> None:
        self._parameters = {name: nn.Parameter(tensor.clone()) for name, tensor in weights.items()}
        self._sgd = torch.optim.SGD(
            self._parameters.values(), lr=lr, momentum=momentum, nesterov=momentum > 0.0
        )

    def step(self, delta: Tensors) -> None:
        """Apply the mean delta of an outer step."""
        for name, parameter in self._parameters.items():
            parameter.grad = delta[name]
        self._sgd.step()
        self._sgd.zero_grad(set_to_none=True)

    def weights(self) -> Tensors:
        """Return a copy of the global weights."""
        return {name: parameter.detach().clone() for name, parameter in self._parameters.items()}

    def momentum(self) -> Tensors:
        """Return a copy of the momentum by the name of the weights; empty before the first step."""
        state = self._sgd.state
        buffers = {name: state[each].get("momentum_buffer") for name, each in self._parameters.items()}
        return {name: buffer.clone() for name, buffer in buffers.items() if buffer is not None}

    def load_momentum(self, momentum: Tensors) -> None:
        """Go on with a momentum that :meth:`momentum` returned."""
        for name, buffer in momentum.items():
            self._sgd.state[self._parameters[name]]["momentum_buffer"] = buffer.clone()
