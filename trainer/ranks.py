"""The processes that train one model together, on PyTorch's own engine (DistributedDataParallel)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process's place among those that train together, and what they tell each other.

    What ranks tell each other travels over gloo from host to host: no device is waited for. Each method is
    called by all ranks, in the same order. A rank alone calls them too, and they cost nothing.

    Args:
        rank: This process, from 0.
        size: How many there are.
        local_rank: This process on its host, from 0.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which owns folder, checkpoints, text and summary."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether there is no other rank."""
        return self.size == 1

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the model so that its backward pass averages gradients over the ranks."""
        return model if self.is_alone else DistributedDataParallel(model)

    def without_sync(self, wrapped: nn.Module) -> AbstractContextManager[None]:
        """Return a block whose backward passes leave gradients with this rank, to be added up first."""
        if isinstance(wrapped, DistributedDataParallel):
            return wrapped.no_sync()
        return nullcontext()

    def from_first(self, call: Callable[[], T]) -> T:
        """Call on rank 0 only, and return on all ranks what it returned.

        Raises:
            Exception: What the call raised, on all ranks.
        """
        if self.is_alone:
            return call()
        answer: list[Any] = [None, None]
        if self.is_first:
            try:
                answer[0] = call()
            except BaseException as error:
                # The others wait for an answer; they get this one, and so this error.
                dist.broadcast_object_list([None, error], src=0)
                raise
        dist.broadcast_object_list(answer, src=0)
        value, raised = answer
        if raised is not None:
            raise raised
        return value  # type: ignore[no-any-return]

    def gather(self, value: T) -> list[T] | None:
        """Return the values of all ranks, by rank, on rank 0, and None elsewhere."""
        if self.is_alone:
            return [value]
        values: list[Any] | None = [None] * self.size if self.is_first else None
        dist.gather_object(value, values, dst=0)
        return values

    def highest(self, value: int) -> int:
        """Return the highest of all ranks' values."""
        if self.is_alone:
            return value
        values = torch.tensor([value])
        dist.all_reduce(values, dist.ReduceOp.MAX)
        return int(values)

    def sums(self, *values: float) -> list[float]:
        """Return each value summed over the ranks."""
        if self.is_alone:
            return list(values)
        totals = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(totals)
        return totals.tolist()


def launched_ranks(environ: Mapping[str, str] | None = None) -> Ranks:
    """Return this process's place as the launcher (torchrun) told it; without a launcher it is alone.

    Args:
        environ: Environment variables; None = the process's own.
    """
    environ = os.environ if environ is None else environ
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return Ranks()
    rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    return Ranks(rank, size, int(environ.get("LOCAL_RANK", rank)))


def present_ranks() -> Ranks:
    """Return the ranks of the process group that there is; without one, this process is alone.

    Raises:
        RuntimeError: The launcher started several ranks and there is no process group yet: each would train,
        and write, as if it were alone.
    """
    launched = launched_ranks()
    if dist.is_available() and dist.is_initialized():
        return Ranks(dist.get_rank(), dist.get_world_size(), launched.local_rank)
    if not launched.is_alone:
        raise RuntimeError(
            f"this is rank {launched.rank} of {launched.size} and there is no process group: build and train "
            "inside trainer.ranks.joined_ranks(device), or use train_from_config, which does"
        )
    return launched


def _store_of_this_attempt() -> Store:
    """Return where ranks find each other.

    Restarted by torchrun they would find the addresses of the attempt before, which nobody answers at. Agents
    of several hosts count restarts differently, so there it is up to the user:
    ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun ...``.

    Source: https://github.com/pytorch/pytorch/issues/135712.
    """
    store: Store = next(rendezvous("env://"))[0]
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if os.environ.get("GROUP_WORLD_SIZE", "1") != "1":
        return store
    return PrefixStore(f"attempt {restarts}", store)


@contextmanager
def joined_ranks(device: torch.device) -> Iterator[Ranks]:
    """Be one of the launched ranks inside the block; the process group ends with it, whatever happens.

    Args:
        device: Device of this rank.
    """
    ranks = launched_ranks()
    if ranks.is_alone or dist.is_initialized():
        yield present_ranks() if dist.is_available() else ranks
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # Both: gradients go from device to device, and words between the hosts over gloo.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    store = _store_of_this_attempt()
    dist.init_process_group(backend, store=store, rank=ranks.rank, world_size=ranks.size)
    try:
        yield ranks
    finally:
        dist.destroy_process_group()
