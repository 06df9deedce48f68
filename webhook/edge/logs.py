"""The decision log: one structured line per review on stderr, written in batches; and the log of refused requests.

Bodies of reviews are never logged: they contain the data of users. Quoted values are printable and at most as long as a
name. One client cannot fill the disk of the node, nor hide the lines of others (`LogShares`).
"""

import asyncio
import dataclasses
import logging
import re
import time
from collections import Counter
from collections.abc import Callable
from typing import BinaryIO, Final

import msgspec

from conversion.objects import wire
from runtime.logs import Format, Timestamps, line_of
from runtime.text import escaped
from runtime.tracing import NO_TRACE
from webhook.edge.bounds import BOUNDS
from webhook.edge.reviews import Rendered

log = logging.getLogger(__name__)

WINDOW: Final = 10.0
"""Seconds."""
FREE: Final = 512 * 1024
"""Bytes of lines per window that are not counted by client."""
OF_USER: Final = 256 * 1024
"""Further bytes of one user."""
OF_ADDRESS: Final = 1024 * 1024
"""Further bytes of one address."""
Client = tuple[str, str]
"""Address and user."""


FLUSH_AFTER: Final = 0.05
"""Seconds that decision lines wait to be written together: one system call per review would be the largest cost."""
FLUSH_ABOVE: Final = 65536
"""Bytes of decision lines from which they are written without waiting."""
_first_name: Final = re.compile(
    rb'\{(?:"(?:kind|apiVersion)":"[^"\\]*",)*"metadata":\{"(name|generateName)":"([^"\\]+)"'
).match
"""Matches an object as the API server writes it: type, then metadata with the name first. It is anchored at the start,
so a nested field cannot match, and its cost does not depend on the size of the object."""
REFUSAL_LINES: Final = 10
"""Log lines of one path and status in `WINDOW` seconds, with a count of the others: a refused client may retry without
a pause, and one line per request would fill the disk of the node and hide other lines."""


class _LoggedUser(msgspec.Struct):
    username: str = ""


_decode: Final = msgspec.json.Decoder(_LoggedUser).decode


class LogShares:
    """Bounds the bytes of each client. Only for the event loop's thread.

    In each window everyone writes until `FREE` bytes are written. After that, each user has a share, and so has each
    address. The address is that of the connection, which a client that sends reviews itself cannot choose; the user is
    what the review states, which is true if the API server sent it. A client that invents users has the share of its
    address.

    Attributes:
        left_out: lines that were left out, in total.
    """

    def __init__(self) -> None:
        self._ends = 0.0
        self._free = FREE
        self._users: Counter[Client] = Counter()
        self._addresses: Counter[str] = Counter()
        self._missing: Counter[Client] = Counter()
        self.left_out = 0

    def is_free(self, now: float) -> bool:
        """Whether lines are written without a look at the client. Call it first, for every line."""
        if not self._ends - WINDOW <= now < self._ends:
            self.report()
            self._ends = now + WINDOW
            self._free = FREE
            self._users.clear()
            self._addresses.clear()
        return self._free > 0

    def spend(self, size: int) -> None:
        """Count the bytes of a line that was written without a look at the client."""
        self._free -= size

    def admits(self, address: str, request: wire.AdmissionRequest) -> Client | None:
        """The client whose share has room for one more line; None: the line is left out, and counted."""
        client = self._known((address[: BOUNDS.name], _user_of(request)))
        if self._users.get(client, 0) < OF_USER and self._addresses.get(client[0], 0) < OF_ADDRESS:
            return client
        self._missing[client] += 1
        self.left_out += 1
        return None

    def charge(self, client: Client, size: int) -> None:
        """Count the bytes of a client's line."""
        self._users[client] += size
        self._addresses[client[0]] += size

    def report(self) -> None:
        """Log how many lines were left out since the last report, by client."""
        missing, self._missing = self._missing, Counter()
        for (address, user), count in missing.most_common(BOUNDS.reported):
            log.warning("decision lines left out", extra={"client": address, "user": user, "left_out": count})
        others = missing.total() - sum(count for _, count in missing.most_common(BOUNDS.reported))
        if others:
            log.warning("decision lines left out", extra={"client": "others", "left_out": others})

    def _known(self, client: Client) -> Client:
        """The client, without its user or address where there are too many to tell apart."""
        address, user = client
        if address not in self._addresses and len(self._addresses) >= BOUNDS.clients:
            address = "others"
        if (address, user) not in self._users and len(self._users) + len(self._missing) >= BOUNDS.clients:
            user = "others"
        return address, user


def _user_of(request: wire.AdmissionRequest) -> str:
    if request.userInfo == wire.ABSENT:
        return ""
    try:
        return _decode(request.userInfo).username[: BOUNDS.name]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


class _LoggedMetadata(msgspec.Struct, gc=False):
    name: str | None = None
    generateName: str | None = None  # noqa: N815 - the wire's spelling


class _Named(msgspec.Struct, gc=False):
    metadata: _LoggedMetadata


_decode_named: Final = msgspec.json.Decoder(_Named).decode


