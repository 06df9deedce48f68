"""Follows a serving certificate in a directory that others write, such as a mounted Secret of cert-manager.

The kubelet replaces all files of a mount at once. A script may copy files one by one, so a key that does not match its
certificate is read again later. A pair that clients would refuse does not replace a pair that they accept.
"""

import asyncio
import datetime as dt
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from certs import files, material
from certs.issue import KeyPair
from runtime.files import read_regular
from webhook.serving_certificate.live import LiveCertificate, UnservableError

log = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS: Final = 2.0
Now = Callable[[], dt.datetime]
_Look = tuple[tuple[str, int, int, int], ...]


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
            files.CertificateFilesError: one is missing or unreadable, or they do not belong together.
        """
        self.bundle = b""
        self.ca_not_after: dt.datetime | None = None
        self.problem = ""
        self._directory = directory
        self._live = live
        self._now = now
        self._look = _look(directory)
        self._callbacks: list[Callable[[], None]] = []
        files.load(directory)
        self._take()
        if self.problem:
            raise files.CertificateFilesError(f"{self.problem}.")

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` after the files have changed."""
        self._callbacks.append(callback)

    async def watch(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Check the files every two seconds, until it is cancelled."""
        while True:
            await sleep(_SECONDS_BETWEEN_LOOKS)
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
            certificate = read_regular(self._directory / files.CERTIFICATE_FILE)
            key = read_regular(self._directory / files.KEY_FILE)
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
        bundle = self._bundle()
        return bundle if self._live.accepted_by(bundle) else self.bundle

    def _bundle(self) -> bytes:
        try:
            cas = material.certificates(read_regular(self._directory / files.CA_FILE), files.CA_FILE)
        except (OSError, material.UnusableError):
            return self.bundle
        self.ca_not_after = cas[0].not_valid_after_utc
        return material.bundle_pem(cas)


def _look(directory: Path) -> _Look:
    """A value that changes with the files; links are followed, as in a mounted Secret."""
    found = []
    for name in (files.CERTIFICATE_FILE, files.KEY_FILE, files.CA_FILE):
        try:
            path = (directory / name).resolve()
            status = path.stat()
        except OSError:
            found.append((name, 0, 0, 0))
        else:
            found.append((str(path), status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(found)
