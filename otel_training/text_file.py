"""The last numbers of a run as a file, which node_exporter's textfile collector shows after the run has gone.

Source: node_exporter's README, "Textfile Collector": names end in ``.prom``, files are replaced as a whole.
"""

from __future__ import annotations

from pathlib import Path

from prometheus_client.registry import Collector

from otel_training.identity import Identity
from otel_training.kinds import File
from otel_training.prometheus import render
from otel_training.whole_file import check_writable, write_whole


class TextFile:
    """A file for the numbers of one rank.

    Args:
        file: A path that ends in ``.prom`` is the file, and each rank of several adds its number to the name;
            any other is a folder, in which the file is named after run and rank.
        identity: Whose numbers they are.
        collector: The numbers.

    Raises:
        ValueError: The file cannot be written.
    """

    def __init__(self, file: File, identity: Identity, collector: Collector) -> None:
        given = Path(file.path).absolute()
        if given.suffix != ".prom":
            given = given / f"otel-training-{identity.instance_id}.prom"
        elif identity.world_size > 1:
            given = given.with_name(f"{given.stem}-rank{identity.rank}.prom")
        self._path = given
        self._collector = collector
        check_writable(given, file.setting)

    def write(self) -> None:
        """Write what is true now.

        Raises:
            OSError: The file cannot be written.
        """
        text, _ = render(self._collector, None)
        write_whole(self._path, text)
