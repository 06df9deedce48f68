"""When certificate files are used as they are, and when they are made again."""

import base64
import datetime as dt
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from certs import material
from tests.support.disks import own_disk
from webhook.edge import server
from webhook.serving_certificate import live as files
from webhook.serving_certificate.live import CertificateFolder, LiveCertificate

NOW = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)
HOSTS = ("localhost", "127.0.0.1", "::1")
DAY = dt.timedelta(days=1)


def ensure(directory: Path, hosts: tuple[str, ...] = HOSTS, now: dt.datetime = NOW) -> str:
    """Why the files were made; empty if they were kept."""
    return files.ensure(directory, hosts, now=now)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_missing_files_are_created(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "tls"
    assert ensure(directory) == "ca.crt, tls.crt, tls.key did not exist"
    assert sorted(contents(directory)) == ["ca.crt", "tls.crt", "tls.key"], "no CA key, nothing temporary"


def test_the_key_is_for_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        ensure(tmp_path)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"tls.key": 0o600, "tls.crt": 0o644, "ca.crt": 0o644}


@pytest.mark.parametrize("later", [0 * DAY, 334 * DAY], ids=["at-once", "until-31-days-are-left"])
def test_valid_files_are_kept(tmp_path: Path, later: dt.timedelta) -> None:
    ensure(tmp_path)
    before = contents(tmp_path)
    assert ensure(tmp_path, now=NOW + later) == ""
    assert contents(tmp_path) == before


def test_a_certificate_for_more_hosts_is_kept(tmp_path: Path) -> None:
    ensure(tmp_path)
    assert ensure(tmp_path, ("localhost",)) == ""


def drop(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


def writing(name: str, text: bytes) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        (directory / name).write_bytes(text)

    return change


def swap(name: str) -> Callable[[Path], None]:
    """Put in the file of another CA and certificate."""

    def change(directory: Path) -> None:
        other = directory / "other"
        ensure(other)
        (other / name).replace(directory / name)
        for path in other.iterdir():
            path.unlink()
        other.rmdir()

    return change


def encrypt(directory: Path) -> None:
    path = directory / "tls.key"
    key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    form, encryption = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, encryption))


def make_directory(directory: Path) -> None:
    (directory / "tls.crt").unlink()
    (directory / "tls.crt").mkdir()


FAULTS = [
    pytest.param(drop("tls.key"), "tls.key did not exist", id="key-missing"),
    pytest.param(drop("ca.crt"), "ca.crt did not exist", id="ca-missing"),
    pytest.param(writing("tls.crt", b"junk"), "tls.crt holds no PEM certificates", id="certificate-junk"),
    pytest.param(writing("ca.crt", b""), "there is no ca.crt", id="ca-empty"),
    pytest.param(writing("tls.key", b"junk"), "tls.key is not a PEM private key", id="key-junk"),
    pytest.param(encrypt, "tls.key is encrypted", id="key-encrypted"),
    pytest.param(swap("tls.key"), "tls.key does not belong to tls.crt", id="key-of-another"),
    pytest.param(swap("ca.crt"), "tls.crt was not signed by ca.crt", id="ca-of-another"),
]


@pytest.mark.parametrize(("damage", "reason"), FAULTS)
def test_damaged_files_are_created_again(tmp_path: Path, damage: Callable[[Path], None], reason: str) -> None:
    ensure(tmp_path)
    damage(tmp_path)
    assert ensure(tmp_path) == reason
    assert ensure(tmp_path) == ""


@pytest.mark.parametrize(
    ("hosts", "now", "reason"),
    [
        pytest.param(HOSTS, NOW + 335 * DAY, "tls.crt ends on 2027-05-01T12:00:00+00:00", id="30-days-left"),
        pytest.param(HOSTS, NOW + 400 * DAY, "tls.crt ends on 2027-05-01T12:00:00+00:00", id="expired"),
        pytest.param(HOSTS, NOW - DAY, "tls.crt is not valid before 2026-05-01T11:55:00+00:00", id="not-yet-valid"),
        pytest.param((*HOSTS, "a.b", "10.0.0.1"), NOW, "tls.crt does not name a.b, 10.0.0.1", id="other-hosts"),
    ],
)
def test_expired_or_unsuitable_files_are_created_again(
    tmp_path: Path, hosts: tuple[str, ...], now: dt.datetime, reason: str
) -> None:
    ensure(tmp_path)
    assert ensure(tmp_path, hosts, now) == reason
    assert ensure(tmp_path, hosts, now) == ""


def test_a_certificate_without_host_names_is_replaced(tmp_path: Path) -> None:
    ca = material.make_authority("CA", now=NOW, lifetime=365 * DAY)
    (tmp_path / "ca.crt").write_bytes(ca.certificate_pem)
    (tmp_path / "tls.crt").write_bytes(ca.certificate_pem)
    form, encryption = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (tmp_path / "tls.key").write_bytes(ca.key.private_bytes(serialization.Encoding.PEM, form, encryption))
    assert ensure(tmp_path) == "tls.crt does not name localhost, 127.0.0.1, ::1"


