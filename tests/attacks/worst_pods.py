"""Searches for pods that take much work to decide, by hill climbing; work is counted in calls of functions."""

import asyncio
import dataclasses
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from conversion.claims import candidates, layout, making, planning
from neuron import names
from neuron.hardware.instances import Catalogue, Observation
from tests.support.clusters import FakeCluster, first_step, mutator, request
from webhook.reviews import effort
from webhook.reviews.mutate import Mutator
from webhook.reviews.worker_threads import LARGE_OBJECT

TYPES: Final = tuple(entry.name for entry in Catalogue())
RESOURCES: Final = (names.RESOURCE_NEURON, names.RESOURCE_NEURONCORE)
ROLES: Final = ("app", "sidecar", "init")
MOST_CONTAINERS: Final = 40
MOST_WORDS: Final = 90
MOST_CALLS: Final = 600 * effort.ON_THE_LOOP
"""Of Python functions for one pod on the event loop (see `effort`): with what they call in C, five milliseconds."""
_CHANGES: Final = 3


def _seen(*, sharing: Callable[[str], bool], counters: bool) -> dict[str, Observation]:
    """All types, as ResourceSlices of a cluster show them."""
    return {
        each.name: Observation(each.devices or 0, each.groups, sharing(each.name), counters=counters)
        for each in Catalogue()
    }


CLUSTERS: Final[Sequence[Callable[[], FakeCluster]]] = (
    FakeCluster,
    lambda: FakeCluster(kubernetes="v1.36.2"),
    lambda: FakeCluster(kubernetes="v1.36.2", seen=_seen(sharing=lambda name: name.startswith("inf"), counters=False)),
    lambda: FakeCluster(kubernetes="v1.36.2", seen=_seen(sharing=lambda _: True, counters=True)),
)


