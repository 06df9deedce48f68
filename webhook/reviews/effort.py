"""Estimates the CPU seconds of a decision before it runs, and orders the decisions that wait in one class of the lane.

An estimate need not be exact: the lane moves a decision that takes much longer to a later class. It must not be much
lower than the true time for input that a tenant chooses. The rates were measured on one core with CPython 3.11.
"""

import re
from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Final, Generic, Protocol, TypeVar

from checks.claims.judging import ClaimContext, ReadSpec
from checks.claims.selectors import ExpressionMemory, Judged
from conversion.claims.work import WorkAllowance
from neuron.api.claim_specs import ClaimSpec

_PER_SELECTOR: Final = 0.0004
_PER_CHARACTER: Final = 20e-6
"""Measured 7 to 35 microseconds: parse, check, estimate, and evaluate on all devices of the catalogue."""
_PER_LOOP: Final = 0.004
"""A macro that loops or binds, or a function that compiles a pattern. Loops in loops multiply: squared."""
_LONGEST_SELECTOR: Final = 0.25
"""The limit of `kubecel.budget.Limits.seconds`; compiling has a limit for all selectors of an object."""
_MOST: Final = 1.0
"""The limit for all selectors of one object."""
_PER_BYTE_READ: Final = 0.3e-6
"""Measured 0.02 to 0.12 microseconds. Higher, because decoded objects take memory too: those above 32 KiB are medium,
of which fewer may wait."""
_PER_BYTE_JUDGED: Final = 0.5e-6
_PER_UNIT: Final = 0.2e-3
"""Pods that were searched for their work take up to 600 calls of functions for a unit (`tests/attacks/worst_pods.py`),
ordinary ones a third of that."""
ON_THE_LOOP: Final = 24
"""Units of work (`conversion.claims.work`) of a decision on the event loop: five milliseconds at most. An ordinary pod
has one or two containers for Neuron, and candidates of five kinds: 10 or 15 units."""
_PER_UNIT_JUDGED: Final = 6e-6
_ALONE: Final = 12
_PER_FINDING: Final = 2
JUDGED_ON_THE_LOOP: Final = 480
"""Units of all claims that are judged together on the event loop (`units_of_judging`). 32 requests with one constraint
and one config have 460."""
_LEAST: Final = 0.0003
_SELECTOR: Final = b'"expression"'
_ORDINARY: Final = 64
"""Characters of an ordinary selector."""

_RECENT: Final = 0.25
"""Weight of the last work in the moving average of its kind."""
_RISE: Final = 0.05
"""Weight of longer work in the least seconds of its kind."""
_MOST_KINDS: Final = 1024

Key = TypeVar("Key")

_LOOPS: Final = re.compile(
    r"\b(?:all|exists|exists_one|existsOne|map|filter|transform\w+|bind|opt\w*Map|sortBy|matches|find|findAll|replace"
    r"|split|join|format|range)\s*\("
)


def of_reading(size: int) -> float:
    """Seconds to decode `size` bytes of JSON."""
    return _LEAST + size * _PER_BYTE_READ


def of_deciding(size: int) -> float:
    """Seconds to check or convert an object of `size` bytes, without selectors."""
    return _LEAST + size * _PER_BYTE_JUDGED


def of_planning(units: int, size: int) -> float:
    """Seconds to decide about an object of `size` bytes with so many units of work (`conversion.claims.work`)."""
    return of_deciding(size) + units * _PER_UNIT


def on_the_loop() -> WorkAllowance:
    """The work that one decision on the event loop may take."""
    return WorkAllowance(ON_THE_LOOP)


def of_selectors(expressions: Iterable[str], memory: ExpressionMemory[Judged] | None) -> float:
    """Seconds to compile and evaluate selectors; those in `memory` take none."""
    seconds = 0.0
    for expression in dict.fromkeys(expressions):
        if memory is None or memory.get(expression) is None:
            loops = sum(1 for _ in _LOOPS.finditer(expression))
            own = _PER_SELECTOR + len(expression) * _PER_CHARACTER + loops * loops * _PER_LOOP
            seconds += min(own, _LONGEST_SELECTOR)
            if seconds >= _MOST:
                return _MOST
    return seconds


def units_of_judging(specs: Iterable[ReadSpec]) -> int:
    """The work of judging claims, without selectors: a unit is one request with one constraint or config, about 20
    calls of functions; what is checked of one request, or of one constraint on all types, is as much as `_ALONE`.

    What is wrong with the form was work already, and counts.
    """
    units = 0
    for each in specs:
        units += _PER_FINDING * len(each.form)
        if isinstance(each.spec, ClaimSpec):
            requests = sum([len(request.alternatives) for request in each.spec.requests])
            constraints, configs = len(each.spec.constraints), len(each.spec.configs)
            units += (requests + constraints) * _ALONE + requests * (constraints + configs)
    return units


def of_unread(spec: bytes) -> float:
    """Seconds to read and judge a spec of which only the bytes are known."""
    selectors = spec.count(_SELECTOR)
    seconds = selectors * _PER_SELECTOR + min(len(spec), selectors * _ORDINARY) * _PER_CHARACTER
    return of_reading(len(spec)) + of_deciding(len(spec)) + min(seconds, _MOST)


def of_judging(specs: Iterable[ReadSpec], size: int, context: ClaimContext) -> float:
    """Seconds to judge specs of `size` bytes together."""
    specs = list(specs)
    expressions = (each for spec in specs for each in spec.expressions(context.classes))
    units = units_of_judging(specs)
    return of_deciding(size) + units * _PER_UNIT_JUDGED + of_selectors(expressions, context.memory)


class Costs(Generic[Key]):
    """Recent CPU seconds of work by its kind and the power of two of its size. For the event loop only."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[Key, float, float]] = {}

    def expected(self, key: Key, size: int, otherwise: float) -> float:
        """The mean of work of one kind on `size` bytes; `otherwise` if none of it was done."""
        known = self._known.get((id(key), size.bit_length()))
        return otherwise if known is None or known[0] is not key else known[1]

    def least(self, key: Key, size: int, otherwise: float) -> float:
        """As `expected`, but about the least of the recent seconds.

        It is the estimate for the lane. A tenant can make its own work expensive. With the mean, work of the same kind
        of other tenants would wait behind all shorter work.
        """
        known = self._known.get((id(key), size.bit_length()))
        return otherwise if known is None or known[0] is not key else known[2]

    def took(self, key: Key, size: int, seconds: float) -> None:
        """Learn from work that is done."""
        place = (id(key), size.bit_length())
        mean, least = self.expected(key, size, seconds), self.least(key, size, seconds)
        if len(self._known) >= _MOST_KINDS and place not in self._known:
            self._known.clear()
        mean += _RECENT * (seconds - mean)
        self._known[place] = key, mean, min(seconds, least + _RISE * (seconds - least))


# --- the order in which decisions wait --------------------------------------------------------------------------
#
# For callers that hold the lane's lock. Short decisions are first. Among decisions of one size, clients take turns, and
# then namespaces. A client is an address: a client that reaches the port chooses the namespace of a review freely, so a
# namespace that has never been seen has no advantage over others.

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
