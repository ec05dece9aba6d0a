"""Limits of the control groups that this process is in: what a container may use, where psutil sees the host.

Source: the kernel's ``cgroup-v2`` and ``cgroup-v1`` documents.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_UNLIMITED_BYTES = 1 << 60
"""A limit from here on is none: version 1 has a huge number in place of version 2's word ``max``."""


@dataclass(frozen=True)
class Memory:
    """Memory of a control group that has a limit.

    Args:
        usage_bytes: All memory charged to it.
        available_bytes: Limit less the working set, which is the usage without inactive file cache.
    """

    usage_bytes: int
    available_bytes: int


@dataclass(frozen=True)
class Cgroup:
    """Where the control groups of a process are found.

    Args:
        root: Where they are mounted: ``/sys/fs/cgroup``.
        membership: Which ones the process is in: the text of ``/proc/self/cgroup``.
    """

    root: Path
    membership: str

    def memory(self) -> Memory | None:
        """Return the memory of the group with the least available, or None when none of them has a limit."""
        found = [
            memory
            for folder in self._folders("memory")
            for usage, limit, inactive in (
                ("memory.current", "memory.max", "inactive_file"),
                ("memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file"),
            )
            if (memory := _memory(folder, usage, limit, inactive)) is not None
        ]
        return min(found, key=lambda memory: memory.available_bytes, default=None)

    def cpus(self) -> float | None:
        """Return how many CPUs' time the groups may use, or None when none of them has a quota."""
        found = [cpus for folder in self._folders("cpu") if (cpus := _cpus(folder)) is not None]
        return min(found, default=None)

    def _folders(self, controller: str) -> Iterator[Path]:
        """Yield the folders of the process's group and of those it is in, innermost first."""
        for line in self.membership.splitlines():
            _, controllers, path = [*line.split(":", 2), "", ""][:3]
            if not controllers:
                top = self.root
            elif controller in controllers.split(","):
                top = (
                    self.root / controllers if (self.root / controllers).is_dir() else self.root / controller
                )
            else:
                continue
            parts = [part for part in path.split("/") if part]
            if ".." in parts:  # a group outside of what this process can see
                parts = []
            for depth in range(len(parts), -1, -1):
                yield top.joinpath(*parts[:depth])


def of_this_process() -> Cgroup | None:
    """Return the control groups of this process, or None where there are none."""
    try:
        membership = Path("/proc/self/cgroup").read_text(encoding="utf-8")
    except OSError:
        return None
    return Cgroup(Path("/sys/fs/cgroup"), membership)


def _memory(folder: Path, usage_file: str, limit_file: str, inactive_key: str) -> Memory | None:
    limit, usage = _words(folder / limit_file), _words(folder / usage_file)
    if not limit or not limit[0].isdecimal() or not usage or int(limit[0]) >= _UNLIMITED_BYTES:
        return None
    stat = _words(folder / "memory.stat")
    inactive = int(stat[stat.index(inactive_key) + 1]) if inactive_key in stat else 0
    usage_bytes = int(usage[0])
    return Memory(usage_bytes, max(0, int(limit[0]) - max(0, usage_bytes - inactive)))


def _cpus(folder: Path) -> float | None:
    words = _words(folder / "cpu.max")
    if not words:
        words = _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
    if len(words) != 2 or not words[0].isdecimal() or int(words[1]) <= 0:
        return None  # "max" or -1: no quota
    return int(words[0]) / int(words[1])


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []
