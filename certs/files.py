"""`ca.crt`, `tls.crt` and `tls.key` in a directory: used while they are valid, else created again.

The CA's key is not stored, so it signs one certificate only. New files have a new CA, and clients must read `ca.crt`
again.
"""

import contextlib
import datetime as dt
import os
import ssl
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from certs import material
from runtime.files import read_regular

CA_FILE: Final = material.CA
CERTIFICATE_FILE: Final = material.CERTIFICATE
KEY_FILE: Final = material.KEY

LIFETIME: Final = dt.timedelta(days=365)
RENEW_BEFORE: Final = dt.timedelta(days=30)
"""Files that are valid for less than this are created again."""

_KEY_MODE: Final = 0o600
_PUBLIC_MODE: Final = 0o644


class CertificateFilesError(Exception):
    """The files are missing or unusable and cannot be created; the message says which and why."""


def check_present(directory: Path) -> None:
    """Raise `CertificateFilesError` unless the directory has a certificate and a key."""
    try:
        missing = [name for name in (CERTIFICATE_FILE, KEY_FILE) if not (directory / name).exists()]
    except OSError as error:
        raise CertificateFilesError(f"{directory} cannot be read: {error.strerror}.") from error
    if missing:
        raise CertificateFilesError(f"{directory} has no {' and no '.join(missing)}.")


def ensure(directory: Path, hosts: Sequence[str], *, now: dt.datetime) -> str:
    """Create the files for these hosts, unless there are some that are valid for more than 30 days.

    Args:
        directory: created if it does not exist.
        hosts: DNS names and IP addresses that the serving certificate must contain.
        now: a time with time zone.

    Returns:
        Why they were created; empty if existing files are used.

    Raises:
        CertificateFilesError: they cannot be written.
        ValueError: a host is neither an IP address nor a DNS name.
    """
    reason = _fault(directory, hosts, now)
    if not reason:
        return ""
    ca = material.make_authority("neuron-dra standalone CA", now=now, lifetime=LIFETIME)
    pair = material.issue_serving(ca, "neuron-dra", hosts, now=now, lifetime=LIFETIME)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _write(directory / KEY_FILE, pair.key_pem, _KEY_MODE)
        _write(directory / CERTIFICATE_FILE, pair.certificate_pem, _PUBLIC_MODE)
        _write(directory / CA_FILE, ca.certificate_pem, _PUBLIC_MODE)
    except OSError as error:
        raise CertificateFilesError(f"Cannot write certificates to {directory}: {error.strerror}.") from error
    return reason


def _fault(directory: Path, hosts: Sequence[str], now: dt.datetime) -> str:
    """Why the files cannot be used; empty if they can."""
    paths = [directory / name for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE)]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        return f"{', '.join(missing)} did not exist"
    try:
        ca_pem, certificate_pem, key_pem = map(read_regular, paths)
        chain = material.read_pair(material.KeyPair(certificate_pem, key_pem))
        cas = material.certificates(ca_pem, CA_FILE)
        # The TLS library also refuses keys and digests that are too weak for it.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(paths[1], paths[2])
    except material.UnusableError as error:
        return str(error)
    except ssl.SSLError as error:
        return f"TLS refuses {CERTIFICATE_FILE}: {error.reason}"
    except OSError as error:
        return f"{Path(error.filename).name} cannot be read: {error.strerror}"
    ca = material.anchor(chain, cas)
    if ca is None:
        return f"{CERTIFICATE_FILE} was not signed by {CA_FILE}"
    for name, certificate in ((CERTIFICATE_FILE, chain[0]), (CA_FILE, ca)):
        if certificate.not_valid_after_utc - now <= RENEW_BEFORE:
            return f"{name} ends on {certificate.not_valid_after_utc.isoformat()}"
        if why := material.fault(certificate, now):
            return f"{name} {why}"
    uncovered = material.uncovered(chain[0], hosts)
    return f"{CERTIFICATE_FILE} does not name {', '.join(uncovered)}" if uncovered else ""


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
