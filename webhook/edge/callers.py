"""Client certificates (`--client-ca`, `--client-name`): which clients may send reviews.

The TLS handshake verifies a certificate but does not require one, because the kubelet probes the same port without a
certificate. Endpoints of reviews require it.
"""

import logging
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, cast

from starlette.types import Scope

from runtime.files import read_regular
from runtime.startup import StartupError

log = logging.getLogger(__name__)

NAMES: Final = "client_names"
"""Key of a connection's names in `scope["state"]`; absent without a verified certificate."""

_NAME_KINDS: Final = ("DNS", "URI", "email", "IP Address")


def names_of(connection: ssl.SSLObject | None) -> tuple[str, ...] | None:
    """Common name and subject alternative names of the verified client certificate; None without one."""
    certificate = connection.getpeercert() if connection is not None else None
    if not certificate:
        return None
    # typeshed has one type for all values of this dictionary.
    subject = cast("Iterable[Iterable[tuple[str, str]]]", certificate.get("subject", ()))
    alternatives = cast("Iterable[tuple[str, str]]", certificate.get("subjectAltName", ()))
    common = [value for part in subject for kind, value in part if kind == "commonName"]
    return (*common, *(value for kind, value in alternatives if kind in _NAME_KINDS))


class Callers:
    """The clients that may send reviews."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """Accept verified certificates with one of `names`; without names, every verified certificate."""
        self._names = frozenset(names)

    def refusal(self, scope: Scope) -> str:
        """Why reviews of this client are refused; empty if they are accepted."""
        names = scope["state"].get(NAMES)
        if names is None:
            return "Reviews need a client certificate that a CA of --client-ca signed; this connection has none."
        if self._names and self._names.isdisjoint(names):
            shown = ", ".join(names)[:100] or "no name"
            return f"The client certificate is for {shown}, which --client-name does not list."
        return ""


class ClientAuthority:
    """Follows the file of CA certificates that verify client certificates.

    A CA cannot be removed from an OpenSSL context, so each version of the file gets a new context: from the next
    handshake on, exactly the CAs in the file are trusted.

    Attributes:
        tls: the context for the next handshake.
        problem: why the file was not loaded, and the CAs that were read before are in force; empty if it was.
    """

    def __init__(self, path: Path, tls: ssl.SSLContext, fresh: Callable[[], ssl.SSLContext]) -> None:
        """Let `tls` request client certificates; `fresh` makes a context with our certificate and without client CAs.

        Raises:
            StartupError: the file cannot be read or contains no certificate.
        """
        self.problem = ""
        self._path = path
        self._fresh = fresh
        self._seen: tuple[int, int, int] | None = None
        try:
            pem, self._trusted = self._read()
            self._trust(tls, pem)
        except OSError as error:
            raise StartupError(f"{_unusable(path, error)} Check --client-ca.") from error

    def follow(self) -> bool:
        """Load the file if it has changed. Returns whether new CAs are in force; an unusable file is logged once."""
        if self._stamp() == self._seen:
            return False
        try:
            pem, trusted = self._read()
            # A file that is only written again closes no connection.
            if trusted != self._trusted:
                self._trust(self._fresh(), pem)
        except OSError as error:
            self._seen = self._stamp()
            self.problem = _unusable(self._path, error)
            log.error("client CA not reloaded: those in force stay", extra={"reason": self.problem})  # noqa: TRY400
            return False
        self.problem = ""
        if trusted == self._trusted:
            return False
        extra = {"file": str(self._path), "certificates": len(trusted), "removed": len(self._trusted - trusted)}
        self._trusted = trusted
        log.info("client CA reloaded", extra=extra)
        return True

    def _read(self) -> tuple[str, frozenset[bytes]]:
        """The file, and its CAs in DER.

        Raises:
            OSError: it cannot be read, or used. It was tried with a context of its own: a file that is valid only in
                part must not be trusted in part.
        """
        self._seen = self._stamp()
        pem = read_regular(self._path).decode("ascii", errors="ignore")
        alone = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            alone.load_verify_locations(cadata=pem)
        except ValueError as error:
            raise ssl.SSLError(str(error)) from error
        return pem, frozenset(alone.get_ca_certs(binary_form=True))

    def _trust(self, tls: ssl.SSLContext, pem: str) -> None:
        self.tls = tls
        tls.verify_mode = ssl.CERT_OPTIONAL
        # A resumed session would skip the verification by the new CAs.
        tls.options |= ssl.OP_NO_TICKET
        tls.num_tickets = 0
        tls.load_verify_locations(cadata=pem)

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


def _unusable(path: Path, error: OSError) -> str:
    # The text of OpenSSL's error names its source code.
    why = "it holds no PEM certificate" if isinstance(error, ssl.SSLError) else error.strerror
    return f"The client CA file {path} cannot be used: {why}."
