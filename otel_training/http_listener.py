"""A small HTTP server that no client can hang, flood or make noisy: what the scrape page stands on.

One request per connection, a bounded number of connections, and a time limit on each part of one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from otel_training.guard import Guard, describe
from otel_training.http_handler import Answer, Handler, Request

MAX_CONNECTIONS = 32
"""Connections served at the same time; further ones are answered 503 at once."""

CLIENT_TIMEOUT_S = 5.0
"""Seconds for a client to send its request, TLS handshake included, and again to take its answer."""

_POLL_S = 0.5
_TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Content-Length: 21\r\nRetry-After: 1\r\nConnection: close\r\n\r\ntoo many connections\n"
)
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener(ThreadingHTTPServer):
    """Accepts connections and serves each from a daemon thread of its own.

    Args:
        family: IPv4 or IPv6.
        address: Numeric host and port; port 0 is any free one.
        answer: Returns the answer to a GET or HEAD request.
        tls: Wraps each connection when given.
        client_timeout_s: Seconds for a client to send its request, and again to take its answer.
        guard: Where failures of ``answer`` are told.

    Raises:
        OSError: The address cannot be bound.
    """

    daemon_threads = True
    allow_reuse_address = True  # else connections that closed lately would hold the port for a minute
    allow_reuse_port = False  # else two runs could share a port without knowing
    request_queue_size = 2 * MAX_CONNECTIONS

    def __init__(
        self,
        family: socket.AddressFamily,
        address: tuple[str, int],
        answer: Callable[[Request], Answer],
        tls: ssl.SSLContext | None,
        client_timeout_s: float,
        guard: Guard,
    ) -> None:
        self.address_family = family
        self.answer = answer
        self.guard = guard
        self.client_timeout_s = client_timeout_s
        self._tls = tls
        self._changed = threading.Condition()
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(
            target=self.serve_forever, args=(_POLL_S,), name="otel-training-scrape-page", daemon=True
        )
        super().__init__(address, Handler)

    @property
    def port(self) -> int:
        """The port that is bound."""
        return int(self.server_address[1])

    def start(self) -> None:
        """Begin to serve, in a thread of its own."""
        self._thread.start()

    def stop(self, grace_s: float) -> None:
        """Free the port, let answers in progress finish for ``grace_s`` seconds, and cut what is left."""
        if self._thread.ident is not None:
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread at once; not every system has this
            self.shutdown()
            self._thread.join()
        self.server_close()
        with self._changed:
            self._changed.wait_for(lambda: not self._open, grace_s)
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._changed.wait_for(lambda: not self._open, grace_s)

    def close_copies(self) -> None:
        """In a forked child: close its copies of all sockets, with no lock, for any may be held for ever."""
        for inherited in (self.socket, *self._open):
            # Not close(): that waits for readers of the socket, which belong to threads the child has not.
            with contextlib.suppress(OSError):
                os.close(inherited.detach())

    def server_bind(self) -> None:
        """Bind without ``HTTPServer``'s look-up of the host's full name, which may wait for a name server."""
        TCPServer.server_bind(self)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; a TLS handshake is left to the connection's own thread."""
        try:
            connection, client = self.socket.accept()
        except OSError as error:
            if error.errno in _OUT_OF_RESOURCES:
                time.sleep(_POLL_S)  # the connection stays in the queue: asked again at once, this would spin
            raise
        if self._tls is None:
            return connection, client
        try:
            return self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), client
        except OSError:
            connection.close()
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Hand the connection to a thread, or refuse it when there are too many."""
        with self._changed:
            full = len(self._open) >= MAX_CONNECTIONS
            if not full:
                self._open.add(request)
        if full:
            self._refuse(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the process may not have one more thread
            self._forget(request)
            self._refuse(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve the connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def handle_error(self, *_: Any) -> None:
        """Tell what went wrong, unless the client went away or was too slow."""
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError):
            self.guard.notices.warn("the scrape page", f"the scrape page failed: {describe(error)}")

    def _forget(self, request: socket.socket) -> None:
        with self._changed:
            self._open.discard(request)
            self._changed.notify_all()

    def _refuse(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if self._tls is None:  # over TLS this would take a handshake, and with it time
                connection.setblocking(False)
                connection.sendall(_TOO_MANY)
        self.shutdown_request(connection)
