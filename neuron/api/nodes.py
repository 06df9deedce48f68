"""Nodes: labels, taints, conditions, what a device plugin offers there, and the selectors that select them.

The parts of node selectors and node affinity are dictionaries as the API has them, because conversion writes them back
whole. Terms are ORed, the requirements of a term are ANDed, and a term without requirements matches no node. Source:
`k8s.io/component-helpers/scheduling/corev1/nodeaffinity`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, TypedDict

from msgspec import Struct

from neuron import names
from neuron.api.fields import Fields, ObjectMeta, read
from neuron.api.taints import Taint
from neuron.quantities import count_of

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_NUMBER: Final = re.compile(r"[-+]?[0-9]{1,18}", re.ASCII)
"""As Go's ParseInt reads it."""


class Requirement(TypedDict, total=False):
    """A node selector requirement, on a label or a field of a node."""

    key: str
    operator: str
    values: list[str] | None


class Term(TypedDict, total=False):
    """A node selector term."""

    matchExpressions: list[Requirement] | None
    matchFields: list[Requirement] | None


class NodeSelector(TypedDict, total=False):
    """A node selector: of required node affinity, or of the allocation of a claim."""

    nodeSelectorTerms: list[Term] | None


class NodeAffinity(TypedDict, total=False):
    """`spec.affinity.nodeAffinity` of a pod."""

    requiredDuringSchedulingIgnoredDuringExecution: NodeSelector | None
    preferredDuringSchedulingIgnoredDuringExecution: list[dict[str, object]] | None


class Affinity(TypedDict, total=False):
    """`spec.affinity` of a pod."""

    nodeAffinity: NodeAffinity | None


def required_terms(affinity: Affinity | None) -> Sequence[Term] | None:
    """`nodeSelectorTerms` of required node affinity; None without required node affinity."""
    required = ((affinity or {}).get("nodeAffinity") or {}).get(REQUIRED)
    return None if required is None else required.get("nodeSelectorTerms") or ()


def matches_nothing(term: Term) -> bool:
    """Whether a term has no requirements."""
    return not term.get("matchExpressions") and not term.get("matchFields")


def unmet_selector(selector: Mapping[str, str], labels: Mapping[str, str]) -> list[Requirement]:
    """The entries of a `nodeSelector` that a node with these labels does not meet, as requirements."""
    return [
        {"key": key, "operator": "In", "values": [value]} for key, value in selector.items() if labels.get(key) != value
    ]


def unmet_terms(terms: Sequence[Term], node: str, labels: Mapping[str, str]) -> list[Requirement]:
    """The requirements of the closest term that a node does not meet; empty if it matches a term.

    Args:
        terms: alternatives.
        node: its name.
        labels: of the node.
    """
    closest: list[Requirement] | None = None
    for term in terms:
        if matches_nothing(term):
            continue
        unmet = [each for each in term.get("matchExpressions") or () if not _meets(each, labels)]
        unmet += [each for each in term.get("matchFields") or () if not _meets(each, {"metadata.name": node})]
        if not unmet:
            return []
        if closest is None or len(unmet) < len(closest):
            closest = unmet
    return closest if closest is not None else [{"key": "nodeSelectorTerms", "operator": "Exists"}]


