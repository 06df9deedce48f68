"""The allocator's model against Kubernetes' own (`k8s.io/dynamic-resource-allocation/structured`), on random cases.

NEURON_DRA_ALLOCATOR names a program that reads one case for each line, `{"node", "slices", "classes", "allocated",
"claims", "listTypeAttributes"}` as the API has these objects, and answers each with a line `{"allocations", "error"}`.
It needs no control plane, so the library can be newer than every scheduler that is at hand.
NEURON_DRA_ALLOCATOR_CASES sets how many cases are played.
"""

import copy
import json
import os
import random
import subprocess
from collections.abc import Iterator, Sequence
from typing import Final

import pytest

from kubeletplugin.publish.slices import ClusterFeatures
from neuron import names
from neuron.allocator.search import AllocatorResult
from neuron.api.allocation import read_allocation
from neuron.hardware import windows
from tests.support import mixtures, structured
from tests.support.mixtures import Object

PROGRAM: Final = os.environ.get("NEURON_DRA_ALLOCATOR", "")
CASES: Final = int(os.environ.get("NEURON_DRA_ALLOCATOR_CASES", "300"))

pytestmark = pytest.mark.skipif(
    not PROGRAM, reason="NEURON_DRA_ALLOCATOR names no program with the allocator of Kubernetes"
)

CLASS: Final = {
    "metadata": {"name": names.DEVICE_CLASS},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{names.DRIVER}"'}}]},
}


class Kubernetes:
    """The program with Kubernetes' allocator, and the claims that it allocated on one node."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.held: dict[int, Object] = {}
        self.slices: Sequence[Object] = ()
        self.lists = True

    def publish(self, contents: Sequence[Object], *, lists: bool = True) -> None:
        """Replace the node by one that publishes these slices and has no claims.

        Args:
            lists: whether list-type attributes are enabled: another implementation of the allocator has them.
        """
        self.lists = lists
        pool = {"name": "n", "generation": 1, "resourceSliceCount": len(contents)}
        scope = {"driver": names.DRIVER, "nodeName": "n", "pool": pool}
        self.slices = [
            {"metadata": {"name": f"s{number:03d}"}, "spec": scope | content} for number, content in enumerate(contents)
        ]
        self.held = {}

    def allocate(self, number: int, spec: Object) -> tuple[tuple[AllocatorResult, ...] | None, str]:
        """Allocate a claim and keep it: its devices, or None and the error, which is empty if it does not fit."""
        case = {
            "node": {"metadata": {"name": "n"}},
            "slices": self.slices,
            "classes": [CLASS],
            "allocated": list(self.held.values()),
            "claims": [{"spec": spec}],
            "listTypeAttributes": self.lists,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if not answer.get("allocations"):
            return None, answer.get("error", "")
        claim = {"metadata": {"name": "c"}, "spec": spec, "status": {"allocation": answer["allocations"][0]}}
        self.held[number] = claim
        return structured.results_of(claim), ""


@pytest.fixture(scope="module")
def kubernetes() -> Iterator[Kubernetes]:
    with subprocess.Popen([PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Kubernetes(process)
        assert process.stdin is not None
        process.stdin.close()


def counters_leak(kubernetes: Kubernetes, *, lists: bool) -> bool:
    """Whether this allocator has kubernetes/kubernetes#140436: then one device in use hides all other groups."""
    hardware = next(each for each in mixtures.HARDWARE if each.whole and not each.shared)
    kubernetes.publish(mixtures.slices(hardware), lists=lists)
    assert kubernetes.allocate(0, {"devices": {"requests": [mixtures.request("n0")]}})[0]
    group = {"matchAttribute": windows.attribute(4, 0)}
    four = {"devices": {"requests": [mixtures.request("n0", count=4)], "constraints": [group]}}
    return kubernetes.allocate(1, four)[0] is None


@pytest.mark.parametrize("kinds", [False, True], ids=["counters", "one-counter"])
@pytest.mark.parametrize("lists", [False, True], ids=["incubating", "experimental"])
def test_claims_for_what_the_driver_publishes_get_the_same_devices(
    kubernetes: Kubernetes, *, lists: bool, kinds: bool
) -> None:
    leak = counters_leak(kubernetes, lists=lists)
    claims = refused = 0
    for seed in range(CASES):
        case = mixtures.case(seed, ClusterFeatures(partition_types=kinds))
        kubernetes.publish(case.slices, lists=lists)
        model = structured.node_of(case.slices, counters_leak=leak)
        for number, step in enumerate(case.steps):
            if step.claim is None:
                if (gone := kubernetes.held.pop(step.leaves, None)) is not None:
                    model.release(structured.results_of(gone) or ())
                continue
            found, error = kubernetes.allocate(number, step.claim)
            claims, refused = claims + 1, refused + (found is None)
            assert model.allocate(structured.claim_of(step.claim)) == found, (seed, number, step.kind, error)
    assert 0 < refused < claims


