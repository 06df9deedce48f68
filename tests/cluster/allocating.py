"""Claims through the real scheduler, without kubelets: what each node's claims are given, step by step."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tests.cluster.api import Api, Object
from tests.cluster.manifests import container, pod
from tests.cluster.nodes import Fleet
from tests.cluster.processes import eventually

_BOUND: Final = 240.0
"""Seconds until every pod of a round was bound or refused."""


def claim(name: str, spec: Mapping[str, Any]) -> Object:
    """A ResourceClaim."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": spec["devices"]},
    }


def on_node(node: str) -> Object:
    """Affinity that the scheduler answers by looking at this one node."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = [{"matchFields": [field]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def claiming_pod(name: str, node: str = "") -> Object:
    """A pod that uses the claim of its own name; on one node, or on any if none is given."""
    uses = container(resources={"claims": [{"name": "neuron"}]})
    claims = [{"name": "neuron", "resourceClaimName": name}]
    where = {"affinity": on_node(node)} if node else {}
    return pod(name, uses, resourceClaims=claims, terminationGracePeriodSeconds=0, **where)


def refusal(pod_object: Object) -> str:
    """Why the scheduler did not bind a pod; empty where it has not said so."""
    for condition in pod_object.get("status", {}).get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{condition['reason']}: {condition.get('message', '')}"
    return ""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one claim: the allocated claim, or the scheduler's refusal."""

    claim: Object | None
    refusal: str = ""


class Allocating:
    """Sends claims to nodes and reads what they were given."""

    def __init__(self, api: Api, namespace: str, fleet: Fleet) -> None:
        self._api = api
        self._namespace = namespace
        self._fleet = fleet

    def node(self, instance_type: str, slices: Iterable[Mapping[str, Any]]) -> str:
        """Add a node that publishes these slice specs (without `nodeName` and `pool`); returns its name."""
        return self._fleet.add_publishing(instance_type, slices)

    def allocate(self, wanted: Mapping[str, tuple[str, Mapping[str, Any]]]) -> dict[str, Outcome]:
        """Create claims and their pods at once; return when each was decided. Refused ones are removed again.

        Args:
            wanted: node and claim spec, by the claim's name.
        """
        for name, (node, spec) in wanted.items():
            self._api.create(claim(name, spec), self._namespace)
            self._api.create(claiming_pod(name, node), self._namespace)
        eventually("the scheduler to decide", lambda: self._decided(wanted), timeout=_BOUND, interval=0.1)
        pods = {each["metadata"]["name"]: each for each in self._api.list("Pod", self._namespace)}
        claims = {each["metadata"]["name"]: each for each in self._api.list("ResourceClaim", self._namespace)}
        refused = [name for name in wanted if not pods[name]["spec"].get("nodeName")]
        self.release(refused)
        return {
            name: Outcome(None, refusal(pods[name])) if name in refused else Outcome(claims[name]) for name in wanted
        }

    def _decided(self, wanted: Iterable[str]) -> bool:
        pods = {each["metadata"]["name"]: each for each in self._api.list("Pod", self._namespace)}
        waiting = [name for name in wanted if not pods[name]["spec"].get("nodeName") and not refusal(pods[name])]
        assert not waiting, f"{len(waiting)} are undecided, for example {waiting[0]}"
        return True

    def release(self, held: Sequence[str]) -> None:
        """Delete pods and claims; return when the API server has none of them."""
        for name in held:
            self._api.delete("Pod", name, self._namespace, force=True)
            self._api.delete("ResourceClaim", name, self._namespace)

        def gone() -> bool:
            left = {each["metadata"]["name"] for each in self._api.list("ResourceClaim", self._namespace)}
            return not left & set(held)

        if held:
            eventually("claims to be gone", gone, timeout=60)
