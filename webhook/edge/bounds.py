"""What one client may cost the edge, and how long an answer and a line of the log may be, in one table."""

import dataclasses
from typing import Final


@dataclasses.dataclass(frozen=True, slots=True)
class EdgeBounds:
    """Bytes and seconds, if nothing else is said. docs/security.md tells what comes beyond them."""

    # --- Connections.
    handshake: float = 5.0  # the API server's own time-out for a handshake is 10 s (Go's http.Transport)
    close: float = 2.0  # to read the rest of the answer and to close the client's side of TLS; asyncio's default is 30
    after_close: int = 256 * 1024  # are discarded; a client that sends more can still read its answer while it lingers
    linger: float = 1.0  # until the socket is closed, if the client does not close it
    lingering: int = 32  # sockets at the same time; they are not among --max-connections, others are closed at once

    # --- Requests. The head is all that is not body: request line, headers and, with a chunked body, sizes and
    # extensions of the chunks and trailers. The API server sends less than 1 KiB, plus up to 8 KiB of W3C baggage if
    # its tracing is enabled.
    head: int = 32 * 1024
    body_per_framing: int = 64  # of body for one more byte of framing; Go sends chunks of 4 KiB with 7 bytes of framing
    headers: int = 100
    pipelined: int = 8  # requests of one connection; Go's client does not pipeline
    unread: int = 1024 * 1024  # of bodies that come after their answer, such as of POST requests to an unknown path

    # --- Answers, as JSON.
    causes: int = 32 * 1024  # all causes of a denial
    message: int = 4 * 1024  # `status.message`
    warning: int = 256  # characters; the API server may truncate longer warnings (AdmissionResponse)
    warnings: int = 4 * 1024  # the API server drops what is beyond (`truncateAtTotalRunes`, filters/warning.go)
    audit: int = 12 * 1024  # all audit annotations

    # --- Lines of the log.
    name: int = 253  # characters of a name, namespace, kind, user or address, as of an RFC 1123 subdomain
    clients: int = 1024  # users, and addresses, that are told apart in a window; the others share one share
    reported: int = 10  # clients that are named because lines of theirs were left out


BOUNDS: Final = EdgeBounds()
