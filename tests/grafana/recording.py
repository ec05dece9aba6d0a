"""An hour of training in seconds: real events through the real recorder, under a clock that is set by hand.

What a Prometheus would have scraped in that hour is written down as OpenMetrics and becomes the blocks of a
real server. So the pictures need no GPU and no hour, and are the same each time.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from otel_training.clock import Moment
from otel_training.devices.reading import Sample
from otel_training.identity import Identity
from otel_training.prometheus import RunCollector
from otel_training.recorder import Recorder
from otel_training.state import State

BEGIN_S = 1_767_603_600
"""When the hour begins: 5 January 2026, 09:00 UTC."""

LENGTH_S = 3600
SCRAPE_INTERVAL_S = 15


class Event(NamedTuple):
    """An event of a trainer; the time is in seconds since the beginning of the hour."""

    at_s: float
    name: str
    payload: dict[str, Any]


Devices = Callable[[float], dict[str, Iterable[Sample]]]
"""What each source of device metrics says at a time, by its name."""


def _no_devices(_at_s: float) -> dict[str, Iterable[Sample]]:
    return {}


@dataclass
class Rank:
    """A rank of a run, and its page.

    Args:
        identity: Who it is.
        instance: Host and port of its page.
        script: Its events in the order of time.
        devices: What its devices say.
        until_s: When its page goes away.
    """

    identity: Identity
    instance: str
    script: Iterator[Event]
    devices: Devices = _no_devices
    until_s: float = LENGTH_S
    state: State = field(default_factory=State)

    def __post_init__(self) -> None:
        self.recorder = Recorder(self.state, self.identity, _moment(0.0))
        self._collector = RunCollector(self.state, self.identity.labels)
        self._next = next(self.script, None)

    def advance(self, at_s: float) -> None:
        """Let all happen that happens up to a time, and read the devices."""
        while self._next is not None and self._next.at_s <= at_s:
            self.recorder.record(self._next.name, self._next.payload, _moment(self._next.at_s))
            self._next = next(self.script, None)
        for source, samples in self.devices(at_s).items():
            self.recorder.devices.replace(source, samples)

    def scrape(self, at_s: float, file: TextIO) -> None:
        """Write what its page says, as Prometheus would store it."""
        unix_s = BEGIN_S + at_s
        for family in self._collector.collect():
            for sample in family.samples:
                labels = {"job": "training", "instance": self.instance, **sample.labels}
                inside = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items() if text)
                file.write(f"{sample.name}{{{inside}}} {sample.value} {unix_s:.0f}\n")


def record(ranks: list[Rank], folder: Path) -> None:
    """Let the hour pass for all ranks, and make the blocks of a Prometheus from what it would have seen."""
    pages = folder / "pages.txt"
    with pages.open("w", encoding="utf-8") as file:
        for at_s in range(0, LENGTH_S + 1, SCRAPE_INTERVAL_S):
            for rank in ranks:
                if at_s <= rank.until_s:
                    rank.advance(at_s)
                    rank.scrape(at_s, file)
        file.write("# EOF\n")
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(pages), str(folder / "data")]
    subprocess.run(command, check=True, capture_output=True)
    pages.unlink()


def _moment(at_s: float) -> Moment:
    return Moment(at_s, BEGIN_S + at_s)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
