"""Replaces the serving certificate of the live TLS context without a restart.

Handshakes after a load use the new certificate; open connections stay. Keys go to OpenSSL through memory, not through a
disk. A directory that others write, such as a mounted Secret of cert-manager, is followed. The
kubelet replaces all files of a mount at once, and a script may copy files one by one, so a key that does not match its
certificate is read again later. A pair that clients would refuse does not replace a pair that they accept.
"""

import asyncio
import contextlib
import datetime as dt
import logging
import os
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from cryptography import x509

from certs import material
from certs.material import KeyPair
from runtime.files import read_regular

log = logging.getLogger(__name__)

Now = Callable[[], dt.datetime]
_Look = tuple[tuple[str, int, int, int], ...]


class UnservableError(Exception):
    """A pair cannot be served; the message says why. The earlier pair stays in service."""


class LiveCertificate:
    """The certificate that a TLS context serves.

    Attributes:
        digest: hex SHA-256 of the serving certificate; empty without one.
        reloads: number of loaded pairs (success) and of refused pairs (failure).
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context
        self.digest = ""
        self.reloads = {"success": 0, "failure": 0}
        self._pair: KeyPair | None = None
        self._certificate: x509.Certificate | None = None
        self._refused: KeyPair | None = None
        self._accepted: dict[bytes, bool] = {}

    @property
    def not_after(self) -> dt.datetime | None:
        """End of its validity; None without one."""
        return self._certificate.not_valid_after_utc if self._certificate is not None else None

    def load(self, pair: KeyPair, now: dt.datetime | None = None) -> None:
        """Serve this pair from now on; no effect if it is served already.

        Args:
            pair: PEM of the chain and its key.
            now: the time, for a pair that was not checked before: a pair that is not valid then, or has other names,
                does not replace a valid one. None: the pair was checked.

        Raises:
            UnservableError: the pair cannot be used.
        """
        if pair == self._pair:
            return
        try:
            certificate = self._checked(pair)
            if now is not None and not self.fault(now):
                self._compare(certificate, now)
            _load(self.context, pair)
        except (material.UnusableError, UnservableError, OSError) as error:
            if pair != self._refused:
                self._refused = pair
                self.reloads["failure"] += 1
            why = f"TLS refuses it: {error.reason}" if isinstance(error, ssl.SSLError) else str(error)
            raise UnservableError(why) from error
        self._pair, self._refused = pair, None
        self._accepted.clear()
        self._certificate = certificate
        self.digest = material.certificate_digest(certificate)
        self.reloads["success"] += 1
        extra = {"not_after": certificate.not_valid_after_utc.isoformat(), "sha256": self.digest[:16]}
        log.info("serving certificate loaded", extra=extra)

    def accepted_by(self, bundle: bytes) -> bool:
        """Whether this PEM bundle verifies the served certificate, regardless of time and names."""
        if self._pair is None:
            return False
        # Readiness checks every entry of every configuration, and one signature takes as long as a review.
        if bundle not in self._accepted:
            if len(self._accepted) >= 8:  # bundles: usually one, two during a rotation
                self._accepted.clear()
            try:
                cas = material.certificates(bundle, material.CA)
                self._accepted[bundle] = material.anchor(material.read_pair(self._pair), cas) is not None
            except material.UnusableError:
                self._accepted[bundle] = False
        return self._accepted[bundle]

    def can_load(self, pair: KeyPair) -> bool:
        """Whether `load` would serve this pair."""
        try:
            self._checked(pair)
        except (material.UnusableError, UnservableError, OSError):
            return False
        return True

    def fault(self, now: dt.datetime) -> str:
        """Why the served certificate is not valid at this time; empty if it is valid."""
        return "no certificate yet" if self._certificate is None else material.fault(self._certificate, now)

    def move_to(self, context: ssl.SSLContext) -> None:
        """Serve the same certificate with another context from now on."""
        if self._pair is not None:
            _load(context, self._pair)
        self.context = context

    def _compare(self, certificate: x509.Certificate, now: dt.datetime) -> None:
        """Raise `UnservableError` unless the certificate may replace the served one, which is valid."""
        if fault := material.fault(certificate, now):
            raise UnservableError(f"it {fault}; the one in service stays")
        names, served = (set(material.hosts(each)) if each else set() for each in (certificate, self._certificate))
        if served and served.isdisjoint(names):
            raise UnservableError(
                f"it is for {_shown(names)}, and the one in service, which stays, is for {_shown(served)}; if "
                "that is meant, restart the replicas one after the other"
            )

    def _checked(self, pair: KeyPair) -> x509.Certificate:
        """The serving certificate of a pair, after a trial load into another context."""
        certificate = material.read_pair(pair)[0]
        _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pair)
        kind = type(certificate.public_key())
        if self._certificate is not None and kind is not type(self._certificate.public_key()):
            # An OpenSSL context keeps one certificate per key type, so it would still serve the old one too.
            raise UnservableError(
                f"its key is of another type ({kind.__name__.lstrip('_')}) than the one in service; restart the "
                "replicas one after the other"
            )
        return certificate


def _shown(names: set[str]) -> str:
    return ", ".join(sorted(names))[:100] or "no name"


def _load(context: ssl.SSLContext, pair: KeyPair) -> None:
    with _as_file(pair.certificate_pem.rstrip() + b"\n" + pair.key_pem) as path:
        # Without `password`, OpenSSL would prompt on the terminal. Encrypted keys were refused before.
        context.load_cert_chain(path, password="")


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A path to the content in memory, or to a file with mode 0600 if the system has no memfd."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("tls", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb") as memory:
            memory.write(content)
            memory.flush()
            path = f"/proc/self/fd/{descriptor}"
            if os.access(path, os.R_OK):
                yield path
                return
    with tempfile.NamedTemporaryFile(prefix="tls-") as file:
        file.write(content)
        file.flush()
        yield file.name


class CertificateFolder:
    """Serves `tls.crt` and `tls.key` of a directory.

    Attributes:
        bundle: PEM of the last `ca.crt` that verifies the served certificate; empty if there was none.
        ca_not_after: end of the first CA's validity; None without a CA.
        problem: why the current files are not served; empty if they are.
    """

    def __init__(self, directory: Path, live: LiveCertificate, now: Now = lambda: dt.datetime.now(dt.UTC)) -> None:
        """Load the files; `now` returns the time by the clock of the API server, which verifies the certificate.

        Raises:
            CertificateFilesError: one is missing or unreadable, or they do not belong together.
        """
        self.bundle = b""
        self.ca_not_after: dt.datetime | None = None
        self.problem = ""
        self._directory = directory
        self._live = live
        self._now = now
        self._look = _look(directory)
        self._callbacks: list[Callable[[], None]] = []
        check_present(directory)
        self._take()
        if self.problem:
            raise CertificateFilesError(f"{self.problem}.")

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` after the files have changed."""
        self._callbacks.append(callback)

    async def watch(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Check the files every two seconds, until it is cancelled."""
        while True:
            await sleep(2.0)
            look = _look(self._directory)
            if look == self._look and not self.problem:
                continue
            known, self._look = self.problem, look
            self._take()
            if self.problem and self.problem == known:
                continue
            if self.problem:
                log.warning("%s", self.problem)
            for callback in self._callbacks:
                callback()

    async def fresh_bundle(self) -> bytes:
        """Read the bundle from its file; the last usable one if that fails."""
        return self._trusted()

    def _take(self) -> None:
        try:
            certificate = read_regular(self._directory / material.CERTIFICATE)
            key = read_regular(self._directory / material.KEY)
            self._live.load(KeyPair(certificate, key), self._now())
        except OSError as error:
            self.problem = f"{error.filename} cannot be read: {error.strerror}"
        except UnservableError as why:
            self.problem = f"the certificate in {self._directory} is not served: {why}"
        else:
            self.problem = ""
        self.bundle = self._trusted()

    def _trusted(self) -> bytes:
        """The new bundle if it verifies the served certificate, else the last: API servers must still accept us."""
        try:
            cas = material.certificates(read_regular(self._directory / material.CA), material.CA)
        except (OSError, material.UnusableError):
            return self.bundle
        self.ca_not_after = cas[0].not_valid_after_utc
        bundle = material.bundle_pem(cas)
        return bundle if self._live.accepted_by(bundle) else self.bundle


# --- files of a run without a cluster -----------------------------------------------------------------------------
#
# They are used while they are valid, else created again. The CA's key is not stored, so it signs one certificate only.
# New files have a new CA, and clients must read `ca.crt` again.


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
        missing = [name for name in (material.CERTIFICATE, material.KEY) if not (directory / name).exists()]
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
        _write(directory / material.KEY, pair.key_pem, _KEY_MODE)
        _write(directory / material.CERTIFICATE, pair.certificate_pem, _PUBLIC_MODE)
        _write(directory / material.CA, ca.certificate_pem, _PUBLIC_MODE)
    except OSError as error:
        raise CertificateFilesError(f"Cannot write certificates to {directory}: {error.strerror}.") from error
    return reason


def _fault(directory: Path, hosts: Sequence[str], now: dt.datetime) -> str:
    """Why the files cannot be used; empty if they can."""
    paths = [directory / name for name in (material.CA, material.CERTIFICATE, material.KEY)]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        return f"{', '.join(missing)} did not exist"
    try:
        ca_pem, certificate_pem, key_pem = map(read_regular, paths)
        chain = material.read_pair(material.KeyPair(certificate_pem, key_pem))
        cas = material.certificates(ca_pem, material.CA)
        # The TLS library also refuses keys and digests that are too weak for it.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(paths[1], paths[2])
    except material.UnusableError as error:
        return str(error)
    except ssl.SSLError as error:
        return f"TLS refuses {material.CERTIFICATE}: {error.reason}"
    except OSError as error:
        return f"{Path(error.filename).name} cannot be read: {error.strerror}"
    ca = material.anchor(chain, cas)
    if ca is None:
        return f"{material.CERTIFICATE} was not signed by {material.CA}"
    for name, certificate in ((material.CERTIFICATE, chain[0]), (material.CA, ca)):
        if certificate.not_valid_after_utc - now <= RENEW_BEFORE:
            return f"{name} ends on {certificate.not_valid_after_utc.isoformat()}"
        if why := material.fault(certificate, now):
            return f"{name} {why}"
    uncovered = material.uncovered(chain[0], hosts)
    return f"{material.CERTIFICATE} does not name {', '.join(uncovered)}" if uncovered else ""


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


def _look(directory: Path) -> _Look:
    """A value that changes with the files; links are followed, as in a mounted Secret."""
    found = []
    for name in (material.CERTIFICATE, material.KEY, material.CA):
        try:
            path = (directory / name).resolve()
            status = path.stat()
        except OSError:
            found.append((name, 0, 0, 0))
        else:
            found.append((str(path), status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(found)