def _meets(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    key, values = str(requirement.get("key")), requirement.get("values") or ()
    actual = labels.get(key)
    match requirement.get("operator"):
        case "In":
            return actual in values
        case "NotIn":
            return actual not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case "Gt" | "Lt" as operator if actual is not None and len(values) == 1:
            return compares(operator, actual, str(values[0]))
    return False


def compares(operator: str, actual: str, limit: str) -> bool:
    """Whether a label's value is above (`Gt`) or below a limit; both have to be whole numbers."""
    if not (_NUMBER.fullmatch(limit) and _NUMBER.fullmatch(actual)):
        return False
    return int(actual) > int(limit) if operator == "Gt" else int(actual) < int(limit)


UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
"""Taint of a cordoned node."""


class Condition(Fields, frozen=True):
    """A condition of a Node."""

    type: str = ""
    status: str = ""
    reason: str | None = None


class Node(Struct, frozen=True):
    """A Node.

    Attributes:
        name: of the Node.
        uid: of the Node.
        version: its `resourceVersion`; empty if unknown.
        labels: its labels.
        annotations: its annotations.
        taints: its taints; a cordoned node has the one of Kubernetes.
        cordoned: whether it is (`spec.unschedulable`).
        allocatable: quantities by resource.
        conditions: its conditions.
        kubelet: version of its kubelet; empty if unknown.
        runtime: name and version of its container runtime, `containerd://2.1.4`; empty if unknown.
    """

    name: str
    uid: str = ""
    version: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
    allocatable: Mapping[str, object] = {}
    conditions: tuple[Condition, ...] = ()
    kubelet: str = ""
    runtime: str = ""

    @property
    def type_label(self) -> str:
        """The label of the instance type, as written; empty without one."""
        return self.labels.get(names.LABEL_INSTANCE_TYPE) or self.labels.get(names.LABEL_INSTANCE_TYPE_BETA) or ""

    @property
    def instance_type(self) -> str:
        """The instance type by the labels, without SageMaker's prefix; empty without a label."""
        return self.type_label.removeprefix(names.SAGEMAKER_PREFIX)

    @property
    def pool(self) -> str:
        """Karpenter's NodePool that made the node, or the name of EKS Auto Mode; empty if neither made it."""
        made = next((self.labels[key] for key in names.KARPENTER_POOL_LABELS if self.labels.get(key)), "")
        automatic = self.labels.get(names.LABEL_COMPUTE_TYPE) == names.AUTO_MODE
        return f"{names.AUTO_MODE}/{made}" if automatic else made

    @property
    def ready(self) -> bool:
        """Whether the kubelet reports that the node is ready. A node without conditions, as in tests, is ready."""
        return all(each.status == "True" for each in self.conditions if each.type == "Ready")

    def offered(self, resource: str) -> int:
        """The allocatable amount of a resource; 0 without it."""
        return count_of(self.allocatable.get(resource))

    @property
    def legacy(self) -> dict[str, int]:
        """What a device plugin offers, by legacy resource. A removed device plugin leaves a zero, which is left out."""
        amounts = {resource: self.offered(resource) for resource in names.LEGACY_RESOURCES}
        return {resource: amount for resource, amount in amounts.items() if amount}

    @property
    def legacy_devices(self) -> int:
        """Devices that a device plugin offers; 0 if it offers only cores."""
        return max(self.offered(each) for each in (names.RESOURCE_NEURON, names.RESOURCE_NEURONDEVICE))

    @property
    def reported_fault(self) -> Condition | None:
        """What an agent of AWS reports about the node's Neuron devices; None if nothing.

        `NeuronHealth` is True on a faulty node (Neuron's node problem detector); `AcceleratedHardwareReady` is False,
        with a reason that begins with Neuron (EKS node monitoring agent).
        """
        return next((each for each in self.conditions if _is_fault(each)), None)


def _is_fault(condition: Condition) -> bool:
    if condition.type == "AcceleratedHardwareReady":
        return condition.status == "False" and (condition.reason or "").startswith("Neuron")
    return condition.type == "NeuronHealth" and condition.status == "True"


def read_node(item: object) -> Node:
    """A Node as the API server or a file has it, or the part of it that a list of metadata has.

    Raises:
        neuron.api.fields.WrongFormError: it has another form.
    """
    node = read(item, _Node)
    metadata, spec, status = node.metadata, node.spec or _NodeSpec(), node.status or _NodeStatus()
    taints = [Taint.read(each) for each in spec.taints or ()]
    if spec.unschedulable and not any(taint.key == UNSCHEDULABLE for taint in taints):
        taints.append(Taint(UNSCHEDULABLE))
    return Node(
        metadata.name,
        metadata.uid,
        metadata.resource_version,
        metadata.labels or {},
        metadata.annotations or {},
        tuple(taints),
        spec.unschedulable is True,
        status.allocatable or {},
        tuple(status.conditions or ()),
        (status.node_info or _NodeInfo()).kubelet_version,
        (status.node_info or _NodeInfo()).container_runtime_version,
    )


class _NodeSpec(Fields, frozen=True):
    taints: list[dict[str, object]] | None = None
    unschedulable: bool | None = None


class _NodeInfo(Fields, frozen=True):
    kubelet_version: str = ""
    container_runtime_version: str = ""


class _NodeStatus(Fields, frozen=True):
    allocatable: dict[str, object] | None = None
    conditions: list[Condition] | None = None
    node_info: _NodeInfo | None = None


class _Node(Fields, frozen=True):
    metadata: ObjectMeta
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None
