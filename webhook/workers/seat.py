"""What a worker has been given by the supervisor."""

import dataclasses
import socket

from webhook.workers.member import Member


@dataclasses.dataclass(frozen=True, slots=True)
class Seat:
    """A worker's place in a replica of several.

    Attributes:
        member: what it says to its siblings and hears of them.
        listener: of reviews, shared by all.
        metrics_listener: of scrapes, shared by all; None where metrics are not served.
        boxes: where each worker answers its siblings' questions for metrics, by number.
    """

    member: Member
    listener: socket.socket
    metrics_listener: socket.socket | None
    boxes: tuple[socket.socket, ...]
