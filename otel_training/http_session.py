"""The session that the HTTP exporters send by: exactly the headers and TLS files of the settings.

Some releases of the exporters add headers and certificates of the process environment to what they are given,
and requests would put a password of ``.netrc`` in place of an ``authorization`` header. What is read of an
answer is bounded in size and time, and a redirect is no delivery.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from otel_training.otlp import Otlp

if TYPE_CHECKING:
    import requests

MAX_ANSWER_BYTES = 4 * 1024
"""What is read of an answer, byte by byte and so at the expense of training; those of OTLP are shorter."""

# What requests and the exporters set themselves.
_OF_THE_PROTOCOL = frozenset({
    "accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type",
    "transfer-encoding", "user-agent",
})  # fmt: skip


def exact_session(otlp: Otlp) -> requests.Session:
    """Return a session for one exporter.

    Args:
        otlp: Its settings.
    """
    # Not at the top: while it is imported, urllib3 binds a socket to find out about IPv6.
    import requests

    authorities = otlp.certificate.path if otlp.certificate else True
    client_files = _client_files(otlp)

    class ExactSession(requests.Session):
        """Uses our files in place of those asked for; proxies and requests' own bundle stay the user's."""

        def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, *_asked: Any) -> Any:
            merged = super().merge_environment_settings(url, proxies, stream, authorities, client_files)
            return {**merged, "cert": client_files}

        def send(self, request: requests.PreparedRequest, **how: Any) -> requests.Response:
            response = super().send(request, **{**how, "stream": True, "allow_redirects": False})
            with response:
                response._content = _read(response, otlp.timeout_s)
            if response.is_redirect:
                # To the exporters every status below 400 is a success. Followed, a POST becomes a GET that
                # delivers nothing, or takes our headers to somebody else.
                raise requests.TooManyRedirects(f"redirected elsewhere by status {response.status_code}")
            return response

    session = ExactSession()
    session.auth = _ExactHeaders(dict(otlp.headers))
    return session


def _read(response: requests.Response, timeout_s: float) -> bytes:
    """Return the body, cut where it is too long; the time limit of requests counts anew with each byte."""
    import requests

    deadline_s = time.monotonic() + timeout_s
    body = bytearray()
    for piece in response.iter_content(1):
        body += piece
        if len(body) >= MAX_ANSWER_BYTES:
            break
        if time.monotonic() > deadline_s:
            raise requests.ReadTimeout("the answer does not end")
    return bytes(body)


class _ExactHeaders:
    """Takes every header off a request that is neither the protocol's nor ours."""

    def __init__(self, headers: dict[str, str]) -> None:
        self._headers = headers

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        for name in [name for name in request.headers if name.lower() not in _OF_THE_PROTOCOL]:
            del request.headers[name]
        request.headers.update(self._headers)
        return request


def _client_files(otlp: Otlp) -> str | tuple[str, str] | None:
    key, certificate = otlp.client_key, otlp.client_certificate
    if certificate and key:
        return certificate.path, key.path
    return certificate.path if certificate else None
