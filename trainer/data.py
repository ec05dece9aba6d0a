"""Text files as bytes, and blocks of them as training samples."""

from __future__ import annotations

import glob
import signal
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

VOCAB_SIZE = 256
STDLIB = "stdlib"
SAMPLINGS = ("random", "sequential")
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def find_text_files(paths: Iterable[str]) -> list[Path]:
    """Return the files that ``paths`` name, each once, in an order that depends on their names alone.

    Args:
        paths: Files, folders (all files below that are not hidden), glob patterns (``**`` = any depth), or
            the word ``stdlib``: the source text of the running Python's standard library without its tests.

    Raises:
        FileNotFoundError: A path matches no file.
    """
    found: dict[Path, None] = {}
    for path in paths:
        files = _stdlib_files() if path == STDLIB else _expand(path)
        if not files:
            raise FileNotFoundError(f"no file matches {path!r}")
        found.update(dict.fromkeys(files))
    return list(found)


def read_tokens(files: Iterable[Path]) -> Tensor:
    """Return the bytes of all files, one after the other, as token ids: uint8 (N,)."""
    text = bytearray(b"".join(file.read_bytes() for file in files))
    return torch.frombuffer(text, dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)


def split_tokens(tokens: Tensor, holdout_fraction: float) -> tuple[Tensor, Tensor, Tensor]:
    """Split (N,) into training text and a held-out tail, whose halves are for validation and test.

    Args:
        tokens: Token ids, (N,).
        holdout_fraction: Part that is held out, 0..1.
    """
    held_out = int(len(tokens) * holdout_fraction)
    cut = len(tokens) - held_out
    middle = cut + held_out // 2
    return tokens[:cut], tokens[cut:middle], tokens[middle:]


class TextBlocks(Dataset[tuple[Tensor, Tensor]]):
    """Blocks of ``context + 1`` tokens, addressed by where they start.

    Args:
        tokens: Token ids, uint8 (N,).
        context: Tokens of an input, >= 1.

    Raises:
        ValueError: The text is shorter than one block.
    """

    def __init__(self, tokens: Tensor, context: int) -> None:
        if len(tokens) < context + 1:
            raise ValueError(f"the text has {len(tokens)} bytes, one block needs {context + 1}")
        self._tokens = tokens
        self._context = context

    def __len__(self) -> int:
        """Return the number of places a block can start at."""
        return len(self._tokens) - self._context

    def __getitem__(self, start: int) -> tuple[Tensor, Tensor]:
        """Return input and target, int64 (context,) each; the target is the input one token later."""
        block = self._tokens[start : start + self._context + 1].long()
        return block[:-1], block[1:]


