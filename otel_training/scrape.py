"""The scrape page of one run: collector, landing page and server put together."""

from __future__ import annotations

from otel_training.clock import Clock
from otel_training.guard import Guard
from otel_training.identity import Identity
from otel_training.landing import render_landing
from otel_training.prometheus import RunCollector
from otel_training.scrape_server import ScrapeServer
from otel_training.settings import Settings
from otel_training.state import State


def start_page(settings: Settings, identity: Identity, state: State, guard: Guard) -> ScrapeServer | None:
    """Serve a run's numbers and return the server, or None when no port could be had.

    Raises:
        ValueError: Host or port is not accepted.
    """
    clock = Clock()

    def landing(address: str) -> str:
        return render_landing(state.snapshot(), identity, address=address, now_unix_s=clock.now().unix_s)

    # Ranks of one host stand side by side; whoever asks for any port gets any.
    wanted = settings.prometheus_port and settings.prometheus_port + identity.local_rank
    server = ScrapeServer(
        RunCollector(state, identity.labels, guard),
        landing,
        host=settings.prometheus_host,
        port=min(wanted, 65535),
        guard=guard,
    )
    return server if server.start() else None