def test_new_files_have_a_new_ca(tmp_path: Path) -> None:
    ensure(tmp_path)
    before = x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    ensure(tmp_path, now=NOW + 350 * DAY)
    after = x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    assert before.public_key() != after.public_key()


def test_a_directory_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(files.CertificateFilesError, match=r"Cannot write .*/file/tls: Not a directory\."):
        files.ensure(tmp_path / "file" / "tls", HOSTS, now=NOW)


def test_a_full_disk_is_named_and_no_part_of_a_file_stays(tmp_path: Path) -> None:
    with own_disk(tmp_path) as disk:
        disk.fill()
        with pytest.raises(
            files.CertificateFilesError, match=rf"^Cannot write .*{tmp_path}: No space left on device\.$"
        ):
            ensure(tmp_path)
        disk.free()
        assert contents(tmp_path) == {}
        assert ensure(tmp_path) == "ca.crt, tls.crt, tls.key did not exist"
        disk.fill()
        before = contents(tmp_path)
        with pytest.raises(files.CertificateFilesError, match="No space left on device"):
            ensure(tmp_path, now=NOW + 400 * DAY)
        assert contents(tmp_path) == before
        disk.free()
        assert ensure(tmp_path, now=NOW + 400 * DAY) == "tls.crt ends on 2027-05-01T12:00:00+00:00"


def test_files_are_written_where_they_will_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "another file system"))
    assert ensure(tmp_path / "tls") == "ca.crt, tls.crt, tls.key did not exist"


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    ensure(tmp_path)
    (tmp_path / "tls.key").unlink()
    (tmp_path / "tls.key").mkdir()
    with pytest.raises(files.CertificateFilesError, match="Is a directory"):
        ensure(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca.crt", "tls.crt", "tls.key"]


def serve(directory: Path) -> LiveCertificate:
    """The files as others, such as cert-manager, have written them."""
    live = LiveCertificate(server.bare_context("1.3"))
    CertificateFolder(directory, live, lambda: NOW)
    return live


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(drop("tls.key"), "has no tls.key.", id="key-missing"),
        pytest.param(make_directory, "tls.crt cannot be read: Is a directory.", id="unreadable"),
        *[
            pytest.param(fault.values[0], f"is not served: {fault.values[1]}.", id=fault.id)
            for fault in FAULTS
            if fault.id in {"certificate-junk", "key-junk", "key-encrypted", "key-of-another"}
        ],
    ],
)
def test_files_of_others_are_never_replaced(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    ensure(tmp_path)
    damage(tmp_path)
    with pytest.raises(files.CertificateFilesError) as error:
        serve(tmp_path)
    assert message in str(error.value)


def test_files_of_others_need_no_ca_and_may_have_any_host(tmp_path: Path) -> None:
    ensure(tmp_path, ("elsewhere.example",))
    (tmp_path / "ca.crt").unlink()
    assert serve(tmp_path).not_after == NOW + 365 * DAY


def test_an_empty_directory_lacks_both(tmp_path: Path) -> None:
    with pytest.raises(files.CertificateFilesError, match=r"has no tls\.crt and no tls\.key\."):
        serve(tmp_path)


def test_an_unreadable_directory_is_reported(tmp_path: Path) -> None:
    with pytest.raises(files.CertificateFilesError, match=r"cannot be read: File name too long"):
        serve(tmp_path / ("d" * 300))


def test_a_certificate_with_an_unknown_kind_of_key_is_reported(tmp_path: Path) -> None:
    ensure(tmp_path)
    certificate = x509.load_pem_x509_certificate((tmp_path / "tls.crt").read_bytes())
    der = certificate.public_bytes(serialization.Encoding.DER)
    changed = der.replace(bytes.fromhex("06072a8648ce3d0201"), bytes.fromhex("06072a8648ce3d027f"))
    pem = b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(changed) + b"-----END CERTIFICATE-----\n"
    (tmp_path / "tls.crt").write_bytes(pem)
    with pytest.raises(files.CertificateFilesError, match=r"tls\.crt has a key of a kind that is not known"):
        serve(tmp_path)


def test_a_key_that_is_too_weak_for_tls_is_reported(tmp_path: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # noqa: S505 - the test needs a weak key
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "weak")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, NOW, NOW + DAY)
    (tmp_path / "tls.crt").write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    (tmp_path / "tls.key").write_bytes(material.key_pem(key))  # type: ignore[arg-type]
    with pytest.raises(files.CertificateFilesError, match=r"TLS refuses it: EE_KEY_TOO_SMALL"):
        serve(tmp_path)
