"""A readable reference trainer that tells what it does as a stream of events.

The public names are loaded on first use, so ``import trainer`` costs nothing and imports no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.callbacks import Callback
    from trainer.config import load_config
    from trainer.hooks import CallbackList, TrainingHook, on_event
    from trainer.integrations.tensorboard import TensorboardHook
    from trainer.integrations.wandb import WandbHook
    from trainer.metrics import MetricLogger, memory_usage_bytes
    from trainer.runtime import build_logger, build_runtime, train_from_config
    from trainer.trainer import Trainer

__all__ = [
    "Callback",
    "CallbackList",
    "MetricLogger",
    "TensorboardHook",
    "Trainer",
    "TrainingHook",
    "WandbHook",
    "build_logger",
    "build_runtime",
    "load_config",
    "memory_usage_bytes",
    "on_event",
    "train_from_config",
]

_HOME = {
    "Callback": "trainer.callbacks",
    "CallbackList": "trainer.hooks",
    "MetricLogger": "trainer.metrics",
    "TensorboardHook": "trainer.integrations.tensorboard",
    "Trainer": "trainer.trainer",
    "TrainingHook": "trainer.hooks",
    "WandbHook": "trainer.integrations.wandb",
    "build_logger": "trainer.runtime",
    "build_runtime": "trainer.runtime",
    "load_config": "trainer.config",
    "memory_usage_bytes": "trainer.metrics",
    "on_event": "trainer.hooks",
    "train_from_config": "trainer.runtime",
}


def __getattr__(name: str) -> Any:
    """Import the module a public name lives in, the first time it is asked for."""
    if name not in _HOME:
        raise AttributeError(f"module 'trainer' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
