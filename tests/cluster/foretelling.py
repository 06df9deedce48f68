"""Plays random cases on the real scheduler and compares each outcome with the answer of `neuron-dra explain`."""

import dataclasses
import datetime as dt
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from commands.cluster.snapshot import ClusterSnapshot
from commands.devices.allocator_inputs import PodClaim, Selects, read_demand, result_of
from commands.devices.node_devices import ClusterDevices
from commands.explain.explanation import Block, NodeVerdict
from commands.explain.placement import place
from neuron.allocator.search import AllocatorResult
from neuron.api.claim_reader import claim_spec, read_class
from neuron.api.claim_specs import ClassSpec
from neuron.api.nodes import read_node
from neuron.api.slices import read_slice
from neuron.api.stored_claims import StoredClaim, read_stored_claim
from tests.cluster.allocating import claim, claiming_pod, refusal
from tests.cluster.api import Api, Object
from tests.cluster.comparing import SETTLE
from tests.cluster.nodes import Fleet
from tests.cluster.processes import eventually
from tests.support import mixtures
from tests.support.mixtures import Case

_BOUND: Final = 240.0
_TAKEN: Final = dt.datetime(2026, 11, 22, tzinfo=dt.UTC)
_TAINT: Final = {"key": "team", "value": "b", "effect": "NoSchedule"}
_ZONE: Final = "example.com/zone"
_OF_DEVICES: Final = frozenset(Block) - {Block.CORDONED, Block.NODE_TAINT, Block.SELECTION}


@dataclasses.dataclass(slots=True)
class Agreement:
    """What was compared.

    Attributes:
        pods: how many were decided.
        refused: how many of them the scheduler refused.
        by_devices: how many of these explain refuses for a reason of devices.
        differences: one sentence each.
    """

    pods: int = 0
    refused: int = 0
    by_devices: int = 0
    differences: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class _Play:
    seed: int
    case: Case
    chance: random.Random
    node: str = ""
    held: dict[int, str] = dataclasses.field(default_factory=dict)


