"""Shares of the decision log: one client cannot fill the disk of the node, nor hide the lines of others.

In each window everyone writes until `FREE` bytes are written. After that, each user has a share, and so has each
address. The address is that of the connection, which a client that sends reviews itself cannot choose; the user is what
the review states, which is true if the API server sent it. A client that invents users has the share of its address.
"""

import logging
from collections import Counter
from typing import Final

import msgspec

from webhook.decisions import wire

log = logging.getLogger(__name__)

WINDOW: Final = 10.0
"""Seconds."""
FREE: Final = 512 * 1024
"""Bytes of lines per window that are not counted by client."""
OF_USER: Final = 256 * 1024
"""Further bytes of one user."""
OF_ADDRESS: Final = 1024 * 1024
"""Further bytes of one address."""
_MOST_CLIENTS: Final = 1024
"""Users, and addresses, that are told apart in a window; the others share one share."""
_MOST_REPORTED: Final = 10
_LONGEST_USER: Final = 253

Client = tuple[str, str]
"""Address and user."""


class _LoggedUser(msgspec.Struct):
    username: str = ""


_decode: Final = msgspec.json.Decoder(_LoggedUser).decode


class LogShares:
    """Counts the bytes of a window. Only for the event loop's thread.

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
            self._begin(now)
        return self._free > 0

    def spend(self, size: int) -> None:
        """Count the bytes of a line that was written without a look at the client."""
        self._free -= size

    def admits(self, address: str, request: wire.AdmissionRequest) -> Client | None:
        """The client whose share has room for one more line; None: the line is left out, and counted."""
        client = self._known((address[:_LONGEST_USER], _user_of(request)))
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
        for (address, user), count in missing.most_common(_MOST_REPORTED):
            log.warning("decision lines left out", extra={"client": address, "user": user, "left_out": count})
        others = missing.total() - sum(count for _, count in missing.most_common(_MOST_REPORTED))
        if others:
            log.warning("decision lines left out", extra={"client": "others", "left_out": others})

    def _begin(self, now: float) -> None:
        self.report()
        self._ends = now + WINDOW
        self._free = FREE
        self._users.clear()
        self._addresses.clear()

    def _known(self, client: Client) -> Client:
        """The client, without its user or address where there are too many to tell apart."""
        address, user = client
        if address not in self._addresses and len(self._addresses) >= _MOST_CLIENTS:
            address = "others"
        if (address, user) not in self._users and len(self._users) + len(self._missing) >= _MOST_CLIENTS:
            user = "others"
        return address, user


def _user_of(request: wire.AdmissionRequest) -> str:
    if request.userInfo == wire.ABSENT:
        return ""
    try:
        return _decode(request.userInfo).username[:_LONGEST_USER]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
