"""Files that others read while we write them: a reader has all of the old one or all of the new one."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Replace ``path`` by a file with this content, readable as far as the user's umask lets others.

    Raises:
        OSError: It cannot be written; then the old file is as it was, and nothing is left beside it.
    """
    beside = _beside(path)
    try:
        with beside.open("wb") as file:
            file.write(content)
        beside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def check_writable(path: Path, setting: str) -> None:
    """Make the folders above ``path`` and try a file there.

    Raises:
        ValueError: That cannot be done; the message names ``setting``.
    """
    trial = _beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(None, "there is a folder of this name")
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise ValueError(f"{setting}={os.fspath(path)!r} cannot be written: {error.strerror}") from None


def _beside(path: Path) -> Path:
    """Return a name that no other writer has, hidden and with an ending that nobody watches for."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
