"""The order of the decisions that wait in one class of the lane. Only for callers that hold the lane's lock.

Short decisions are first. Among decisions of one size, clients take turns, and then namespaces. A client is an address:
a client that reaches the port chooses the namespace of a review freely, so a namespace that has never been seen has no
advantage over others.
"""

from collections import Counter, OrderedDict
from typing import Final, Generic, Protocol, TypeVar

_AGED: Final = 8
"""Every eighth decision that is taken is the oldest one of any size: short ones do not delay it without limit."""


class Waiting(Protocol):
    """A decision that waits.

    Attributes:
        client: address of the peer that sent the review; empty if there is none.
        estimate: CPU seconds.
    """

    client: str
    namespace: str
    estimate: float


Job = TypeVar("Job", bound=Waiting)


class _Waiting(Generic[Job]):
    __slots__ = ("arrival", "job", "size", "turn")

    def __init__(self, job: Job, arrival: int, turn: int) -> None:
        self.job = job
        self.arrival = arrival
        self.turn = turn
        self.size = max(0, int(job.estimate * 1000)).bit_length()  # Powers of two: estimates are not more exact.

    @property
    def key(self) -> tuple[int, int, int]:
        return self.size, self.turn, self.arrival


class DecisionQueue(Generic[Job]):
    """Waiting decisions."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, list[_Waiting[Job]]] = OrderedDict()
        self._namespaces: Counter[str] = Counter()
        self._count = 0
        self._arrivals = 0
        self._taken = 0

    def __len__(self) -> int:
        return self._count

    def of_namespace(self, namespace: str) -> int:
        """Waiting decisions about objects of the namespace."""
        return self._namespaces[namespace]

    def add(self, job: Job, running: int = 0) -> None:
        """Add a decision; `running` is the number of those of its namespace that run already."""
        self._arrivals += 1
        turns = self._turns(job, running)
        self._clients.setdefault(job.client, []).append(_Waiting(job, self._arrivals, self._arrivals + turns))
        self._namespaces[job.namespace] += 1
        self._count += 1

    def _turns(self, job: Job, running: int) -> int:
        """Round robin: for each decision of its namespace that is before it, it lets the others pass once."""
        return (self._namespaces[job.namespace] + running) * (self._count + 2)

    def ahead(self, job: Job, running: int = 0) -> int:
        """The number of decisions that would run before a new one."""
        arrival = self._arrivals + 1
        key = _Waiting(job, arrival, arrival + self._turns(job, running)).key
        own = sum(each.key < key for each in self._clients.get(job.client, ()))
        size = key[0]
        others = 0
        for client, entries in self._clients.items():
            if client != job.client:
                same = sum(each.size == size for each in entries)
                others += sum(each.size < size for each in entries) + min(same, own + 1)
        return own + others

    def take(self) -> Job | None:
        """Remove and return the next decision."""
        if not self._count:
            return None
        self._taken += 1
        everything = [each for entries in self._clients.values() for each in entries]
        if self._taken % _AGED == 0:
            chosen = min(everything, key=lambda each: each.arrival)
        else:
            smallest = min(each.size for each in everything)
            # Clients are in the order of their last turn.
            entries = next(each for each in self._clients.values() if any(one.size == smallest for one in each))
            chosen = min(entries, key=lambda each: each.key)
        self.remove(chosen.job)
        if chosen.job.client in self._clients:
            self._clients.move_to_end(chosen.job.client)
        return chosen.job

    def remove(self, job: Job) -> bool:
        """Remove a decision; False if it does not wait."""
        entries = self._clients.get(job.client, [])
        for position, each in enumerate(entries):
            if each.job is job:
                del entries[position]
                break
        else:
            return False
        if not entries:
            del self._clients[job.client]
        self._namespaces[job.namespace] -= 1
        if not self._namespaces[job.namespace]:
            del self._namespaces[job.namespace]
        self._count -= 1
        return True

    def last(self) -> Job | None:
        """The decision that waits in vain soonest: the last one of the client with the most waiting decisions."""
        if not self._count:
            return None
        most = max(self._clients.values(), key=len)
        return max(most, key=lambda each: each.key).job

    def precedes(self, job: Job, other: Job) -> bool:
        """Whether a new decision may take the place of one that waits: its client has fewer there, or it is shorter."""
        mine = len(self._clients.get(job.client, ()))
        if job.client != other.client:
            return mine + 1 < len(self._clients[other.client])
        return _Waiting(job, 0, 0).size < _Waiting(other, 0, 0).size
