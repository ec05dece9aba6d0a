"""The HTTP server of the scrape page: an object that can be started, closed and bound again."""

from __future__ import annotations

import contextlib
import errno
import gzip
import logging
import os
import socket
import ssl
import threading
from collections.abc import Callable

from prometheus_client.registry import Collector

from otel_training.guard import Guard, Notices, describe
from otel_training.http_handler import Answer, Request
from otel_training.http_listener import CLIENT_TIMEOUT_S, Listener
from otel_training.prometheus import accepts_gzip, render

logger = logging.getLogger("otel_training")

DEFAULT_PORT = 9464
"""The port that the OpenTelemetry specification gives to Prometheus exporters."""

_GRACE_S = 0.3
"""How long ``close`` lets answers in progress finish."""

_TRY_NEXT = (errno.EADDRINUSE, errno.EACCES, errno.EPERM)
"""Errors of one port; with any other, the next port would do no better."""

_WILDCARDS = ("0.0.0.0", "::")


class ScrapeServer:
    """Serves ``/metrics``, ``/healthz`` and a landing page at ``/`` from daemon threads.

    Args:
        collector: What ``/metrics`` shows.
        landing: Returns the HTML of the landing page, given the address it is served at
            (``http://127.0.0.1:9464``).
        host: Name or address of this machine to listen on; ``localhost`` means 127.0.0.1.
        port: From 0 (any free one) to 65535.
        next_ports: How many further ports are tried, one after the other, when ``port`` cannot be had.
        tls: Makes the server speak HTTPS only.
        client_timeout_s: Seconds for a client to send its request, and again to take its answer.
        guard: Where failures are told.

    Raises:
        ValueError: ``host`` is no address of a machine, or ``port`` is out of range.
    """

    def __init__(
        self,
        collector: Collector,
        landing: Callable[[str], str],
        *,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        next_ports: int = 100,
        tls: ssl.SSLContext | None = None,
        client_timeout_s: float = CLIENT_TIMEOUT_S,
        guard: Guard | None = None,
    ) -> None:
        if type(port) is not int or not 0 <= port <= 65535:
            raise ValueError(
                f"prometheus_port (OTEL_EXPORTER_PROMETHEUS_PORT) is {port!r}:"
                " accepted is a whole number from 0 (any free port) to 65535"
            )
        if next_ports < 0:
            raise ValueError(f"next_ports is {next_ports!r}: accepted is a whole number from 0")
        self._collector = collector
        self._landing = landing
        self._host = "127.0.0.1" if host == "localhost" else host
        self._family, self._numeric = _resolve(self._host)
        self._wanted_port = port
        self._next_ports = next_ports
        self._tls = tls
        self._client_timeout_s = client_timeout_s
        self._guard = guard or Guard(Notices())
        self._listener: Listener | None = None
        self._pid = 0
        self._scrapes = _Scrapes()
        self._pages = {"/": self._landing_page, "/metrics": self._metrics_page, "/healthz": _health_page}

    @property
    def port(self) -> int | None:
        """The port in use; None while there is no server."""
        return self._listener.port if self._listener else None

    @property
    def address(self) -> str | None:
        """Where the server is reached (``http://127.0.0.1:9464``); None while there is no server."""
        if self._listener is None:
            return None
        host = socket.gethostname() if self._numeric in _WILDCARDS else self._host
        return f"{'https' if self._tls else 'http'}://{_bracketed(host)}:{self._listener.port}"

    @property
    def url(self) -> str | None:
        """Where Prometheus scrapes (``http://127.0.0.1:9464/metrics``); None while there is no server."""
        return f"{self.address}/metrics" if self._listener else None

    def start(self) -> bool:
        """Listen and serve; return False, after one warning, when no port can be had."""
        if self._listener is not None:
            return True
        self._pid = os.getpid()
        listener = self._bind()
        if listener is None:
            return False
        try:
            listener.start()
        except RuntimeError as error:  # the process may not have one more thread
            listener.stop(grace_s=0.0)
            logger.warning("no scrape page, training goes on: %s", describe(error))
            return False
        self._listener = listener
        self._scrapes = _Scrapes()
        if self._tls is None and not _is_loopback(self._numeric):
            logger.warning(
                "the scrape page listens on %s without TLS: whoever reaches this machine can read it",
                _bracketed(self._host),
            )
        return True

    def close(self) -> None:
        """Stop serving and free the port; answers in progress have a moment to finish."""
        if os.getpid() != self._pid:
            self.abandon_in_child()  # the threads to wait for are the parent's
            return
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.stop(_GRACE_S)
            self._scrapes.end()

    def abandon_in_child(self) -> None:
        """In a child made by ``os.fork``: close the child's copies of the sockets; the parent serves on."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close_copies()

    def wait_for_scrape(self, timeout_s: float) -> bool:
        """Wait for a scrape that begins after this call; return whether one was answered in time.

        Args:
            timeout_s: Seconds to wait at most.
        """
        return self._listener is not None and self._scrapes.wait_for_next(timeout_s)

    def _bind(self) -> Listener | None:
        wanted = self._wanted_port
        last = min(wanted + self._next_ports, 65535) if wanted else 0
        reason = ""
        for port in range(wanted, last + 1):
            try:
                listener = self._listen(port)
            except OSError as error:
                reason = reason or describe(error)
                if error.errno not in _TRY_NEXT:
                    break
            else:
                if port != wanted:
                    logger.warning("the scrape page is on port %d, not on %d: %s", port, wanted, reason)
                return listener
        logger.warning(
            "no scrape page, training goes on: %s, ports %d to %d: %s", self._host, wanted, last, reason
        )
        return None

    def _listen(self, port: int) -> Listener:
        address = (self._numeric, port)
        return Listener(self._family, address, self._answer, self._tls, self._client_timeout_s, self._guard)

    def _answer(self, request: Request) -> Answer:
        page = self._pages.get(request.path)
        if page is None:
            return Answer.plain(404, "not found: try /, /metrics or /healthz")
        return page(request)

    def _landing_page(self, request: Request) -> Answer:  # noqa: ARG002 - pages have one signature
        html = self._landing(self.address or "")
        return Answer(200, html.encode("utf-8", "replace"), "text/html; charset=utf-8")

    def _metrics_page(self, request: Request) -> Answer:
        scrape = self._scrapes.begin()
        body, content_type = render(self._collector, request.headers.get("Accept"))
        answer = Answer(200, body, content_type, headers={"Vary": "Accept, Accept-Encoding"})
        if accepts_gzip(request.headers.get("Accept-Encoding")):
            # The fastest level: on loopback and in a data centre the bytes are cheaper than the processor.
            answer.body = gzip.compress(body, compresslevel=1)
            answer.headers["Content-Encoding"] = "gzip"
        if request.method == "GET":
            answer.when_sent = lambda: self._scrapes.answered(scrape)
        return answer


class _Scrapes:
    """Counts scrapes, so that one can be waited for."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._begun = 0
        self._answered = 0
        self._ended = False

    def begin(self) -> int:
        """Return the number of a scrape that begins now."""
        with self._changed:
            self._begun += 1
            return self._begun

    def answered(self, scrape: int) -> None:
        """Note that the client has been sent all of the page."""
        with self._changed:
            self._answered = max(self._answered, scrape)
            self._changed.notify_all()

    def end(self) -> None:
        """Wake whoever waits: no scrape will come any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_for_next(self, timeout_s: float) -> bool:
        """Wait until a scrape that has not begun yet is answered."""
        with self._changed:
            begun = self._begun
            self._changed.wait_for(lambda: self._ended or self._answered > begun, timeout_s)
            return self._answered > begun


def _health_page(request: Request) -> Answer:  # noqa: ARG001 - pages have one signature
    return Answer.plain(200, "ok")


def _resolve(host: str) -> tuple[socket.AddressFamily, str]:
    """Return the address family and the numeric address of ``host``."""
    with contextlib.suppress(OSError, UnicodeError, TypeError):
        if host:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            return found[0][0], str(found[0][4][0])
    raise ValueError(
        f"prometheus_host (OTEL_EXPORTER_PROMETHEUS_HOST) is {host!r}: accepted is a name or an address"
        " of this machine without a port, such as 127.0.0.1, ::1 or 0.0.0.0 (all addresses)"
    )


def _is_loopback(address: str) -> bool:
    return address == "::1" or address.startswith("127.")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
