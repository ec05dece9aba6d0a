"""Hooks that pass training events on to other tools; each needs the extra of its name."""

from __future__ import annotations

import os


def is_main_rank() -> bool:
    """Return whether this process reports for all: rank 0 under torchrun, or the only one."""
    return os.environ.get("RANK", "").strip() in ("", "0")
