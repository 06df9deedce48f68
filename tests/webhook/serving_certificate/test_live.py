"""The certificate changes while the server runs: real handshakes before and after."""

import datetime as dt
import os
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

from certs import material
from certs.material import Authority, KeyPair
from tests.support.serving import Answering, Running, review, serving
from webhook.edge import server
from webhook.serving_certificate.live import LiveCertificate, UnservableError

NOW = dt.datetime.now(dt.UTC)
DAY = dt.timedelta(days=1)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return material.make_authority("test CA", now=NOW, lifetime=DAY)


def pair_of(authority: Authority, lifetime: dt.timedelta = DAY) -> KeyPair:
    return material.issue_serving(authority, "test", material.LOCAL_HOSTS, now=NOW, lifetime=lifetime)


def rsa_pair(size: int = 2048) -> KeyPair:
    key = rsa.generate_private_key(public_exponent=65537, key_size=size)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rsa")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    certificate = builder.serial_number(1).not_valid_before(NOW).not_valid_after(NOW + DAY).sign(key, SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return KeyPair(certificate.public_bytes(serialization.Encoding.PEM), private)


@pytest.fixture
def running(tls_directory: Path) -> Iterator[Running]:
    with serving(tls_directory, {"/mutate": Answering()}) as started:
        yield started


def served(running: Running) -> bytes:
    """The serving certificate that a new connection gets, DER."""
    port = int(running.url.rpartition(":")[2])
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port)))


def der(pair: KeyPair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pair.certificate_pem.decode())


def test_new_connections_get_the_new_certificate_and_old_connections_stay(
    running: Running, authority: Authority
) -> None:
    live, pair = LiveCertificate(running.tls), pair_of(authority)
    before = served(running)
    with running.client() as old:
        assert old.review(review()).status == 200
        socket = old.connection.sock
        live.load(pair)
        assert served(running) == der(pair) != before
        assert old.review(review()).status == 200
        assert old.connection.sock is socket
        assert socket.getpeercert(binary_form=True) == before
    assert live.not_after == NOW.replace(microsecond=0) + DAY
    assert live.digest == material.certificate_digest(x509.load_pem_x509_certificate(pair.certificate_pem))


def bad_pairs(authority: Authority) -> dict[str, tuple[KeyPair, str]]:
    pair, other = pair_of(authority), pair_of(authority)
    return {
        "garbage": (KeyPair(b"x", pair.key_pem), "tls.crt holds no PEM certificates"),
        "no key": (KeyPair(pair.certificate_pem, b""), "there is no tls.key"),
        "another's key": (KeyPair(pair.certificate_pem, other.key_pem), "tls.key does not belong to tls.crt"),
        "another type of key": (rsa_pair(), "its key is of another type (RSAPublicKey) than the one in service"),
    }


@pytest.mark.parametrize("case", ["garbage", "no key", "another's key", "another type of key"])
def test_a_bad_pair_leaves_the_old_one_in_service(running: Running, authority: Authority, case: str) -> None:
    live, good = LiveCertificate(running.tls), pair_of(authority)
    live.load(good)
    bad, message = bad_pairs(authority)[case]
    for _ in range(2):
        with pytest.raises(UnservableError, match=message.replace("(", r"\(").replace(")", r"\)")):
            live.load(bad)
    assert served(running) == der(good)
    assert live.reloads == {"success": 1, "failure": 1}


def test_a_pair_that_tls_refuses_is_reported_with_the_reason_of_tls() -> None:
    live = LiveCertificate(server.bare_context("1.3"))
    with pytest.raises(UnservableError, match="TLS refuses it: EE_KEY_TOO_SMALL"):
        live.load(rsa_pair(1024))


def test_the_same_pair_is_loaded_once(running: Running, authority: Authority) -> None:
    live, pair = LiveCertificate(running.tls), pair_of(authority)
    live.load(pair)
    live.load(pair)
    assert live.reloads == {"success": 1, "failure": 0}


def test_no_private_key_is_written_to_a_disk(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a file was made")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)
    LiveCertificate(server.bare_context("1.3")).load(pair_of(authority))


def test_a_private_file_is_used_without_memory_files(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    LiveCertificate(server.bare_context("1.3")).load(pair_of(authority))
    assert list(tmp_path.iterdir()) == []


def test_fault_and_accepted_by_match_real_clients(authority: Authority) -> None:
    live = LiveCertificate(server.bare_context("1.3"))
    assert live.fault(NOW) == "no certificate yet"
    assert not live.accepted_by(authority.certificate_pem)
    live.load(pair_of(authority))
    other = material.make_authority("other", now=NOW, lifetime=DAY)
    assert live.accepted_by(other.certificate_pem + authority.certificate_pem)
    assert not live.accepted_by(other.certificate_pem)
    assert not live.accepted_by(b"")
    assert live.fault(NOW) == ""
    assert live.fault(NOW + DAY).startswith("expired on ")
    assert live.fault(NOW - DAY).startswith("is not valid before ")
