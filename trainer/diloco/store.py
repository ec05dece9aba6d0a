"""Objects in any store that fsspec can reach, and how a reader knows that one is whole.

An object's name carries its size and digest, so one write makes an object, one listing tells which ones are
whole, and no rename is needed, which object stores do not have.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from fsspec.core import url_to_fs

T = TypeVar("T")

_SUFFIX = ".safetensors"
_DIGEST_CHARACTERS = 16
_NAME = re.compile(r"(?P<label>[A-Za-z0-9._-]+)\.(?P<size>\d+)\.(?P<digest>[0-9a-f]{16})\.safetensors")


class StoreError(Exception):
    """The store did not do what it was asked for; the message says what and why."""


class TornError(StoreError):
    """An object is not, or not yet, what its name says."""


@dataclass(frozen=True)
class StoredObject:
    """An object as a listing shows it.

    Args:
        folder: Where it lies, relative to the store.
        name: Its name, which carries ``label``, its size and its digest.
        label: What it is; see :mod:`trainer.diloco.objects`.
        is_whole: Whether it has the size that its name says; its digest is checked when it is read.
    """

    folder: str
    name: str
    label: str
    is_whole: bool


class Store:
    """A folder of objects at an fsspec URL.

    Any error of a file system becomes a :class:`StoreError`: what it raises is up to its authors.

    Args:
        url: ``file:///path`` or a path, ``memory://name``, or any other that fsspec has a file system for
            (``s3://bucket/name``, ``hf://...``: not tested here).
        options: Keyword arguments of the file system.

    Raises:
        ValueError: There is no such file system, or its package is not installed.
    """

    def __init__(self, url: str, options: dict[str, Any] | None = None) -> None:
        self.url = url
        try:
            self._fs, root = url_to_fs(url, **(options or {}))
        except (ImportError, ValueError, TypeError) as error:
            raise ValueError(
                f"{url!r} cannot be opened ({error}); accepted: a path, file:///..., memory://..., or the "
                "URL of another file system that fsspec knows and whose package is installed"
            ) from error
        self._root = root.rstrip("/")

    def objects(self, folder: str) -> list[StoredObject]:
        """Return the objects of a folder by name, whole or not; files that are none of ours are left out.

        Raises:
            StoreError: The folder cannot be listed; one that is not there is empty.
        """
        found = []
        for entry in self._entries(folder):
            name = entry["name"].rpartition("/")[2]
            match = _NAME.fullmatch(name)
            if match is not None:
                is_whole = entry["size"] == int(match["size"])
                found.append(StoredObject(folder, name, match["label"], is_whole))
        return sorted(found, key=lambda each: each.name)

    def names(self, folder: str) -> list[str]:
        """Return the names of all files of a folder, for those that are told by their name alone.

        Raises:
            StoreError: The folder cannot be listed; one that is not there is empty.
        """
        return sorted(entry["name"].rpartition("/")[2] for entry in self._entries(folder))

    def write(self, folder: str, label: str, data: bytes) -> StoredObject:
        """Write an object; written again, it replaces what a failed attempt may have left.

        Raises:
            StoreError: It could not be written, or not wholly.
        """
        name = f"{label}.{len(data)}.{_digest(data)}{_SUFFIX}"
        self._write(f"{folder}/{name}", data)
        return StoredObject(folder, name, label, is_whole=True)

    def mark(self, folder: str, name: str) -> None:
        """Write an empty file, which says all by its name.

        Raises:
            StoreError: It could not be written.
        """
        self._write(f"{folder}/{name}", b"")

    def read(self, found: StoredObject) -> bytes:
        """Return the content of an object.

        Raises:
            TornError: It is not what its name says: half written, or damaged.
            StoreError: It is gone, or it cannot be read.
        """
        path = self._path(f"{found.folder}/{found.name}")
        if not found.is_whole:
            raise TornError(f"{path} is torn: it has not the size that its name says")
        data = _ask(f"read {path}", lambda: bytes(self._fs.cat_file(path)))
        match = _NAME.fullmatch(found.name)
        assert match is not None
        if len(data) != int(match["size"]) or _digest(data) != match["digest"]:
            raise TornError(f"{path} is torn: {len(data)} bytes that are not those of its name")
        return data

    def remove(self, folder: str, name: str) -> None:
        """Remove a file; one that is gone is fine.

        Raises:
            StoreError: It is still there.
        """
        path = self._path(f"{folder}/{name}")

        def remove() -> None:
            with suppress(FileNotFoundError):
                self._fs.rm_file(path)

        _ask(f"remove {path}", remove)

    def _path(self, relative: str) -> str:
        return f"{self._root}/{relative}"

    def _entries(self, folder: str) -> list[dict[str, Any]]:
        path = self._path(folder)

        def entries() -> list[dict[str, Any]]:
            # File systems over a network keep listings; what others have written since is what we are after.
            self._fs.invalidate_cache(path)
            try:
                return [entry for entry in self._fs.ls(path, detail=True) if entry["type"] == "file"]
            except FileNotFoundError:
                return []

        return _ask(f"list {path}", entries)

    def _write(self, relative: str, data: bytes) -> None:
        path = self._path(relative)

        def write() -> None:
            try:
                self._fs.pipe_file(path, data)
            except FileNotFoundError:
                # Only file systems with real folders get here.
                self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
                self._fs.pipe_file(path, data)

        _ask(f"write {path}", write)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_DIGEST_CHARACTERS]


def _ask(what: str, function: Callable[[], T]) -> T:
    try:
        return function()
    except Exception as error:  # file systems of others raise whatever they like
        reason = " ".join(str(error).split()) or "no reason given"
        raise StoreError(f"cannot {what}: {type(error).__name__}: {reason}") from error
