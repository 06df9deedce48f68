"""A serving certificate that somebody else keeps in a directory: followed while the server runs.

cert-manager and bring-your-own Secrets are mounted; the kubelet swaps all files of a mount at once. A script may copy
files one by one: a key that does not belong to its certificate yet is looked at again. A pair that
clients would refuse does not take the place of one that they accept.
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
        bundle: PEM of its `ca.crt`, the last one that what is served chains to; empty where there was none.
        ca_not_after: end of the first CA's validity; None where there is none.
        problem: why the files as they are now are not served; empty where they are.
    """

    def __init__(self, directory: Path, live: LiveCertificate, now: Now = lambda: dt.datetime.now(dt.UTC)) -> None:
        """Load the files for the first time; `now` is the time by the clock of those who verify the certificate.

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
        """Have `callback` called after the files have changed."""
        self._callbacks.append(callback)

    async def watch(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Look at the files for ever."""
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
        """The bundle as the file has it this moment; the last one that could be read where it cannot."""
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
        """API servers must go on accepting what is served, also where new files cannot be."""
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
    """What changes when a file does, through links as in a mounted Secret."""
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
