"""The data loaders of a configured run: training text, and what is held out of it."""

from __future__ import annotations

from typing import Any

import torch

from trainer.config import Config
from trainer.data import find_text_files, make_loader, read_tokens, split_tokens
from trainer.problems import ConfigError
from trainer.ranks import Ranks
from trainer.signals import DEFAULT_STOP_SIGNALS


def build_loaders(config: Config, device: torch.device, ranks: Ranks) -> dict[str, Any]:
    """Return the loaders by name: train, and validation and test where text is held out.

    Args:
        config: The configuration.
        device: Where batches will go.
        ranks: Ranks that share the text; the loaders read this one's share.

    Raises:
        ConfigError: There is no text, or too little.
    """
    data = config.data
    try:
        tokens = read_tokens(find_text_files(data.paths))
    except OSError as error:
        raise ConfigError([f"data.paths: {error}"]) from error
    loaders: dict[str, Any] = {}
    parts = zip(("train", "validation", "test"), split_tokens(tokens, data.holdout_fraction), strict=True)
    for name, part in parts:
        try:
            loaders[name] = make_loader(
                part,
                context=config.model.context,
                batch_size=data.batch_size,
                sampling=data.sampling if name == "train" else "sequential",
                seed=config.run.seed,
                workers=data.workers if name == "train" else 0,
                pin_memory=device.type == "cuda",
                stop_signals=(*DEFAULT_STOP_SIGNALS, *config.train.signals()),
                rank=ranks.rank,
                ranks=ranks.size,
            )
        except ValueError as error:
            if name == "train":
                raise ConfigError([f"data.paths: {error} (data.batch_size, model.context)"]) from error
            if name == "validation" and config.train.validate_every_steps is not None:
                kept = f"data.holdout_fraction: {data.holdout_fraction} leaves too little to validate on"
                raise ConfigError([f"{kept}: {error}"]) from error
    return loaders
