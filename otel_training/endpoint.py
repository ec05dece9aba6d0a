"""Where OTLP goes: the spellings of an endpoint, made into the one address that an exporter is given.

A base URL gets ``/v1/metrics`` or ``/v1/traces`` exactly once, an endpoint of one signal is used as it is,
and gRPC gets a target without a path. What may be secret in a URL, user, password and query, is never shown.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from otel_training.kinds import Given

GRPC = "grpc"
HTTP = "http/protobuf"
GRPC_PORT = 4317
HTTP_PORT = 4318

# Names that gRPC resolves by itself; they are passed on untouched.
_GRPC_NAME = re.compile(r"(unix|unix-abstract|vsock|dns|ipv4|ipv6):(?!//[^/])(?![0-9]+$).+")
_SIGNAL_PATH = re.compile(r"/v1/(metrics|traces)$")


@dataclass(frozen=True, repr=False)
class Endpoint:
    """An address as an exporter is given it.

    Args:
        url: URL for HTTP, without user and password; target for gRPC.
        secure: True or False where the spelling says so, else None.
        authorization: Value of the header that user and password in the URL stand for.
    """

    url: str
    secure: bool | None
    authorization: str | None = None

    def __str__(self) -> str:
        return re.sub(r"\?.*", "?***", self.url)

    def __repr__(self) -> str:
        return f"Endpoint({str(self)!r})"


class Address:
    """An endpoint as somebody gave it, not yet bound to a protocol or a signal.

    Args:
        given: The endpoint.

    Raises:
        ValueError: It is not an endpoint; the message hides what may be secret.
    """

    def __init__(self, given: Given) -> None:
        self._given = given
        text = given.value.strip() if isinstance(given.value, str) else ""
        self._target = text if _GRPC_NAME.fullmatch(text) else ""
        if not text or not text.isascii() or re.search(r"[\s\x00-\x1f\x7f]", text):
            raise self._refusal(Addresses.accepted)
        self._has_scheme = "://" in text
        self._parts = SplitResult("", "", "", "", "") if self._target else self._split(text)

    @property
    def setting(self) -> str:
        """Name of the argument or variable that it was given by."""
        return self._given.name

    @property
    def likely_protocol(self) -> str:
        """GRPC for its own port and names, and for ``host:port`` unless that is HTTP's port; else HTTP."""
        if self._target:
            return GRPC
        if self._parts.path.rstrip("/") or self._parts.query or self._port == HTTP_PORT:
            return HTTP
        return GRPC if self._port == GRPC_PORT or not self._has_scheme else HTTP

    def for_grpc(self) -> Endpoint:
        """Return the target for gRPC.

        Raises:
            ValueError: The endpoint has parts that gRPC cannot use.
        """
        if self._target:
            return Endpoint(self._target, secure=None)
        parts = self._parts
        if parts.path.rstrip("/") or parts.query or "@" in parts.netloc:
            raise self._refusal("with gRPC an endpoint has no path, query, user or password")
        secure = parts.scheme == "https" if self._has_scheme else None
        # gRPC's own default is 443, right for https alone.
        port = "" if self._port or secure else f":{GRPC_PORT}"
        return Endpoint(parts.netloc + port, secure=secure)

    def for_http(self, signal: str, *, is_base: bool) -> Endpoint:
        """Return the URL for HTTP.

        Args:
            signal: ``metrics`` or ``traces``.
            is_base: Whether the path of the signal is to be added; otherwise the URL is used as it is.

        Raises:
            ValueError: The endpoint is one of gRPC, or a base with a query.
        """
        parts = self._parts
        if self._target:
            raise self._refusal("with http/protobuf a URL is needed, such as http://localhost:4318")
        if is_base and parts.query:
            raise self._refusal(
                "a base URL has no query; give OTEL_EXPORTER_OTLP_METRICS_ENDPOINT and _TRACES_ENDPOINT,"
                " which are used as they are, or send secrets as headers"
            )
        if is_base:
            prefix = _SIGNAL_PATH.sub("", parts.path.rstrip("/")).rstrip("/")
            parts = parts._replace(path=f"{prefix}/v1/{signal}")
        user, at, host = parts.netloc.rpartition("@")
        return Endpoint(
            parts._replace(netloc=host).geturl(),
            secure=parts.scheme == "https",
            authorization=_basic(user) if at else None,
        )

    @property
    def _port(self) -> int | None:
        return self._parts.port

    def _split(self, text: str) -> SplitResult:
        try:
            parts = urlsplit(text if self._has_scheme else f"http://{text}")
            usable = bool(parts.hostname and parts.port != 0) and not parts.netloc.endswith(":")
        except ValueError:
            raise self._refusal(Addresses.accepted) from None
        if not usable or parts.scheme not in ("http", "https") or parts.fragment:
            raise self._refusal(Addresses.accepted)
        if not re.fullmatch(r"[A-Za-z0-9._:%-]+", parts.hostname or ""):
            raise self._refusal(Addresses.accepted)
        return parts

    def _refusal(self, accepted: str) -> ValueError:
        value = self._given.value
        return self._given.refusal(accepted, shown=_hidden(value) if isinstance(value, str) else None)


@dataclass(frozen=True)
class Addresses:
    """The kind of setting that an endpoint is."""

    accepted: str = "http(s)://host:port, host:port, or for gRPC unix:path, dns:///host:port"

    def read(self, given: Given) -> Address:
        """Return the address."""
        return Address(given)


def _basic(user: str) -> str:
    name, _, password = user.partition(":")
    pair = f"{unquote(name)}:{unquote(password)}"
    return "Basic " + base64.b64encode(pair.encode()).decode("ascii")


def _hidden(text: str) -> str:
    # The text may be malformed, so nothing tells where a password in it would end.
    scheme = re.match(r"[a-z]+://", text)
    if "@" in text:
        return repr((scheme[0] if scheme else "") + "***")
    return repr(re.sub(r"[?#].*", "?***", text, flags=re.DOTALL)[:200])
