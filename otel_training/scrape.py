"""What Prometheus has of one run: the scrape page, put together here, and the files beside it."""

from __future__ import annotations

from otel_training import bounded
from otel_training.clock import Clock
from otel_training.guard import Guard, logger
from otel_training.identity import Identity
from otel_training.landing import render_landing
from otel_training.prometheus import RunCollector
from otel_training.scrape_server import ScrapeServer
from otel_training.settings import Settings
from otel_training.state import State
from otel_training.target_file import TargetFile
from otel_training.text_file import TextFile
from otel_training.tls_files import server_context

FILE_TIMEOUT_S = 1.0
"""Longest that closing waits for a file, whatever is left of its budget: a disk may hang, too."""


class Scrape:
    """The page of a run, the file that tells of it, and the file of the last numbers: what is wanted of them.

    Args:
        settings: What is wanted.
        identity: Whose numbers.
        state: The numbers.
        guard: Keeps failures away from training.

    Raises:
        ValueError: A setting is not accepted.
    """

    def __init__(self, settings: Settings, identity: Identity, state: State, guard: Guard) -> None:
        self._guard = guard
        self._linger_s = settings.linger_s
        self.page: ScrapeServer | None = None
        """The server; None when none is wanted or no port could be had."""
        self._targets: TargetFile | None = None
        self._text_file: TextFile | None = None
        if settings.disabled:
            return
        collector = RunCollector(state, identity.labels, guard)
        if settings.prometheus_textfile is not None:
            self._text_file = TextFile(settings.prometheus_textfile, identity, collector)
        if settings.prometheus:
            self._serve(settings, identity, state, collector)
        elif settings.prometheus_discovery is not None:
            logger.warning("prometheus_discovery: given, but there is no scrape page to tell of")

    def _serve(self, settings: Settings, identity: Identity, state: State, collector: RunCollector) -> None:
        clock = Clock()

        def landing(address: str) -> str:
            return render_landing(state.snapshot(), identity, address=address, now_unix_s=clock.now().unix_s)

        targets = settings.prometheus_discovery and TargetFile(settings.prometheus_discovery, identity)
        # Ranks of one host stand side by side; whoever asks for any port gets any.
        wanted = settings.prometheus_port and settings.prometheus_port + identity.local_rank
        server = ScrapeServer(
            collector,
            landing,
            host=settings.prometheus_host,
            port=min(wanted, 65535),
            tls=server_context(
                settings.prometheus_certificate, settings.prometheus_key, settings.prometheus_client_ca
            ),
            guard=self._guard,
        )
        if not server.start():
            return
        self.page = server
        if targets and self._guard.run("prometheus_discovery", targets.add, server.address or ""):
            self._targets = targets

    def finish(self) -> None:
        """Write the last numbers, and let the page wait for one more scrape if it is to."""
        if self._text_file is not None:
            bounded.call(self._guard, "prometheus_textfile", self._text_file.write, FILE_TIMEOUT_S)
        if self.page is not None and self._linger_s > 0:
            self.page.wait_for_scrape(self._linger_s)

    def close(self) -> None:
        """Take the target away, then the page."""
        if self._targets is not None:
            bounded.call(self._guard, "prometheus_discovery", self._targets.remove, FILE_TIMEOUT_S)
        if self.page is not None:
            self.page.close()

    def abandon_in_child(self) -> None:
        """Leave the page and its target to the parent of a forked child."""
        if self.page is not None:
            self.page.abandon_in_child()
