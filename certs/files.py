"""`ca.crt`, `tls.crt` and `tls.key` in a directory: used while they are valid, else created again.

The CA's key is not stored, so it signs one certificate only. New files have a new CA, and clients must read `ca.crt`
again.
"""

import contextlib
import dataclasses
import datetime as dt
import os
import ssl
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from certs import material
from runtime.files import read_regular

CA_FILE: Final = "ca.crt"
CERTIFICATE_FILE: Final = "tls.crt"
KEY_FILE: Final = "tls.key"

LIFETIME: Final = dt.timedelta(days=365)
RENEW_BEFORE: Final = dt.timedelta(days=30)
"""Files that are valid for less than this are created again."""

_KEY_MODE: Final = 0o600
_PUBLIC_MODE: Final = 0o644


class CertificateFilesError(Exception):
    """The files are missing or unusable and cannot be created; the message says which and why."""


class _NotGoodError(Exception):
    """Existing files cannot be used; the message says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class CertificateFiles:
    """The files of one directory.

    Attributes:
        certificate: path of the serving certificate chain.
        ca: path of the CA to trust; may be missing if others issued the certificate.
        not_after: end of the serving certificate's validity.
    """

    certificate: Path
    key: Path
    ca: Path
    not_after: dt.datetime


def load(directory: Path) -> CertificateFiles:
    """The files that others, such as cert-manager, have written.

    Raises:
        CertificateFilesError: a file is missing or unreadable, or key and certificate do not match.
    """
    paths = (directory / CERTIFICATE_FILE, directory / KEY_FILE)
    try:
        missing = [path.name for path in paths if not path.exists()]
    except OSError as error:
        raise CertificateFilesError(f"{directory} cannot be read: {error.strerror}.") from error
    if missing:
        raise CertificateFilesError(f"{directory} has no {' and no '.join(missing)}.")
    try:
        certificate = _read_certificate(paths[0])
        _check_pair(*paths)
    except _NotGoodError as why:
        raise CertificateFilesError(f"The files in {directory} cannot be used: {why}.") from why
    return CertificateFiles(*paths, directory / CA_FILE, certificate.not_valid_after_utc)


def ensure(directory: Path, hosts: Sequence[str], *, now: dt.datetime) -> tuple[CertificateFiles, str | None]:
    """The files for these hosts; created unless they are valid for more than 30 days.

    Args:
        directory: created if it does not exist.
        hosts: DNS names and IP addresses that the serving certificate must contain.
        now: a time with time zone.

    Returns:
        The files, and why they were created; None: existing files are used.

    Raises:
        CertificateFilesError: they cannot be written.
        ValueError: a host is neither an IP address nor a DNS name.
    """
    try:
        return _reuse(directory, hosts, now), None
    except _NotGoodError as why:
        reason = str(why)
    ca = material.make_authority("neuron-dra standalone CA", now=now, lifetime=LIFETIME)
    pair = material.issue_serving(ca, "neuron-dra", hosts, now=now, lifetime=LIFETIME)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _write(directory / KEY_FILE, pair.key_pem, _KEY_MODE)
        _write(directory / CERTIFICATE_FILE, pair.certificate_pem, _PUBLIC_MODE)
        _write(directory / CA_FILE, ca.certificate_pem, _PUBLIC_MODE)
    except OSError as error:
        raise CertificateFilesError(f"Cannot write certificates to {directory}: {error.strerror}.") from error
    return load(directory), reason


def _reuse(directory: Path, hosts: Sequence[str], now: dt.datetime) -> CertificateFiles:
    missing = [name for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE) if not (directory / name).exists()]
    if missing:
        raise _NotGoodError(f"{', '.join(missing)} did not exist")
    serving = _read_certificate(directory / CERTIFICATE_FILE)
    ca = _read_certificate(directory / CA_FILE)
    _check_pair(directory / CERTIFICATE_FILE, directory / KEY_FILE)
    _check_issuer(serving, ca)
    for name, certificate in ((CERTIFICATE_FILE, serving), (CA_FILE, ca)):
        if certificate.not_valid_before_utc > now:
            raise _NotGoodError(f"{name} is not valid before {certificate.not_valid_before_utc.isoformat()}")
        if certificate.not_valid_after_utc - now <= RENEW_BEFORE:
            raise _NotGoodError(f"{name} ends on {certificate.not_valid_after_utc.isoformat()}")
    uncovered = _uncovered(serving, hosts)
    if uncovered:
        raise _NotGoodError(f"{CERTIFICATE_FILE} does not name {', '.join(uncovered)}")
    return CertificateFiles(
        directory / CERTIFICATE_FILE, directory / KEY_FILE, directory / CA_FILE, serving.not_valid_after_utc
    )


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(read_regular(path))
    except OSError as error:
        raise _NotGoodError(f"{path.name} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise _NotGoodError(f"{path.name} is not a PEM certificate") from error


def _check_pair(certificate: Path, key: Path) -> None:
    """Raise `_NotGoodError` unless the key is readable and matches the certificate."""
    chain = _read_certificate(certificate)
    try:
        private = serialization.load_pem_private_key(read_regular(key), password=None)
    except OSError as error:
        raise _NotGoodError(f"{key.name} cannot be read: {error.strerror}") from error
    except TypeError as error:
        raise _NotGoodError(f"{key.name} is encrypted") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _NotGoodError(f"{key.name} is not a PEM private key") from error
    try:
        public = chain.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _NotGoodError(f"{certificate.name} has a key of a kind that is not known") from error
    if private.public_key() != public:
        raise _NotGoodError(f"{key.name} does not belong to {certificate.name}")
    try:
        # The TLS library also refuses keys and digests that are too weak for it.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise _NotGoodError(f"TLS refuses {certificate.name}: {error.reason}") from error


def _check_issuer(serving: x509.Certificate, ca: x509.Certificate) -> None:
    try:
        serving.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm) as error:
        raise _NotGoodError(f"{CERTIFICATE_FILE} was not signed by {CA_FILE}") from error


def _uncovered(serving: x509.Certificate, hosts: Sequence[str]) -> list[str]:
    try:
        covered = set(serving.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        covered = set()
    return [host for host in hosts if material.general_name(host) not in covered]


def _write(path: Path, content: bytes, mode: int) -> None:
    """Replace a file atomically: no reader sees a part of it, or the key with a wider mode."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
