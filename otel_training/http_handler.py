"""One request, one answer: what a connection of the scrape page's server carries."""

from __future__ import annotations

import io
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otel_training.http_listener import Listener

MAX_HEAD_BYTES = 16 * 1024
"""Longest request line and headers together."""

_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class Request:
    """A request as a page sees it.

    Args:
        method: ``GET`` or ``HEAD``.
        path: Without the query.
        headers: Looked up without regard to case.
    """

    method: str
    path: str
    headers: Message


@dataclass
class Answer:
    """What a client is sent.

    Args:
        status: HTTP status code.
        body: Left out when the method is HEAD.
        content_type: Of the body.
        headers: Further headers.
        when_sent: Called once the client has been sent all of it.
    """

    status: int
    body: bytes
    content_type: str
    headers: dict[str, str] = field(default_factory=dict)
    when_sent: Callable[[], None] | None = None

    @classmethod
    def plain(cls, status: int, line: str, **headers: str) -> Answer:
        """Return an answer of one line of text."""
        return cls(status, f"{line}\n".encode(), _TEXT, headers)


class Handler(BaseHTTPRequestHandler):
    """Reads one request, sends one answer."""

    server: Listener
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # so that even a first line of garbage is answered with headers

    def handle(self) -> None:
        """Serve the connection's only request."""
        self.command = self.requestline = ""
        self.request_version = self.protocol_version
        head = self._read_head()
        if len(head) > MAX_HEAD_BYTES:
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return
        self.rfile.close()
        self.rfile = io.BytesIO(head)
        self.raw_requestline = self.rfile.readline()
        if not self.raw_requestline or not self.parse_request():
            return
        if self.command in ("GET", "HEAD"):
            self._send(self._answer(Request(self.command, self.path.partition("?")[0], self.headers)))
        else:
            self._send(Answer.plain(405, "method not allowed: GET and HEAD are", Allow="GET, HEAD"))

    def send_error(self, code: int, *_: str | None) -> None:
        """Answer a request that cannot be understood, in one plain line."""
        self._send(Answer.plain(code, HTTPStatus(code).phrase.lower()))

    def version_string(self) -> str:
        """Name the software without versions."""
        return "otel-training"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Write no access log: standard error is the trainer's."""

    def _read_head(self) -> bytes:
        """Return the request up to the end of its headers, or one piece more than is accepted.

        Raises:
            TimeoutError: The client did not send it in time, however it dealt out its bytes.
        """
        timeout_s = self.server.client_timeout_s
        deadline_s = time.monotonic() + timeout_s
        self.connection.settimeout(timeout_s)
        if isinstance(self.connection, ssl.SSLSocket):
            self.connection.do_handshake()
        head = b""
        while b"\n\r\n" not in head and b"\n\n" not in head and len(head) <= MAX_HEAD_BYTES:
            self.connection.settimeout(max(deadline_s - time.monotonic(), 0.001))
            received = self.connection.recv(4096)
            if not received:
                break
            head += received
        return head

    def _answer(self, request: Request) -> Answer:
        answers: list[Answer] = []
        if not self.server.guard.run("the scrape page", lambda: answers.append(self.server.answer(request))):
            return Answer.plain(500, "this page failed: the run's log says why")
        return answers[0]

    def _send(self, answer: Answer) -> None:
        self.connection.settimeout(self.server.client_timeout_s)
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Connection", "close")
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)
        if answer.when_sent is not None:
            answer.when_sent()
