"""Out-of-order backprop: stages of a model on streams of their own, replayed in the backward pass.

Autograd runs each node of the backward pass on the stream that its forward operation ran on and makes streams
wait for each other only where one node needs the other's result. Stages that were on different streams are
thereby free to overlap, in an order that the data decides and not the program. Whether that is faster depends
on the model and the device; no gain is promised. Gradients are those of the ordinary backward pass: the test
of that needs a CUDA device and has not been run on one yet.

Source: PyTorch, "Stream semantics of backward passes", https://docs.pytorch.org/docs/stable/notes/cuda.html.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

MAX_STREAMS = 8
"""Most streams: beyond a few, kernels wait for the device and not for each other."""

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


class Streams(Protocol):
    """The part of a device's streams that scheduling needs."""

    def make(self) -> Any:
        """Return a new stream, which has ``wait_stream(other)``."""

    def current(self) -> Any:
        """Return the stream that operations of this thread go to."""

    def inside(self, stream: Any) -> AbstractContextManager[Any]:
        """Return a block whose operations go to ``stream``."""

    def keep(self, tensor: Tensor, stream: Any) -> None:
        """Keep the tensor's memory from being reused before ``stream`` is done with it."""


class CudaStreams:
    """Streams of a CUDA device.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def make(self) -> torch.cuda.Stream:
        """Return a new stream."""
        return torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def current(self) -> torch.cuda.Stream:
        """Return the current stream."""
        return torch.cuda.current_stream(self._device)

    def inside(self, stream: torch.cuda.Stream) -> AbstractContextManager[Any]:
        """Return a block on ``stream``."""
        return torch.cuda.stream(stream)

    def keep(self, tensor: Tensor, stream: torch.cuda.Stream) -> None:
        """Tell the caching allocator that ``stream`` uses the tensor."""
        if tensor.is_cuda:
            tensor.record_stream(stream)


@dataclass(frozen=True)
class OooReport:
    """Whether out-of-order backprop is on: the payload of ``ooo_backprop``.

    Args:
        enabled: Whether it is.
        reason: Why, or why not.
        streams: Streams in use.
        stages: Names of the stages, in the order of their streams' turns.
    """

    enabled: bool
    reason: str
    streams: int = 0
    stages: tuple[str, ...] = ()

    def payload(self) -> dict[str, Any]:
        """Return the event's payload."""
        stages = list(self.stages)
        return {"enabled": self.enabled, "reason": self.reason, "streams": self.streams, "stages": stages}


class StageScheduler:
    """Runs the stages of a model on streams, in turn, while :meth:`scheduled` is on.

    A stage waits for what it reads: for the stream that made a tensor when a stage made it, and otherwise
    for the surroundings' stream. The surroundings wait for each stage, because what they do with its output
    is not known here.

    Args:
        stages: The stages by name; no stage lies inside another.
        streams: Makes the streams.
        count: Streams to use, 1 to ``MAX_STREAMS``; no more than there are stages are made.

    Raises:
        ValueError: ``count`` is out of range.
    """

    def __init__(self, stages: Mapping[str, nn.Module], streams: Streams, count: int) -> None:
        if not 1 <= count <= MAX_STREAMS:
            raise ValueError(f"ooo_streams must be 1 to {MAX_STREAMS}, got {count}")
        self._streams = streams
        self._pool = [streams.make() for _ in range(min(count, len(stages)))]
        self._of_stage = {
            id(stage): self._pool[index % len(self._pool)] for index, stage in enumerate(stages.values())
        }
        self._surroundings: Any = None
        self._made: dict[int, _Made] = {}
        self._entered: list[tuple[AbstractContextManager[Any], Any]] = []
        self._handles = [
            handle
            for stage in stages.values()
            for handle in (
                stage.register_forward_pre_hook(self._enter, with_kwargs=True),
                # Also after a stage that raised: its stream must not stay the current one.
                stage.register_forward_hook(self._leave, always_call=True),
            )
        ]

    @property
    def stream_count(self) -> int:
        """Streams in use."""
        return len(self._pool)

    @contextmanager
    def scheduled(self, inputs: Iterable[Any] = ()) -> Iterator[None]:
        """Spread the stages over the streams inside the block; what follows it waits for all of them.

        Args:
            inputs: What the forward pass begins with and nobody changes: stages that read it need not wait
                for what the surroundings do meanwhile.
        """
        self._surroundings = self._streams.current()
        for stream in self._pool:
            stream.wait_stream(self._surroundings)
        for tensor in _tensors(list(inputs)):
            self._made[id(tensor)] = _Made(tensor, None)
        try:
            yield
        finally:
            for stream in self._pool:
                self._surroundings.wait_stream(stream)
            self._surroundings = None
            self._made.clear()

    def close(self) -> None:
        """Take the hooks off the stages."""
        for handle in self._handles:
            handle.remove()

    def _enter(self, stage: nn.Module, args: Any, kwargs: Any) -> None:
        if self._surroundings is None:
            return
        stream = self._of_stage[id(stage)]
        for tensor in _tensors((args, kwargs)):
            made = self._made.get(id(tensor))
            producer = self._surroundings if made is None or not made.is_still(tensor) else made.stream
            if producer is not None and producer is not stream:
                stream.wait_stream(producer)
            self._streams.keep(tensor, stream)
        block = self._streams.inside(stream)
        block.__enter__()
        self._entered.append((block, stream))

    def _leave(self, _stage: nn.Module, _args: Any, output: Any) -> None:
        if self._surroundings is None or not self._entered:
            return
        block, stream = self._entered.pop()
        block.__exit__(None, None, None)
        self._surroundings.wait_stream(stream)
        for tensor in _tensors(output):
            self._streams.keep(tensor, self._surroundings)
            self._made[id(tensor)] = _Made(tensor, stream)


