"""Requests of the release's ServiceAccounts: those of the programs, and those of an attacker who has a token.

`tests/deploy/test_account_policies.py` evaluates the chart's policies on them;
`tests/cluster/test_accounts.py` sends them to a real API server.
"""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from kubeletplugin.discover.health import NodeFacts
from kubeletplugin.discover.own_node import NodeState
from kubeletplugin.node_events import device_plugin, node_event
from kubeletplugin.settings import Guard
from tests.deploy.charts import Object

NODE: Final = "node-1"
OTHER_NODE: Final = "node-2"
DRIVER: Final = "neuron-dra-kubelet-plugin"
SLICES: Final = "resource.k8s.io/v1/resourceslices"
NODES: Final = "/v1/nodes"
EVENTS: Final = "/v1/events"
DEAD_OWNER: Final = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "name": "gone",
    "uid": "00000000-0000-0000-0000-000000000000",
}
"""With it, the garbage collector deletes an object."""


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        name: of the test.
        account: name of the ServiceAccount.
        verb: POST, PUT, PATCH (merge) or DELETE.
        resource: `group/version/plural`; the group may be empty.
        body: the new object, or the patch.
        old: the object that exists before; None: none.
        said: part of the message of the policy that denies it; empty: it is allowed.
        rbac: whether RBAC denies it already.
        dry_run: whether it is a dry run.
    """

    name: str
    account: str
    verb: str
    resource: str
    body: Object | None = None
    old: Object | None = None
    said: str = ""
    rbac: bool = False
    dry_run: bool = False

    @property
    def operation(self) -> str:
        return {"POST": "CREATE", "DELETE": "DELETE"}.get(self.verb, "UPDATE")

    @property
    def new(self) -> Object | None:
        """`object` of the review."""
        if self.verb == "PATCH":
            return changed(self.old or {}, self.body or {})
        return self.body


@dataclasses.dataclass(frozen=True, slots=True)
class Writes:
    """What one account sends about one resource; `said` and `more` as in `Request`."""

    account: str
    resource: str

    def create(self, name: str, body: Object, said: str = "", **more: bool) -> Request:
        return Request(name, self.account, "POST", self.resource, body, None, said, **more)

    def replace(self, name: str, old: Object, body: Object, said: str = "") -> Request:
        return Request(name, self.account, "PUT", self.resource, body, old, said)

    def patch(self, name: str, old: Object, patch: Object, said: str = "", **more: bool) -> Request:
        return Request(name, self.account, "PATCH", self.resource, patch, old, said, **more)

    def delete(self, name: str, old: Object, said: str = "", **more: bool) -> Request:
        return Request(name, self.account, "DELETE", self.resource, None, old, said, **more)


def merged(below: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7386)."""
    if not isinstance(patch, Mapping):
        return patch
    made = dict(below) if isinstance(below, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = merged(made.get(key), value)
    return made


def changed(obj: Object, patch: Object) -> Object:
    found: Object = merged(copy.deepcopy(obj), patch)
    return found


# --- the driver on NODE -----------------------------------------------------------------------------------------

_OWN: Final[Object] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "own"},
    "spec": {
        "driver": "neuron.aws.com",
        "nodeName": NODE,
        "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "neuron-device-0"}],
    },
}
_OTHERS: Final = changed(
    _OWN, {"metadata": {"name": "others"}, "spec": {"nodeName": OTHER_NODE, "pool": {"name": OTHER_NODE}}}
)
_FOREIGN_POOL: Final = changed(_OWN, {"spec": {"pool": {"name": OTHER_NODE}}})
_SELECTOR: Final = {
    "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}]
}
_PER_DEVICE: Final = {"perDeviceNodeSelection": True, "nodeName": None, "devices": [{"name": "a", "nodeName": NODE}]}
_NODE: Final[Object] = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": NODE, "labels": {"node.kubernetes.io/instance-type": "trn2.48xlarge"}},
    "spec": {},
}
_POOL_SAID: Final = f"may write ResourceSlices of the pool {NODE} only, not of {OTHER_NODE}"
_NO_NODE: Final = "may not write ResourceSlices of no single node"
_LABELS_SAID: Final = (
    "may change the UltraServer labels (neuron.amazonaws.com/ultraserver-*) and the label "
    "neuron.amazonaws.com/present of a node only"
)
_STATE: Final = NodeState(NodeFacts(NODE, "0a", "trn2.48xlarge"), {"aws.amazon.com/neuron": 16})
_EVENT: Final = node_event(_STATE.facts, device_plugin(_STATE, Guard.TAINT), 0.0)


