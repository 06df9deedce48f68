"""Whose reviews are answered: clients with a certificate of a given CA (`--client-ca`, `--client-name`).

The handshake verifies the certificate; here it is asked for. The kubelet probes the same port without one, so the
handshake does without, and only reviews insist.
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
"""Key of a connection's names in `scope["state"]`; absent where there is no verified certificate."""

_LONGEST_SHOWN: Final = 100
_NAME_KINDS: Final = ("DNS", "URI", "email", "IP Address")


def names_of(connection: ssl.SSLObject | None) -> tuple[str, ...] | None:
    """Common name and subject alternative names of the verified client certificate; None where there is none."""
    certificate = connection.getpeercert() if connection is not None else None
    if not certificate:
        return None
    # typeshed's type is that of all values together.
    subject = cast("Iterable[Iterable[tuple[str, str]]]", certificate.get("subject", ()))
    alternatives = cast("Iterable[tuple[str, str]]", certificate.get("subjectAltName", ()))
    common = [value for part in subject for kind, value in part if kind == "commonName"]
    return (*common, *(value for kind, value in alternatives if kind in _NAME_KINDS))


class Callers:
    """Who may send reviews."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """Let in verified certificates that carry one of `names`; without names, all of them."""
        self._names = frozenset(names)

    def refusal(self, scope: Scope) -> str:
        """Why the caller's reviews are not answered; empty where they are."""
        names = scope["state"].get(NAMES)
        if names is None:
            return "Reviews are taken from clients with a certificate of --client-ca; this connection has none."
        if self._names and self._names.isdisjoint(names):
            shown = ", ".join(names)[:_LONGEST_SHOWN] or "nobody"
            return f"The client certificate is for {shown}, which --client-name does not list."
        return ""


class ClientAuthority:
    """The file of CA certificates that client certificates are checked against, followed while the server runs.

    OpenSSL's contexts learn and never forget, so each version of the file gets a context of its own: from the next
    handshake on, exactly the CAs in the file are trusted.

    Attributes:
        tls: the context for the next handshake.
    """

    def __init__(self, path: Path, tls: ssl.SSLContext, fresh: Callable[[], ssl.SSLContext]) -> None:
        """Have `tls` ask clients for certificates; `fresh` makes a context that serves the same, and trusts no CA.

        Raises:
            StartupError: the file cannot be read or holds no certificate.
        """
        self.tls = tls
        self._path = path
        self._fresh: Callable[[], ssl.SSLContext] = lambda: tls
        self._trusted: frozenset[bytes] = frozenset()
        self._seen: tuple[int, int, int] | None = None
        try:
            self._load()
        except OSError as error:
            raise StartupError(f"{_unusable(path, error)} Check --client-ca.") from error
        self._fresh = fresh

    def follow(self) -> bool:
        """Take in the file if it has changed; whether it was. What cannot be used is logged, once."""
        if self._stamp() == self._seen:
            return False
        before = self._trusted
        try:
            self._load()
        except OSError as error:
            self._seen = self._stamp()
            reason = _unusable(self._path, error)
            log.error("client CA not reloaded: those in force stay", extra={"reason": reason})  # noqa: TRY400
            return False
        extra = {"file": str(self._path), "certificates": len(self._trusted), "removed": len(before - self._trusted)}
        log.info("client CA reloaded", extra=extra)
        return True

    def _load(self) -> None:
        self._seen = self._stamp()
        pem = read_regular(self._path).decode("ascii", errors="ignore")
        # Tried on its own first: a file that is half good must not be half trusted.
        alone = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            alone.load_verify_locations(cadata=pem)
        except ValueError as error:
            raise ssl.SSLError(str(error)) from error
        self.tls = self._fresh()
        self.tls.verify_mode = ssl.CERT_OPTIONAL
        # A resumed session would bring a verdict of the past.
        self.tls.options |= ssl.OP_NO_TICKET
        self.tls.num_tickets = 0
        self.tls.load_verify_locations(cadata=pem)
        self._trusted = frozenset(alone.get_ca_certs(binary_form=True))

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


def _unusable(path: Path, error: OSError) -> str:
    # OpenSSL's own words are about its source code.
    why = "it holds no PEM certificate" if isinstance(error, ssl.SSLError) else error.strerror
    return f"The client CA file {path} cannot be used: {why}."