class _Made:
    """Which stream made a tensor, as long as it is that tensor and unchanged; None = it was there before."""

    def __init__(self, tensor: Tensor, stream: Any) -> None:
        self.stream = stream
        self._tensor = weakref.ref(tensor)
        self._version = tensor._version

    def is_still(self, tensor: Tensor) -> bool:
        # An id is used again once its object is gone, and a change in place is work of the surroundings.
        return self._tensor() is tensor and self._version == tensor._version


def find_stages(model: nn.Module) -> dict[str, nn.Module]:
    """Return the parts of a model that can have a stream each, none inside another, by name.

    These are the modules that the model names in an attribute ``ooo_stages``, or else its children that have
    parameters; of containers (``ModuleList``, ``ModuleDict``, ``Sequential``) those inside.

    Raises:
        ValueError: ``ooo_stages`` names something that is no module of the model, twice the same, or one
            inside another.
    """
    named = getattr(model, "ooo_stages", None)
    if named is not None:
        return _named_stages(model, [str(name) for name in named])
    found: dict[str, nn.Module] = {}
    _add_children(model, "", found)
    return found


def plan_ooo(
    model: nn.Module,
    device: torch.device,
    count: int,
    *,
    compiled: bool,
    ranks: int,
    streams: Streams | None = None,
) -> tuple[OooReport, StageScheduler | None]:
    """Set out-of-order backprop up where it can work, and say why where it cannot.

    Args:
        model: The model; hooks are put on its stages.
        device: Where it is.
        count: Streams to use, 1 to ``MAX_STREAMS``.
        compiled: Whether the model is compiled: then the compiler decides the order.
        ranks: Ranks that train together: DistributedDataParallel has an order of its own.
        streams: The device's streams; None = those of CUDA, and none on other devices.

    Raises:
        ValueError: ``count`` is out of range, or the model's ``ooo_stages`` cannot be used.
    """
    if streams is None and device.type != "cuda":
        return OooReport(False, f"needs a CUDA device, this is {device.type}"), None
    if compiled:
        return OooReport(False, "the model is compiled: set train.compile to false"), None
    if ranks > 1:
        return OooReport(False, f"{ranks} ranks train together under DistributedDataParallel"), None
    stages = find_stages(model)
    if len(stages) < 2:
        names = tuple(stages)
        return OooReport(False, f"the model has {len(names)} of at least 2 stages", stages=names), None
    scheduler = StageScheduler(stages, streams or CudaStreams(device), count)
    reason = f"{len(stages)} stages on {scheduler.stream_count} streams"
    return OooReport(True, reason, scheduler.stream_count, tuple(stages)), scheduler


def _named_stages(model: nn.Module, names: list[str]) -> dict[str, nn.Module]:
    modules = dict(model.named_modules())
    for name in names:
        if name not in modules or modules[name] is model:
            raise ValueError(f"ooo_stages: {name!r} is no module of {type(model).__name__}")
        if names.count(name) > 1:
            raise ValueError(f"ooo_stages: {name!r} is named twice")
        outer = next((other for other in names if name.startswith(f"{other}.")), None)
        if outer is not None:
            raise ValueError(f"ooo_stages: {name!r} lies inside {outer!r}")
    return {name: modules[name] for name in names}


def _add_children(module: nn.Module, prefix: str, found: dict[str, nn.Module]) -> None:
    for name, child in module.named_children():
        if isinstance(child, _CONTAINERS):
            _add_children(child, f"{prefix}{name}.", found)
        elif next(child.parameters(), None) is not None and child not in found.values():
            found[f"{prefix}{name}"] = child


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