def _label(**labels: str) -> Object:
    return {"metadata": {"labels": {key.replace("_", "-"): value for key, value in labels.items()}}}


_ON_SLICES: Final = Writes(DRIVER, SLICES)
_ON_NODES: Final = Writes(DRIVER, NODES)
_ON_EVENTS: Final = Writes(DRIVER, EVENTS)
DRIVER_REQUESTS: Final = (
    _ON_SLICES.create("own slice", _OWN),
    _ON_SLICES.replace("own slice again", _OWN, changed(_OWN, {"spec": {"pool": {"generation": 2}}})),
    _ON_SLICES.delete("own slice removed", _OWN),
    _ON_SLICES.create("slice in the pool of another node", _FOREIGN_POOL, _POOL_SAID),
    _ON_SLICES.create(
        "slice in a pool of another name", changed(_OWN, {"spec": {"pool": {"name": "rack-1"}}}), "not of rack-1"
    ),
    _ON_SLICES.replace("own slice moved to the pool of another node", _OWN, _FOREIGN_POOL, _POOL_SAID),
    _ON_SLICES.replace("slice in the pool of another node taken", _FOREIGN_POOL, _OWN, _POOL_SAID),
    _ON_SLICES.delete("slice in the pool of another node removed", _FOREIGN_POOL, _POOL_SAID),
    _ON_SLICES.create("slice of another node", _OTHERS, f"may not write ResourceSlices of node {OTHER_NODE}"),
    _ON_SLICES.delete("slice of another node removed", _OTHERS, f"of node {OTHER_NODE}"),
    _ON_SLICES.create("slice of every node", changed(_OWN, {"spec": {"nodeName": None, "allNodes": True}}), _NO_NODE),
    _ON_SLICES.create(
        "slice of selected nodes", changed(_OWN, {"spec": {"nodeName": None, "nodeSelector": _SELECTOR}}), _NO_NODE
    ),
    _ON_SLICES.create("slice with a node for each device", changed(_OWN, {"spec": _PER_DEVICE}), _NO_NODE),
    _ON_SLICES.create(
        "slice of another driver",
        changed(_OWN, {"spec": {"driver": "gpu.example.com"}}),
        "of the driver neuron.aws.com only",
    ),
    _ON_SLICES.create(
        "slice with a finalizer", changed(_OWN, {"metadata": {"finalizers": ["a.example.com/b"]}}), "have no finalizers"
    ),
    _ON_SLICES.create(
        "slice that keeps a namespace from being deleted",
        changed(
            _OWN,
            {
                "metadata": {
                    "ownerReferences": [
                        {
                            "apiVersion": "v1",
                            "kind": "Namespace",
                            "name": "default",
                            "uid": "0a",
                            "blockOwnerDeletion": True,
                        }
                    ]
                }
            },
        ),
        "belong to the Node of the driver",
    ),
    _ON_NODES.patch("own label", _NODE, {"metadata": {"labels": {"neuron.amazonaws.com/ultraserver-mode": "4"}}}),
    _ON_NODES.patch(
        "label of a node with devices", _NODE, {"metadata": {"labels": {"neuron.amazonaws.com/present": "true"}}}
    ),
    _ON_NODES.patch("another label", _NODE, _label(team="a"), _LABELS_SAID),
    _ON_NODES.patch("an owner of the node", _NODE, {"metadata": {"ownerReferences": [DEAD_OWNER]}}, _LABELS_SAID),
    _ON_NODES.patch("a finalizer of the node", _NODE, {"metadata": {"finalizers": ["a.example.com/b"]}}, _LABELS_SAID),
    _ON_NODES.patch("an annotation of the node", _NODE, {"metadata": {"annotations": {"a": "b"}}}, _LABELS_SAID),
    _ON_NODES.patch(
        "a taint of the node", _NODE, {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}, _LABELS_SAID
    ),
    _ON_EVENTS.create("own event", _EVENT),
    _ON_EVENTS.create(
        "event of the kubelet", changed(_EVENT, {"source": {"component": "kubelet"}}), "under its own name only"
    ),
    _ON_EVENTS.create(
        "event of another reporter", changed(_EVENT, {"reportingComponent": "kubelet"}), "under its own name only"
    ),
    _ON_EVENTS.create(
        "event with another reason", changed(_EVENT, {"reason": "NodeNotReady"}), "under its own name only"
    ),
    _ON_EVENTS.create(
        "event with an owner", changed(_EVENT, {"metadata": {"ownerReferences": [DEAD_OWNER]}}), "no owners"
    ),
    _ON_EVENTS.create(
        "event about another node", changed(_EVENT, {"involvedObject": {"name": OTHER_NODE}}), "about its own node only"
    ),
)
