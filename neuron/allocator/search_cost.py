"""An upper bound of what a claim costs the scheduler's allocator on a node where it does not fit.

The allocator searches depth first, one request after the other. Up to Kubernetes 1.35 a request for N devices tries
them in every order: N! orders of each set. From 1.36 on, it tries every set once. A request after one that was
allocated is tried again for each of these ways. While it searches, the scheduler schedules no other pod; it gives a
node up after 10 seconds. Measured with the allocators of 1.34.9, 1.35.6 and 1.36.2, a step takes 3 to 5 microseconds.
"""

import dataclasses
import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

MOST_STEPS: Final = 70_000
"""Steps that a claim may cost on a node, about 0.3 seconds."""


_MOST_COUNTED: Final = 64
"""Devices for which steps are counted: those of 32, the most in a claim, are far above `MOST_STEPS` already. The count
of a user's request has no other bound, and the sum has as many terms."""


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """The devices that one request chooses from.

    Attributes:
        places: sets of devices from which all of them are taken together, of all its alternatives.
        ways: sets of devices that it can get in each of these places: 1, unless the place has more than `count`.
        kind: requests of one kind take places from each other.
        beside: of the second of two requests for one run; its places overlap with those of the first.
    """

    count: int
    places: int
    ways: int = 1
    kind: object = None
    beside: "PlacesLeft | None" = None


@dataclasses.dataclass(frozen=True, slots=True)
class PlacesLeft:
    """What the first of two requests for one run leaves of the places of the second.

    Attributes:
        left: devices that are left of each place, by place of the first request.
        free: the places of the first request that can be free on a node without a free run: those that make the
            longest search.
        alike: places of both together that are the same run, at most.
    """

    left: tuple[tuple[int, ...], ...]
    free: tuple[int, ...]
    alike: int


Sets: TypeAlias = tuple[frozenset[int], ...]
"""Device ids of each place of a request, or of each run."""


@functools.lru_cache(maxsize=256)
def beside(first: Sets, second: Sets, runs: Sets) -> PlacesLeft:
    """What the places of one request leave of those of the next one. `runs`: those that both have together."""
    left = tuple(tuple(len(each - taken) for each in second) for taken in first)
    # With one device more, the search is longer by a factor of the number of devices.
    length = [sum(math.factorial(min(each, _MOST_COUNTED)) for each in row) for row in left]
    longest: tuple[int, tuple[int, ...]] = 0, ()
    for number in range(1, len(left) + 1):
        for chosen in itertools.combinations(range(len(left)), number):
            free = frozenset[int]().union(*(first[each] for each in chosen))
            if not any(map(free.issuperset, runs)):
                longest = max(longest, (sum(length[each] for each in chosen), chosen))
    pairs = Counter(one | other for one in first for other in second if not one & other)
    return PlacesLeft(left, longest[1], max((pairs[run] for run in runs), default=0))


@functools.cache
def tries(count: int, *, orders: bool) -> int:
    """Steps to find that a place lacks one of `count` devices; above `_MOST_COUNTED` those of that many."""
    free = min(count, _MOST_COUNTED) - 1
    return sum(math.perm(free, taken) if orders else math.comb(free, taken) for taken in range(free + 1))


def steps(choices: Iterable[Choice], *, orders: bool) -> int:
    """The most steps of a search that finds nothing.

    Args:
        choices: the requests in the order of the claim.
        orders: whether the allocator tries the devices of a request in every order (up to Kubernetes 1.35).
    """
    most = spent = 0
    ways = before = 1
    taken: dict[object, int] = {}
    joined = _joined(choices)
    for number, choice in enumerate(joined):
        # Requests for one device each are several requests: every version tries them in every order.
        ordered = orders or choice.kind == ANY
        if choice.beside is not None:
            left, count = choice.beside.left, choice.count
            lacking = [sum(tries(min(each + 1, count), orders=orders) for each in row) for row in left]
            most = max(most, spent + before * sum(lacking[each] for each in choice.beside.free))
            runs = sum(row.count(count) for row in left)
            if [each.kind for each in joined[number + 1 :]] == [ANY]:
                # So many devices are free beside a run only where all of them fit.
                runs = min(runs, joined[-1].count * choice.beside.alike)
            spent += before * (sum(lacking) + runs * _walked(count, orders=orders))
            ways = before * runs * (math.factorial(count) if orders else 1)
            continue
        most = max(most, spent + ways * choice.places * tries(choice.count, orders=ordered))
        places = choice.places
        if choice.kind is not None:
            # On a node where the claim does not fit, at least one place of a kind is not free.
            places = max(1, places - taken.get(choice.kind, 0))
            taken[choice.kind] = taken.get(choice.kind, 0) + 1
        sets = places * choice.ways
        spent += ways * sets * _walked(choice.count, orders=ordered)
        before = ways * (math.factorial(min(choice.count, _MOST_COUNTED)) if ordered else 1)
        ways = before * sets
    return most


@functools.cache
def _walked(count: int, *, orders: bool) -> int:
    """Steps through one set of free devices, all ways to take them included; bounded as `tries`."""
    count = min(count, _MOST_COUNTED)
    return sum(math.perm(count, taken) if orders else math.comb(count, taken) for taken in range(1, count + 1))


def _joined(choices: Iterable[Choice]) -> Sequence[Choice]:
    """Requests for any device, one after the other, are as costly as one request for all of them, in every order."""
    found: list[Choice] = []
    for choice in choices:
        last = found[-1] if found else None
        if choice.kind == ANY and last is not None and last.kind == ANY:
            found[-1] = dataclasses.replace(last, count=last.count + choice.count)
        else:
            found.append(choice)
    return found


ANY: Final = "any"
"""Kind of requests for one device, whichever it is."""
