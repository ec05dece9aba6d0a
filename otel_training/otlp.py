"""How one signal goes out over OTLP: endpoint, protocol and TLS decided together."""

from __future__ import annotations

from dataclasses import dataclass

from otel_training import options
from otel_training.endpoint import GRPC, GRPC_PORT, HTTP, HTTP_PORT, Address, Endpoint
from otel_training.kinds import File, Given
from otel_training.options import SignalName, Source
from otel_training.pairs import Secrets


@dataclass(frozen=True, kw_only=True)
class Otlp:
    """How one signal goes out over OTLP.

    Args:
        endpoint: Full URL for HTTP, target for gRPC.
        protocol: ``grpc`` or ``http/protobuf``.
        insecure: Whether there is no TLS.
        headers: Headers by lower-case name; their values are never printed.
        timeout_s: Longest time for one export, in seconds from 0.1.
        compression: ``none`` or ``gzip``.
        certificate: Authorities that the receiver's certificate is checked by; None for the system's.
        client_key: Private key of the client.
        client_certificate: Certificate of the client.
    """

    endpoint: Endpoint
    protocol: str
    insecure: bool
    headers: Secrets
    timeout_s: float
    compression: str
    certificate: File | None
    client_key: File | None
    client_certificate: File | None


def resolve(
    source: Source, signal: SignalName, listed: tuple[str, ...] | None, *, disabled: bool
) -> Otlp | None:
    """Decide how a signal goes out; None when it does not.

    Args:
        source: Arguments and environment.
        signal: ``metrics`` or ``traces``.
        listed: What the signal's exporter variable lists; None when it is not set.
        disabled: Whether nothing is to go out at all.

    Raises:
        ValueError: A value is not accepted, or two do not go together.
    """
    wanted = not disabled and (
        source.given(options.ENDPOINT, signal) is not None if listed is None else "otlp" in listed
    )
    if not wanted:
        # A mistake in the code is told all the same; what the environment says to others is not judged.
        source = Source(source.arguments, {})
    address = source.read(options.ENDPOINT, signal)
    protocol = source.read(options.PROTOCOL, signal) or (address.likely_protocol if address else HTTP)
    endpoint = _endpoint(signal, protocol, address)
    insecure = _insecure(source, signal, protocol, endpoint)
    headers = source.read(options.HEADERS, signal)
    if endpoint.authorization:
        headers = Secrets({"authorization": endpoint.authorization, **headers})
    otlp = Otlp(
        endpoint=endpoint,
        protocol=protocol,
        insecure=insecure,
        headers=headers,
        timeout_s=source.read(options.TIMEOUT, signal),
        compression=source.read(options.COMPRESSION, signal),
        certificate=source.read(options.CERTIFICATE, signal),
        client_key=source.read(options.CLIENT_KEY, signal),
        client_certificate=source.read(options.CLIENT_CERTIFICATE, signal),
    )
    _check_client_files(otlp)
    return otlp if wanted else None


def _endpoint(signal: SignalName, protocol: str, address: Address | None) -> Endpoint:
    if address is None:
        port = GRPC_PORT if protocol == GRPC else HTTP_PORT
        address = Address(Given(name="default", value=f"http://localhost:{port}", is_text=True))
    if protocol == GRPC:
        return address.for_grpc()
    is_of_signal = address.setting == f"{options.OTLP}{signal.upper()}_ENDPOINT"
    return address.for_http(signal, is_base=not is_of_signal)


def _insecure(source: Source, signal: SignalName, protocol: str, endpoint: Endpoint) -> bool:
    asked = source.read(options.INSECURE, signal)
    if endpoint.secure is not None:
        return not endpoint.secure
    return asked is not False or protocol != GRPC


def _check_client_files(otlp: Otlp) -> None:
    key, certificate = otlp.client_key, otlp.client_certificate
    if key and not certificate:
        raise ValueError(
            f"{key.setting}={key.path!r} is not accepted alone: a client certificate goes with it"
        )
    if certificate and not key and otlp.protocol == GRPC:
        raise ValueError(
            f"{certificate.setting}={certificate.path!r} is not accepted alone:"
            " with gRPC a client key goes with it"
        )
