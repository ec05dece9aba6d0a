"""TLS files that settings name: tried when they are set up, with messages that name the setting.

Whoever uses the files later, gRPC, requests or a client's first connection, would tell too late and not which
setting is meant.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from otel_training.kinds import File


def server_context(
    certificate: File | None, key: File | None, client_ca: File | None
) -> ssl.SSLContext | None:
    """Return what makes a server speak TLS, and nothing older than TLS 1.2; None without a certificate.

    Args:
        certificate: Certificate of the server, with those that lead to its authority.
        key: Its private key; in the file of the certificate when None.
        client_ca: Authorities of which each client must show a certificate; None: clients need none.

    Raises:
        ValueError: A file cannot be used, or there is no certificate to the other files.
    """
    if certificate is None:
        for alone in filter(None, (key, client_ca)):
            raise ValueError(f"{alone.setting} is given without prometheus_certificate: accepted is both")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_own(context, certificate, key)
    if client_ca is not None:
        load_authorities(context, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def load_authorities(context: ssl.SSLContext, file: File) -> None:
    """Let a context trust the certificates in a file.

    Raises:
        ValueError: It cannot be read or has none.
    """
    _try_file(file)
    try:
        context.load_verify_locations(file.path)
    except ssl.SSLError as error:
        raise _unusable(file, "has no certificate in PEM", error) from None


def load_own(context: ssl.SSLContext, certificate: File | None, key: File | None) -> None:
    """Give a context the certificate that it shows; without one, the key is only tried for reading.

    Raises:
        ValueError: A file cannot be read, holds something else or has a password, or the two do not fit.
    """
    for file in filter(None, (key, certificate)):
        _try_file(file)
    if certificate is not None:
        try:
            context.load_cert_chain(certificate.path, key.path if key else None, password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            problem = f"does not go with {key.setting}={key.path!r}" if key else "has no certificate and key"
            raise _unusable(certificate, problem, error) from None


def _no_password() -> str:
    # Without this, OpenSSL would ask for it on the terminal.
    raise ValueError("the key has a password")


def _try_file(file: File) -> None:
    try:
        with Path(file.path).open("rb"):
            pass
    except OSError as error:
        raise _unusable(file, "cannot be read", error) from None


def _unusable(file: File, problem: str, error: Exception) -> ValueError:
    reason = getattr(error, "strerror", None) or error
    return ValueError(f"{file.setting}={file.path!r} {problem}: {reason}")