class Foretelling:
    """Explains pods of a namespace before they are created."""

    def __init__(self, api: Api, namespace: str, fleet: Fleet) -> None:
        self._api = api
        self._namespace = namespace
        self._fleet = fleet
        self._version = str(api.request("GET", "/version").body["gitVersion"])
        self._selects = Selects()
        self._classes: dict[str, ClassSpec] = {
            each["metadata"]["name"]: read_class(each["apiVersion"], each["spec"])[0] for each in self._classes_of(api)
        }

    @staticmethod
    def _classes_of(api: Api) -> list[Object]:
        return [{"apiVersion": "resource.k8s.io/v1", **each} for each in api.list("DeviceClass")]

    # --- one node for each case ---------------------------------------------------------------------------------

    def play(self, seeds: Sequence[int]) -> Agreement:
        """Play the cases of the seeds side by side, each on a node of its own, one step of all after the other."""
        found = Agreement()
        plays = [_Play(seed, mixtures.case(seed), random.Random(seed)) for seed in seeds]  # noqa: S311 - a test
        for each in plays:
            each.node = self._node(each)
        time.sleep(SETTLE)
        for number in range(mixtures.MOST_STEPS):
            self._leave(plays, number)
            self._step([play for play in plays if number < len(play.case.steps)], number, found)
        return found

    def _node(self, play: _Play) -> str:
        """A node with a taint, a label or a cordon that some pods do not tolerate or select."""
        taints = [_TAINT] if play.chance.random() < 0.15 else []
        labels = {_ZONE: play.chance.choice("ab")}
        name = self._fleet.add_publishing(play.case.hardware.name, play.case.slices, labels=labels, taints=taints)
        if play.chance.random() < 0.05:
            self._api.merge("Node", name, {"spec": {"unschedulable": True}})
        return name

    def _pod(self, play: _Play, name: str) -> Object:
        found = claiming_pod(name, play.node)
        if play.chance.random() < 0.5:
            found["spec"]["tolerations"] = [{"key": "team", "operator": "Exists"}]
        if play.chance.random() < 0.1:
            found["spec"]["nodeSelector"] = {_ZONE: play.chance.choice("ab")}
        return found

    def _leave(self, plays: Sequence[_Play], number: int) -> None:
        names = [
            play.held.pop(play.case.steps[number].leaves)
            for play in plays
            if number < len(play.case.steps) and play.case.steps[number].leaves in play.held
        ]
        self._release(names)
        if names:
            time.sleep(SETTLE)

    def _step(self, plays: Sequence[_Play], number: int, found: Agreement) -> None:
        arriving = {
            f"case{play.seed}-{number}": (play, play.case.steps[number].claim or {})
            for play in plays
            if play.case.steps[number].claim is not None
        }
        pods = {name: self._pod(play, name) for name, (play, _) in arriving.items()}
        objects = self._objects()
        told = {
            name: self._explained(pods[name], spec, self._of_node(objects, play.node))[0]
            for name, (play, spec) in arriving.items()
        }
        outcomes = self._outcomes({name: (pods[name], spec) for name, (_, spec) in arriving.items()})
        for name, (play, _) in arriving.items():
            results, words = outcomes[name]
            if results is not None:
                play.held[number] = name
            where = f"seed {play.seed}, step {number} ({play.case.steps[number].kind} on {play.case.hardware.name})"
            self._compare(where, told[name], results, words, found)

    # --- all nodes for every pod --------------------------------------------------------------------------------

    def choose(self, seeds: Sequence[int], nodes: int) -> Agreement:
        """Pods that may run on any of some nodes, one after the other: the scheduler takes one that explain names."""
        found = Agreement()
        for seed in range(nodes):
            self._node(_Play(seed, mixtures.case(seed), random.Random(seed)))  # noqa: S311
        time.sleep(SETTLE)
        held: list[str] = []
        for seed in seeds:
            chance = random.Random(seed)  # noqa: S311
            steps = [step for step in mixtures.case(seed).steps if step.claim is not None]
            spec = chance.choice(steps).claim or {}
            name = f"any-{seed}"
            pod = self._pod(_Play(seed, mixtures.case(seed), chance), name)
            verdicts = {each.node: each for each in self._explained(pod, spec, self._objects())}
            results, words = self._outcomes({name: (pod, spec)})[name]
            fitting = [each for each in verdicts.values() if each.fits]
            if results is None:
                told = fitting[0] if fitting else next(iter(verdicts.values()))
            else:
                told = verdicts[str(self._api.get("Pod", name, self._namespace)["spec"]["nodeName"])]
                held.append(name)
            if len(held) > 2 * nodes:
                self._release([held.pop(chance.randrange(len(held)))])
            self._compare(f"pod {seed}", told, results, words, found)
        return found

    # --- both sides ---------------------------------------------------------------------------------------------

    def _objects(self) -> ClusterSnapshot:
        """The cluster as `explain` reads it."""
        kinds = ("Node", "ResourceSlice", "ResourceClaim", "Pod")
        nodes, slices, claims, pods = (tuple(self._api.list(kind)) for kind in kinds)
        return ClusterSnapshot(
            "",
            _TAKEN,
            tuple(map(read_node, nodes)),
            tuple(map(read_slice, slices)),
            tuple(map(read_stored_claim, claims)),
            pods,
        )

    @staticmethod
    def _of_node(found: ClusterSnapshot, node: str) -> ClusterSnapshot:
        """The part of a snapshot that concerns one node."""
        nodes, slices, claims = (seen for seen in (found.nodes, found.slices, found.claims) if isinstance(seen, tuple))
        return dataclasses.replace(
            found,
            nodes=tuple(each for each in nodes if each.name == node),
            slices=tuple(each for each in slices if each.node == node),
            claims=tuple(each for each in claims if _is_on(each, node)),
            pods=(),
        )

    def _explained(self, pod: Object, spec: Mapping[str, Any], found: ClusterSnapshot) -> Sequence[NodeVerdict]:
        cluster = ClusterDevices.of(found, self._version)
        assert cluster is not None
        return place(
            pod, read_demand([PodClaim("neuron", claim_spec(spec))], self._classes, self._selects), (), cluster
        )

    def _outcomes(
        self, wanted: Mapping[str, tuple[Object, Mapping[str, Any]]]
    ) -> dict[str, tuple[tuple[AllocatorResult, ...] | None, str]]:
        """The scheduler's result for each pod, or None and its message; refused pods are removed again."""
        for name, (pod, spec) in wanted.items():
            self._api.create(claim(name, spec), self._namespace)
            self._api.create(pod, self._namespace)
        eventually("the scheduler to decide", lambda: self._decided(wanted), timeout=_BOUND, interval=0.05)
        pods = {each["metadata"]["name"]: each for each in self._api.list("Pod", self._namespace)}
        claims = {
            each["metadata"]["name"]: read_stored_claim(each)
            for each in self._api.list("ResourceClaim", self._namespace)
        }
        refused = [name for name in wanted if not pods[name]["spec"].get("nodeName")]
        self._release(refused)
        return {
            name: (None, refusal(pods[name])) if name in refused else (tuple(map(result_of, claims[name].ours)), "")
            for name in wanted
        }

    def _decided(self, wanted: Mapping[str, Any]) -> bool:
        pods = {each["metadata"]["name"]: each for each in self._api.list("Pod", self._namespace)}
        waiting = [name for name in wanted if not pods[name]["spec"].get("nodeName") and not refusal(pods[name])]
        assert not waiting, f"{len(waiting)} are undecided, for example {waiting[0]}"
        return True

    def _release(self, names: Sequence[str]) -> None:
        for name in names:
            self._api.delete("Pod", name, self._namespace, force=True)
            self._api.delete("ResourceClaim", name, self._namespace)

        def gone() -> bool:
            left = {each["metadata"]["name"] for each in self._api.list("ResourceClaim", self._namespace)}
            return not left & set(names)

        if names:
            eventually("claims to be gone", gone, timeout=_BOUND)

    @staticmethod
    def _compare(
        where: str, told: NodeVerdict, results: tuple[AllocatorResult, ...] | None, words: str, found: Agreement
    ) -> None:
        found.pods += 1
        found.refused += results is None
        found.by_devices += results is None and told.block in _OF_DEVICES
        if (told.devices if told.fits else None) != results:
            expected = ", ".join(told.texts) if told.fits else f"{told.block}: {told.reason}"
            actual = words[:300] if results is None else ", ".join(f"{each.request}={each.device}" for each in results)
            found.differences.append(f"{where}: explain says {expected}; the scheduler {actual}")


def _is_on(found: StoredClaim, node: str) -> bool:
    return any(each.pool == node for each in found.allocation.results) if found.allocation is not None else False
