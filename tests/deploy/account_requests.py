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


def _of_driver(name: str, verb: str, body: Object | None = None, old: Object | None = None, said: str = "") -> Request:
    return Request(name, DRIVER, verb, SLICES, body, old, said)


def _label(**labels: str) -> Object:
    return {"metadata": {"labels": {key.replace("_", "-"): value for key, value in labels.items()}}}


DRIVER_REQUESTS: Final = (
    _of_driver("own slice", "POST", _OWN),
    _of_driver("own slice again", "PUT", changed(_OWN, {"spec": {"pool": {"generation": 2}}}), _OWN),
    _of_driver("own slice removed", "DELETE", old=_OWN),
    _of_driver("slice in the pool of another node", "POST", _FOREIGN_POOL, said=_POOL_SAID),
    _of_driver(
        "slice in a pool of another name",
        "POST",
        changed(_OWN, {"spec": {"pool": {"name": "rack-1"}}}),
        said="not of rack-1",
    ),
    _of_driver("own slice moved to the pool of another node", "PUT", _FOREIGN_POOL, _OWN, _POOL_SAID),
    _of_driver("slice in the pool of another node taken", "PUT", _OWN, _FOREIGN_POOL, _POOL_SAID),
    _of_driver("slice in the pool of another node removed", "DELETE", old=_FOREIGN_POOL, said=_POOL_SAID),
    _of_driver("slice of another node", "POST", _OTHERS, said=f"may not write ResourceSlices of node {OTHER_NODE}"),
    _of_driver("slice of another node removed", "DELETE", old=_OTHERS, said=f"of node {OTHER_NODE}"),
    _of_driver(
        "slice of every node", "POST", changed(_OWN, {"spec": {"nodeName": None, "allNodes": True}}), said=_NO_NODE
    ),
    _of_driver(
        "slice of selected nodes",
        "POST",
        changed(_OWN, {"spec": {"nodeName": None, "nodeSelector": _SELECTOR}}),
        said=_NO_NODE,
    ),
    _of_driver("slice with a node for each device", "POST", changed(_OWN, {"spec": _PER_DEVICE}), said=_NO_NODE),
    _of_driver(
        "slice of another driver",
        "POST",
        changed(_OWN, {"spec": {"driver": "gpu.example.com"}}),
        said="of the driver neuron.aws.com only",
    ),
    _of_driver(
        "slice with a finalizer",
        "POST",
        changed(_OWN, {"metadata": {"finalizers": ["a.example.com/b"]}}),
        said="have no finalizers",
    ),
    _of_driver(
        "slice that keeps a namespace from being deleted",
        "POST",
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
        said="belong to the Node of the driver",
    ),
    Request(
        "own label",
        DRIVER,
        "PATCH",
        NODES,
        {"metadata": {"labels": {"neuron.amazonaws.com/ultraserver-mode": "4"}}},
        _NODE,
    ),
    Request(
        "label of a node with devices",
        DRIVER,
        "PATCH",
        NODES,
        {"metadata": {"labels": {"neuron.amazonaws.com/present": "true"}}},
        _NODE,
    ),
    Request("another label", DRIVER, "PATCH", NODES, _label(team="a"), _NODE, _LABELS_SAID),
    Request(
        "an owner of the node",
        DRIVER,
        "PATCH",
        NODES,
        {"metadata": {"ownerReferences": [DEAD_OWNER]}},
        _NODE,
        _LABELS_SAID,
    ),
    Request(
        "a finalizer of the node",
        DRIVER,
        "PATCH",
        NODES,
        {"metadata": {"finalizers": ["a.example.com/b"]}},
        _NODE,
        _LABELS_SAID,
    ),
    Request(
        "an annotation of the node",
        DRIVER,
        "PATCH",
        NODES,
        {"metadata": {"annotations": {"a": "b"}}},
        _NODE,
        _LABELS_SAID,
    ),
    Request(
        "a taint of the node",
        DRIVER,
        "PATCH",
        NODES,
        {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
        _NODE,
        _LABELS_SAID,
    ),
    Request("own event", DRIVER, "POST", EVENTS, _EVENT),
    Request(
        "event of the kubelet",
        DRIVER,
        "POST",
        EVENTS,
        changed(_EVENT, {"source": {"component": "kubelet"}}),
        said="under its own name only",
    ),
    Request(
        "event of another reporter",
        DRIVER,
        "POST",
        EVENTS,
        changed(_EVENT, {"reportingComponent": "kubelet"}),
        said="under its own name only",
    ),
    Request(
        "event with another reason",
        DRIVER,
        "POST",
        EVENTS,
        changed(_EVENT, {"reason": "NodeNotReady"}),
        said="under its own name only",
    ),
    Request(
        "event with an owner",
        DRIVER,
        "POST",
        EVENTS,
        changed(_EVENT, {"metadata": {"ownerReferences": [DEAD_OWNER]}}),
        said="no owners",
    ),
    Request(
        "event about another node",
        DRIVER,
        "POST",
        EVENTS,
        changed(_EVENT, {"involvedObject": {"name": OTHER_NODE}}),
        said="about its own node only",
    ),
)