def test_configs_are_in_force_as_the_claim_means_them(kubernetes: Kubernetes) -> None:
    """From 1.37 on, a config of an allocation that covers all requests names none of them."""
    kubernetes.publish(mixtures.slices(mixtures.HARDWARE[1]))
    alternatives = [mixtures.request(f"s{number}", count=1)["exactly"] | {"name": f"s{number}"} for number in (0, 1)]
    alternatives[0]["selectors"] = [{"cel": {"expression": "false"}}]
    requests = [{"name": "n0", "firstAvailable": alternatives}, mixtures.request("n1")]
    for names_, expected in (
        ([], (2, 2)),
        (["n0", "n1"], (2, 2)),
        (["n0/s1", "n1"], (2, 2)),
        (["n0/s0", "n0/s1"], (2, None)),
        (["n0/s0"], (None, None)),
        (["n1"], (None, 2)),
    ):
        parameters = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCore": 2}
        config = {"requests": names_, "opaque": {"driver": names.DRIVER, "parameters": parameters}}
        assert kubernetes.allocate(0, {"devices": {"requests": requests, "config": [config]}})[0]
        claim = kubernetes.held.pop(0)
        claim["metadata"] |= {"namespace": "ns", "uid": "u"}
        found = read_allocation(claim, names.DRIVER, "n", "u")
        assert tuple(found.in_force(each).logical_neuron_core for each in ("n0/s1", "n1")) == expected, names_


# --- attributes of every type, also lists -----------------------------------------------------------------------

KINDS: Final = {
    "int": (1, 2, 3),
    "string": ("a", "b", "c"),
    "bool": (True, False),
    "version": ("1.0.0", "2.0.0"),
}
TIED: Final = (f"{names.DRIVER}/one", f"{names.DRIVER}/other", names.ATTRIBUTE_NUMA_NODE)
INCLUDES: Final = f'device.attributes["{names.DRIVER}"].?kind.orValue([0]).includes(1)'


def attribute(chance: random.Random, kind: str) -> Object:
    """One value, or a list, which may name a value twice."""
    values = KINDS[kind]
    if chance.random() < 0.4:
        return {kind: chance.choice(values)}
    return {f"{kind}s": [chance.choice(values) for _ in range(chance.randint(1, 3))]}


def random_devices(chance: random.Random) -> list[Object]:
    """Devices whose attributes have lists, are missing, or differ in type."""
    found = []
    for number in range(chance.randint(2, 7)):
        attributes: dict[str, Object] = {"kind": attribute(chance, "int")}
        for name in TIED:
            if chance.random() < 0.9:
                # An attribute has the same type on most devices.
                attributes[name] = attribute(chance, chance.choice(list(KINDS)) if chance.random() < 0.05 else "int")
        if chance.random() < 0.5:
            attributes[f"{names.DRIVER}/text"] = attribute(chance, "string")
        found.append({"name": f"d{number}", "attributes": attributes})
    return found


def tied_claim(chance: random.Random) -> Object:
    """Requests of every kind with constraints that match or keep apart, over all of them or over some."""
    requests, references = [], []
    for number in range(chance.randint(1, 3)):
        name = f"r{number}"
        references.append(name)
        if chance.random() < 0.3:
            alternatives = [_devices(chance) | {"name": f"s{place}"} for place in range(chance.randint(1, 3))]
            references += [f"{name}/{each['name']}" for each in alternatives]
            requests.append({"name": name, "firstAvailable": alternatives})
        else:
            requests.append({"name": name, "exactly": _devices(chance)})
    constraints = []
    for _ in range(chance.randint(1, 2)):
        field = chance.choice(("matchAttribute", "distinctAttribute"))
        some = (
            {} if chance.random() < 0.4 else {"requests": chance.sample(references, chance.randint(1, len(references)))}
        )
        constraints.append({field: chance.choice((*TIED, f"{names.DRIVER}/text")), **some})
    return {"devices": {"requests": requests, "constraints": constraints}}


def _devices(chance: random.Random) -> Object:
    wanted: Object = {"deviceClassName": names.DEVICE_CLASS}
    if chance.random() < 0.3:
        wanted["selectors"] = [{"cel": {"expression": INCLUDES}}]
    if chance.random() < 0.1:
        return wanted | {"allocationMode": "All"}
    return wanted | {"count": chance.randint(1, 3)}


def test_list_type_attributes_are_matched_and_kept_apart_the_same_way(kubernetes: Kubernetes) -> None:
    claims = refused = 0
    for seed in range(10 * CASES):
        chance = random.Random(seed)  # noqa: S311 - a test
        slices = [{"devices": random_devices(chance)}]
        kubernetes.publish(slices)
        model = structured.node_of(copy.deepcopy(slices))
        for number in range(2):
            spec = tied_claim(chance)
            found, error = kubernetes.allocate(number, spec)
            claims, refused = claims + 1, refused + (found is None)
            assert model.allocate(structured.claim_of(spec)) == found, (seed, number, error, json.dumps([slices, spec]))
    assert 0 < refused < claims