@dataclasses.dataclass(frozen=True)
class Shape:
    """What the work of a pod depends on.

    Attributes:
        cluster: position in `CLUSTERS`.
        containers: role, resource and amount of each.
        types: of the annotation.
        lnc: of the annotation; empty: none.
        words: entries of the node selector whose values have words that look like families.
    """

    cluster: int
    containers: tuple[tuple[str, str, int], ...]
    types: tuple[str, ...]
    lnc: str = ""
    words: int = 0

    def pod(self) -> dict[str, Any]:
        sections: dict[str, list[dict[str, Any]]] = {"containers": [], "initContainers": []}
        for number, (role, resource, amount) in enumerate(self.containers):
            item = {"name": f"c{number}", "image": "i", "resources": {"limits": {resource: str(amount)}}}
            if role == "sidecar":
                item["restartPolicy"] = "Always"
            sections["containers" if role == "app" else "initContainers"].append(item)
        if not sections["containers"]:
            sections["containers"].append({"name": "main", "image": "i"})
        annotations = {names.ANNOTATION_INSTANCE_TYPE: ",".join(self.types), names.ANNOTATION_LNC: self.lnc}
        metadata = {"name": "p", "annotations": {key: value for key, value in annotations.items() if value}}
        spec = {**sections, "nodeSelector": {f"k{at}": _words(at) for at in range(self.words)}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _words(number: int) -> str:
    """The value of a node selector, with as many words as fit."""
    category = ("trn", "inf", "trainium", "inferentia")[number % 4]
    return " ".join(f"{category}{number}{each}" for each in range(10))[:63]


def start(draw: random.Random) -> Shape:
    """A random pod."""
    number = draw.randint(1, 12)
    containers = tuple((draw.choice(ROLES), draw.choice(RESOURCES), draw.randint(1, 8)) for _ in range(number))
    return Shape(draw.randrange(len(CLUSTERS)), containers, tuple(draw.sample(TYPES, draw.randint(0, len(TYPES)))))


def changed(shape: Shape, draw: random.Random) -> Shape:
    """A pod that differs a little."""
    containers, types = list(shape.containers), list(shape.types)
    cluster, lnc, words = shape.cluster, shape.lnc, shape.words
    for _ in range(draw.randint(1, _CHANGES)):
        place = draw.randrange(len(containers))
        role, resource, amount = containers[place]
        match draw.randrange(8):
            case 0 if len(containers) < MOST_CONTAINERS:
                containers.insert(place, (draw.choice(ROLES), draw.choice(RESOURCES), draw.randint(1, 16)))
            case 1 if len(containers) > 1:
                del containers[place]
            case 2 | 3:
                containers[place] = (role, resource, draw.randint(1, draw.choice((4, 16, 64))))
            case 4:
                containers[place] = (draw.choice(ROLES), draw.choice(RESOURCES), amount)
            case 5:
                name = draw.choice(TYPES)
                types.remove(name) if name in types else types.append(name)
            case 6:
                words = draw.choice((0, draw.randint(0, MOST_WORDS)))
            case _:
                cluster, lnc = draw.randrange(len(CLUSTERS)), draw.choice(("", "", "1", "2"))
    return Shape(cluster, tuple(containers), tuple(types), lnc, words)


class Work:
    """Counts the calls of a decision of which nothing is remembered."""

    def __init__(self) -> None:
        self._mutators: dict[int, Mutator] = {}

    def on_the_loop(self, shape: Shape) -> int:
        """Calls on the event loop: until there is a decision, or it is left to the lane.

        The second time: the first fills caches of types, and depends on what ran before in this process.
        """
        review = request(shape.pod(), dryRun=True)
        first_step(self.mutator_of(shape).review(review))
        found = self.mutator_of(shape)
        return counted_calls(lambda: first_step(found.review(review)))

    def in_all(self, shape: Shape) -> int:
        """Calls of the whole decision."""
        found = self.mutator_of(shape)
        review = request(shape.pod(), dryRun=True)
        return counted_calls(lambda: asyncio.run(found.review(review)))

    def mutator_of(self, shape: Shape) -> Mutator:
        """A mutator of the shape's cluster that remembers nothing."""
        own = making._remembered, making._choices, making._requests, planning.remembered_plans
        for cache in (*own, candidates._remembered, layout.fits):
            cache.cache_clear()
        found = self._mutators.get(shape.cluster)
        if found is None:
            found = self._mutators[shape.cluster] = mutator(CLUSTERS[shape.cluster]())
        found._decisions.clear()
        return found


def counted_calls(work: Callable[[], object]) -> int:
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def from_bytes(data: bytes) -> Shape:
    """A pod for any bytes: two for each container, after the cluster, the LNC and a bit for each type."""
    head, rest = data[:6].ljust(6, b"\0"), data[6:].ljust(2, b"\0")
    bits = int.from_bytes(head[2:6], "big")
    containers = tuple(
        (ROLES[rest[at] % len(ROLES)], RESOURCES[rest[at] // 3 % len(RESOURCES)], rest[at + 1] % 64 + 1)
        for at in range(0, min(len(rest) - 1, 2 * MOST_CONTAINERS), 2)
    )
    types = tuple(name for number, name in enumerate(TYPES) if bits >> number & 1)
    return Shape(head[0] % len(CLUSTERS), containers, types, ("", "1", "2")[head[1] % 3], head[1] // 3 % MOST_WORDS)


def climb(draw: random.Random, cost: Callable[[Shape], int], tries: int) -> tuple[int, Shape]:
    """The pod of at most `LARGE_OBJECT` bytes with the most work that is found in so many tries."""
    best = shape = start(draw)
    most = highest = cost(shape)
    stale = 0
    for _ in range(tries):
        other = changed(shape, draw)
        if len(str(other.pod())) > LARGE_OBJECT:
            continue
        calls = cost(other)
        if calls > highest:
            shape, highest, stale = other, calls, 0
        else:
            stale += 1
        if highest > most:
            best, most = shape, highest
        if stale > tries // 5:
            shape = start(draw)
            highest, stale = cost(shape), 0
    return most, best
