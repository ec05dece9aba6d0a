"""The scrape page's certificates: real handshakes, and files that cannot be used."""

import http.client
import json
import ssl
import subprocess
from pathlib import Path

import pytest

import otel_training
from otel_training.kinds import File
from otel_training.tls_files import server_context


class Authority:
    """A certificate authority of a test's own, and what it signed."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.certificate, self.key = folder / f"{name}.pem", folder / f"{name}-key.pem"
        self._openssl(
            "req",
            "-x509",
            "-days",
            "2",
            "-subj",
            f"/CN={name}",
            "-out",
            self.certificate,
            *self._new(self.key),
        )

    def sign(self, name: str) -> tuple[Path, Path]:
        """Return certificate and key of somebody at 127.0.0.1."""
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}-key.pem"
        self._openssl(
            "req", "-x509", "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
            "-CA", self.certificate, "-CAkey", self.key, "-out", certificate, *self._new(key),
        )  # fmt: skip
        return certificate, key

    @staticmethod
    def _new(key: Path) -> list[object]:
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key]

    @staticmethod
    def _openssl(*arguments: object) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls"), "authority")


@pytest.fixture(scope="module")
def page_files(authority):
    return authority.sign("page")


def scrape(telemetry, context):
    client = http.client.HTTPSConnection(telemetry.url.split("/")[2], context=context, timeout=10.0)
    try:
        client.request("GET", "/metrics")
        reply = client.getresponse()
        return reply.status, reply.read()
    finally:
        client.close()


def test_a_page_with_a_certificate_speaks_https_alone(authority, page_files, caplog):
    certificate, key = page_files
    with otel_training.start(
        prometheus_host="0.0.0.0", prometheus_port=0, devices=(),
        prometheus_certificate=certificate, prometheus_key=str(key),
    ) as telemetry:  # fmt: skip
        assert telemetry.url.startswith("https://")
        port = int(telemetry.url.split(":")[2].split("/")[0])
        trusting = ssl.create_default_context(cafile=authority.certificate)
        client = http.client.HTTPSConnection("127.0.0.1", port, context=trusting, timeout=10.0)
        client.request("GET", "/metrics")
        assert client.getresponse().status == 200
        client.close()

        plain = http.client.HTTPConnection("127.0.0.1", port, timeout=10.0)
        plain.request("GET", "/metrics")
        with pytest.raises((http.client.BadStatusLine, ConnectionError)):
            plain.getresponse()
        plain.close()

        old = ssl.create_default_context(cafile=authority.certificate)
        with pytest.warns(DeprecationWarning, match="TLSVersion"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        client = http.client.HTTPSConnection("127.0.0.1", port, context=old, timeout=10.0)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            client.request("GET", "/metrics")
        client.close()
    assert [
        record.getMessage() for record in caplog.records
    ] == []  # open to the network, but not in the clear


def test_with_an_authority_for_clients_only_those_it_signed_are_answered(authority, page_files, tmp_path):
    certificate, key = page_files
    other = Authority(tmp_path, "other")
    with otel_training.start(
        prometheus_port=0, devices=(), prometheus_certificate=certificate, prometheus_key=key,
        prometheus_client_ca=authority.certificate,
    ) as telemetry:  # fmt: skip
        known = ssl.create_default_context(cafile=authority.certificate)
        known.load_cert_chain(*authority.sign("client"))
        status, body = scrape(telemetry, known)
        assert status == 200
        assert b"training_run_id" in body or body == b""

        for stranger in (None, other.sign("stranger")):
            context = ssl.create_default_context(cafile=authority.certificate)
            if stranger:
                context.load_cert_chain(*stranger)
            with pytest.raises((ssl.SSLError, ConnectionError, http.client.BadStatusLine)):
                scrape(telemetry, context)
        assert scrape(telemetry, known)[0] == 200


def test_discovery_tells_of_https(page_files, tmp_path):
    certificate, key = page_files
    file = tmp_path / "targets.json"
    with otel_training.start(
        prometheus_port=0, devices=(), prometheus_certificate=certificate, prometheus_key=key,
        prometheus_discovery=file,
    ):  # fmt: skip
        [group] = json.loads(file.read_text())
    assert group["labels"]["__scheme__"] == "https"


def test_one_file_may_hold_certificate_and_key(page_files, tmp_path):
    both = tmp_path / "both.pem"
    both.write_bytes(b"".join(path.read_bytes() for path in page_files))
    assert server_context(File(str(both), "prometheus_certificate"), None, None) is not None


def test_without_a_certificate_there_is_no_tls():
    assert server_context(None, None, None) is None


@pytest.mark.parametrize("alone", ["prometheus_key", "prometheus_client_ca"])
def test_other_files_without_a_certificate_are_refused(page_files, alone):
    with pytest.raises(ValueError, match=f"{alone} is given without prometheus_certificate"):
        otel_training.start(prometheus_port=0, devices=(), **{alone: page_files[0]})


@pytest.mark.parametrize(
    ("setting", "content", "said"),
    [
        ("prometheus_certificate", None, "cannot be read: No such file"),
        ("prometheus_certificate", b"", "does not go with prometheus_key="),
        ("prometheus_certificate", b"no certificate", "does not go with prometheus_key="),
        ("prometheus_key", None, "cannot be read: No such file"),
        ("prometheus_key", b"no key", "does not go with prometheus_key="),
        ("prometheus_client_ca", None, "cannot be read: No such file"),
        ("prometheus_client_ca", b"no authority", "has no certificate in PEM"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_at_the_start(page_files, tmp_path, setting, content, said):
    certificate, key = page_files
    wrong = tmp_path / "wrong.pem"
    if content is not None:
        wrong.write_bytes(content)
    files = {"prometheus_certificate": certificate, "prometheus_key": key, setting: wrong}
    with pytest.raises(ValueError, match=said) as refused:
        otel_training.start(prometheus_port=0, devices=(), **files)
    assert setting in str(refused.value)
    assert wrong.name in str(refused.value)


def test_a_key_of_another_certificate_is_told(authority, page_files):
    _, other_key = authority.sign("else")
    with pytest.raises(ValueError, match=r"prometheus_certificate=.* does not go with prometheus_key="):
        otel_training.start(
            prometheus_port=0, devices=(), prometheus_certificate=page_files[0], prometheus_key=other_key
        )


def test_a_folder_is_no_certificate(tmp_path):
    with pytest.raises(ValueError, match=r"prometheus_certificate=.* cannot be read"):
        otel_training.start(prometheus_port=0, devices=(), prometheus_certificate=tmp_path)