class BlockSampler(Sampler[int]):
    """Where the blocks of an epoch start, a pure function of seed and epoch: any position can be found again.

    An epoch is as many blocks as lie side by side in the text. Of several ranks each takes every n-th block
    of it, all of them equally many: together they read what one rank would, but for a rest of n - 1 blocks.

    Args:
        starts: Number of places a block can start at.
        context: Tokens of an input.
        sampling: ``random`` (anywhere, with replacement) or ``sequential`` (side by side, in order).
        seed: Seed of the random starts, the same on all ranks.
        rank: Which rank's blocks, from 0.
        ranks: How many ranks share the epoch, >= 1.

    Raises:
        ValueError: ``sampling`` is neither.
    """

    def __init__(
        self,
        starts: int,
        context: int,
        *,
        sampling: str = "random",
        seed: int = 0,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        if sampling not in SAMPLINGS:
            raise ValueError(f"data.sampling: {sampling!r} is unknown; accepted: {', '.join(SAMPLINGS)}")
        self._starts = starts
        self._context = context
        self._sampling = sampling
        self._seed = seed
        self._rank = rank
        self._ranks = ranks
        self._epoch = 0
        self._from = 0

    def __len__(self) -> int:
        return self._blocks // self._ranks

    @property
    def _blocks(self) -> int:
        """Blocks of an epoch, those of all ranks."""
        return (self._starts - 1) // self._context + 1

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass."""
        self._epoch = epoch

    def seek(self, sample: int) -> None:
        """Begin the next pass at ``sample`` (0-based); later passes begin at 0 again."""
        self._from = sample

    def __iter__(self) -> Iterator[int]:
        begin, self._from = self._from, 0
        if self._sampling == "sequential":
            order = torch.arange(0, self._starts, self._context)
        else:
            # Two odd multipliers keep (seed, epoch) pairs apart that add up to the same number.
            generator = torch.Generator().manual_seed((self._seed * 1_000_003 + self._epoch * 8_191) % 2**63)
            order = torch.randint(self._starts, (self._blocks,), generator=generator)
        own = order[self._rank :: self._ranks][: len(self)]
        yield from own[begin:].tolist()


def make_loader(
    tokens: Tensor,
    *,
    context: int,
    batch_size: int,
    sampling: str = "random",
    seed: int = 0,
    workers: int = 0,
    pin_memory: bool = False,
    stop_signals: Iterable[signal.Signals] = (),
    rank: int = 0,
    ranks: int = 1,
) -> DataLoader[tuple[Tensor, Tensor]]:
    """Return batches ``(inputs, targets)``, int64 (batch_size, context) each.

    Args:
        tokens: Token ids, uint8 (N,).
        context: Tokens of an input.
        batch_size: Blocks of a batch, >= 1; a smaller rest at the end of an epoch is left out.
        sampling: Where blocks start, see :class:`BlockSampler`.
        seed: Seed of random starts.
        workers: Worker processes; 0 = the training process reads.
        pin_memory: Put batches into pinned memory (for CUDA).
        stop_signals: Signals that workers ignore: a batch system sends them to the whole process group, and
            the training process needs its workers up to its last step.
        rank: Which rank's share of the text, from 0.
        ranks: How many ranks share it, >= 1.

    Raises:
        ValueError: The text, or a rank's share of it, is shorter than one batch.
    """
    dataset = TextBlocks(tokens, context)
    sampler = BlockSampler(len(dataset), context, sampling=sampling, seed=seed, rank=rank, ranks=ranks)
    if len(sampler) < batch_size:
        share = "the text has" if ranks == 1 else f"a share of the text for {ranks} ranks has"
        raise ValueError(f"{share} {len(sampler)} blocks of {context} bytes, one batch needs {batch_size}")
    return DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=sampler,
        num_workers=workers,
        drop_last=True,
        pin_memory=pin_memory,
        worker_init_fn=_OutliveSignals(tuple(stop_signals)) if workers else None,
    )


class _OutliveSignals:
    """Worker set-up: stop signals sent to the whole process group do not end a worker.

    SIGTERM is let through the second time, because the training process itself ends stuck workers with it. A
    class and not a closure, so that it can be sent to spawned workers.
    """

    def __init__(self, signals: tuple[signal.Signals, ...]) -> None:
        self._signals = signals

    def __call__(self, _worker_id: int) -> None:
        for number in self._signals:
            signal.signal(number, _ignore_once if number == signal.SIGTERM else signal.SIG_IGN)


def _ignore_once(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)


def _expand(path: str) -> list[Path]:
    matches = [Path(name) for name in sorted(glob.glob(path, recursive=True))]  # noqa: PTH207 - absolute patterns too
    matches = matches or [Path(path)]
    files: list[Path] = []
    for match in matches:
        if match.is_dir():
            files += _files_below(match, lambda parts: not any(part.startswith(".") for part in parts))
        elif match.is_file():
            files.append(match)
    return files


def _stdlib_files() -> list[Path]:
    root = Path(sysconfig.get_paths()["stdlib"])
    return _files_below(
        root, lambda parts: parts[-1].endswith(".py") and not _NOT_LIBRARY.intersection(parts)
    )


def _files_below(root: Path, wanted: Callable[[tuple[str, ...]], bool]) -> list[Path]:
    """Files whose path parts below ``root`` are wanted, ordered by these parts."""
    found = {file.relative_to(root).parts: file for file in root.rglob("*") if file.is_file()}
    return [found[parts] for parts in sorted(found) if wanted(parts)]