class DecisionLine(msgspec.Struct, tag_field="event", tag="decision", omit_defaults=True, gc=False):
    """One line of the decision log; the fields have the order of the line."""

    ts: str
    level: str
    uid: str
    operation: str
    kind: str
    decision: str
    reason: str
    dry_run: bool
    findings: tuple[str, ...]
    ms: float
    namespace: str = ""
    name: str = ""
    generateName: str = ""  # noqa: N815 - the wire's spelling
    trace_id: str = ""
    span_id: str = ""


class DecisionLog:
    """Writes decision lines in batches. Only for the event loop's thread."""

    def __init__(
        self, stream: BinaryIO, form: Format = "json", *, enabled: bool = True, clock: Callable[[], float] = time.time
    ) -> None:
        """Write to `stream`; `clock` returns seconds since the epoch."""
        self._stream = stream
        self._enabled = enabled
        self._clock = clock
        self._as_json = form == "json"
        self._encode_into = msgspec.json.Encoder().encode_into
        self._timestamps = Timestamps()
        self._buffer = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._report: asyncio.TimerHandle | None = None
        self.shares = LogShares()
        self.lost = 0

    def record(
        self,
        request: wire.AdmissionRequest,
        rendered: Rendered,
        seconds: float,
        trace: tuple[str, str] = NO_TRACE,
        address: str = "",
    ) -> None:
        """Add the line of a decision that took `seconds`.

        Args:
            trace: the result of `tracing.trace_of`.
            address: of the peer that sent the review.
        """
        if not self._enabled:
            return
        now, client = self._clock(), None
        if not self.shares.is_free(now):
            client = self.shares.admits(address, request)
            if client is None:
                if self._report is None:
                    self._report = asyncio.get_running_loop().call_later(WINDOW, self._report_now)
                return
        before = len(self._buffer)
        name = request.name
        generate_name = ""
        if not name:
            name, generate_name = _names(request.object)
        uid, operation, kind, namespace = request.uid, request.operation, request.kind.kind, request.namespace
        if len(uid) + len(operation) + len(kind) + len(namespace) + len(name) + len(generate_name) > BOUNDS.name:
            uid, operation, kind = _short(uid), _short(operation), _short(kind)
            namespace, name, generate_name = _short(namespace), _short(name), _short(generate_name)
        line = DecisionLine(
            self._timestamps.format(now),
            "info",
            uid,
            operation,
            kind,
            rendered.outcome,
            rendered.reason,
            request.dryRun,
            rendered.codes,
            round(seconds * 1000, 3),
            namespace,
            name,
            generate_name,
            *trace,
        )
        if self._as_json:
            self._encode_into(line, self._buffer, -1)
            self._buffer += b"\n"
        else:
            fields = msgspec.to_builtins(line)
            text = line_of(fields.pop("ts"), fields.pop("level"), fields.pop("event"), fields)
            self._buffer += f"{text}\n".encode()
        size = len(self._buffer) - before
        if client is None:
            self.shares.spend(size)
        else:
            self.shares.charge(client, size)
        if len(self._buffer) > FLUSH_ABOVE:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_AFTER, self.flush)

    def flush(self) -> None:
        """Write the pending lines. If that fails, the lines are lost and counted; reviews go on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending, self._buffer = self._buffer, bytearray()
        if not pending:
            return
        if not pending.isascii() or b"\x7f" in pending:
            # Lines in JSON need escapes; lines of text have them already. No line contains a line feed.
            pending = bytearray(b"\n".join(escaped(line.decode()).encode() for line in pending.split(b"\n")))
        try:
            self._stream.write(pending)
            self._stream.flush()
        except (OSError, ValueError):
            self.lost += pending.count(b"\n")

    def _report_now(self) -> None:
        self._report = None
        self.shares.report()


def _names(body: msgspec.Raw) -> tuple[str, str]:
    """`metadata.name` and `metadata.generateName`; needed while `request.name` is empty, before a name is generated."""
    try:
        first = _first_name(body)
        if first is not None:
            text = first[2].decode()
            return ("", text) if first[1] == b"generateName" else (text, "")
        metadata = _decode_named(body).metadata
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "", ""
    return metadata.name or "", metadata.generateName or ""


def _short(text: str) -> str:
    return text if len(text) <= BOUNDS.name else f"{text[: BOUNDS.name - 1]}…"


@dataclasses.dataclass(slots=True)
class _RefusalKind:
    """One path and status: start of the window, lines in it, refusals since the last line."""

    since: float
    lines: int = 0
    refused: int = 0


class RefusalLog:
    """Logs refused requests. Only for the event loop's thread.

    Memory is bounded: paths are those of our endpoints, and statuses are ours.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds."""
        self._clock = clock
        self._kinds: dict[tuple[str, int], _RefusalKind] = {}

    def refused(self, path: str, status: int, reason: str, client: str) -> None:
        """Log or count one refused request.

        Args:
            path: of an endpoint; empty if the request reached no endpoint.
            reason: the message that the client got.
            client: address and port.
        """
        now = self._clock()
        kind = self._kinds.setdefault((path, status), _RefusalKind(now))
        kind.refused += 1
        if now - kind.since >= WINDOW:
            kind.since, kind.lines = now, 0
        if kind.lines >= REFUSAL_LINES:
            return
        kind.lines += 1
        extra = {"path": path, "status": status, "reason": reason, "client": client, "refused": kind.refused}
        log.warning("request refused", extra=extra)
        kind.refused = 0
