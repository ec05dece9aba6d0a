"""What lies in the store: global weights, deltas and the state of the outer optimizer, as safetensors."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from trainer.diloco.settings import WORKER_NAME
from trainer.diloco.store import Store, StoredObject, StoreError, TornError

Tensors = dict[str, Tensor]
"""CPU tensors in fp32 by the name of their parameter."""

GLOBALS = "globals"
DELTAS = "deltas"
OUTER_STATES = "outer"
FINISHED = "finished"
"""Folders of the store; the last one holds an empty file for each worker that is done."""

_GENERATION = re.compile(r"g(\d{8,})")
_DELTA = re.compile(rf"g(?P<base>\d{{8,}})\.s(?P<step>\d{{12,}})\.(?P<worker>{WORKER_NAME})\.[0-9a-f]+")
_HEADER_LENGTH_BYTES = 8


@dataclass(frozen=True)
class DeltaName:
    """What the name of a delta says.

    Args:
        base_generation: Generation of the global weights it is relative to, from 0.
        step: Local step of its worker at which it was made.
        worker: Who made it.
        label: The name itself, unique among all deltas of a store.
    """

    base_generation: int
    step: int
    worker: str
    label: str


@dataclass(frozen=True)
class GlobalWeights:
    """A generation of the global weights.

    Args:
        generation: Its number, which is that of the last outer step; 0 is what training began with.
        tensors: The weights.
        included: By worker, the labels of its deltas in the last outer step it took part in.
        outer_state: Name of the object with the outer optimizer's state; empty before the first outer step.
    """

    generation: int
    tensors: Tensors
    included: dict[str, list[str]] = field(default_factory=dict)
    outer_state: str = ""


def delta_label(base_generation: int, step: int, worker: str, nonce: str) -> str:
    """Return the label of a delta; ``nonce`` (hex) tells apart the starts of one worker."""
    return f"g{base_generation:08d}.s{step:012d}.{worker}.{nonce}"


def parse_delta_label(label: str) -> DeltaName | None:
    """Return what a delta's label says, or None when it is not one."""
    match = _DELTA.fullmatch(label)
    if match is None:
        return None
    return DeltaName(int(match["base"]), int(match["step"]), match["worker"], label)


def generation_label(generation: int) -> str:
    """Return the label of global weights or of an outer state."""
    return f"g{generation:08d}"


def by_generation(found: list[StoredObject]) -> list[tuple[int, StoredObject]]:
    """Return the objects that are named by a generation, the newest first."""
    matches = [(_GENERATION.fullmatch(each.label), each) for each in found]
    return sorted(
        ((int(match[1]), each) for match, each in matches if match is not None),
        key=lambda pair: (pair[0], pair[1].name),
        reverse=True,
    )


def write_globals(store: Store, weights: GlobalWeights) -> None:
    """Publish a generation.

    Raises:
        StoreError: It could not be written.
    """
    metadata = {"included": json.dumps(weights.included), "outer_state": weights.outer_state}
    data = encode(weights.tensors, metadata)
    store.write(GLOBALS, generation_label(weights.generation), data)


def read_newest_globals(store: Store, above: int = -1) -> GlobalWeights | None:
    """Return the newest whole generation above ``above``, or None when there is none.

    One that is not whole is still on its way, or what was left when its master was killed.

    Raises:
        StoreError: The store cannot be listed, or nothing above ``above`` can be read.
    """
    problem: StoreError | None = None
    for generation, found in by_generation(store.objects(GLOBALS)):
        if generation <= above:
            break
        try:
            tensors, metadata = decode(store.read(found))
            included = json.loads(metadata.get("included", "{}"))
            return GlobalWeights(generation, tensors, included, metadata.get("outer_state", ""))
        except TornError:
            continue
        except (StoreError, ValueError) as error:
            problem = problem or StoreError(f"generation {generation}: {error}")
    if problem is not None:
        raise problem
    return None


def encode(tensors: Tensors, metadata: dict[str, str] | None = None) -> bytes:
    """Return tensors and texts as the bytes of a safetensors file."""
    return safetensors.torch.save({name: each.contiguous() for name, each in tensors.items()}, metadata)


def decode(data: bytes) -> tuple[Tensors, dict[str, str]]:
    """Return what :func:`encode` was given.

    Raises:
        ValueError: The bytes are not those of a safetensors file.
    """
    try:
        tensors = safetensors.torch.load(data)
        length = int.from_bytes(data[:_HEADER_LENGTH_BYTES], "little")
        header = json.loads(data[_HEADER_LENGTH_BYTES : _HEADER_LENGTH_BYTES + length])
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f"not a safetensors file: {error}") from error
    return tensors, header.get("__metadata__", {})


def read_parameters(model: nn.Module) -> Tensors:
    """Return copies of a model's parameters on the CPU in fp32."""
    # sync: all parameters are read from the device.
    return {
        name: parameter.detach().to("cpu", torch.float32, copy=True)
        for name, parameter in model.named_parameters()
    }


def describe_mismatch(tensors: Tensors, expected: Tensors) -> str | None:
    """Return in what the names and shapes of two sets of weights differ, or None when they agree."""
    for name in sorted(tensors.keys() ^ expected.keys()):
        return f"{name} is {'not expected' if name in tensors else 'missing'}"
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            return f"{name} has shape {tuple(tensor.shape)}, expected is {tuple(expected[name].shape)}"
    return None


def are_finite(tensors: Tensors) -> bool:
    """Return whether each value is a number."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
