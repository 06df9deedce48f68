"""Nodes: labels, taints, conditions, and what a device plugin offers there."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from neuron import names
from neuron.api.fields import Fields, read
from neuron.api.metadata import ObjectMeta
from neuron.api.taints import Taint
from neuron.quantities import count_of

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
