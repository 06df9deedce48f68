"""Reads Nodes: instance types, what a device plugin offers, faults that agents of AWS report."""

from neuron import names
from neuron.quantities import NotACountError, parse_count
from runtime.text import named
from webhook.cluster.listing import Object


def advertised(node: Object) -> int:
    """Devices or cores that a device plugin offers on a node: the largest of the legacy resources.

    A removed device plugin leaves a zero.
    """
    offered = (node.get("status") or {}).get("allocatable") or {}
    return max(count(offered.get(resource, "0")) for resource in names.LEGACY_RESOURCES)


def advertised_devices(node: Object) -> int:
    """Devices that a device plugin offers on a node; 0 if it offers only cores."""
    offered = (node.get("status") or {}).get("allocatable") or {}
    return max(count(offered.get(each, "0")) for each in (names.RESOURCE_NEURON, names.RESOURCE_NEURONDEVICE))


def count(value: object) -> int:
    """A quantity as a count; 0 if it is none."""
    try:
        return parse_count(value)
    except NotACountError:
        return 0


def instance_type(node: Object) -> str:
    """The instance type by the Node's labels, without SageMaker's prefix; empty without a label."""
    labels = node["metadata"].get("labels") or {}
    labelled = labels.get(names.LABEL_INSTANCE_TYPE) or labels.get(names.LABEL_INSTANCE_TYPE_BETA) or ""
    return str(labelled).removeprefix(names.SAGEMAKER_PREFIX)


def reported_fault(node: Object) -> str:
    """What an agent of AWS reports about a node's Neuron devices: type and reason of the Node's condition, or nothing.

    `NeuronHealth` is True on a faulty node (Neuron's node problem detector); `AcceleratedHardwareReady` is False, with
    a reason that begins with Neuron (EKS node monitoring agent).
    """
    for each in (node.get("status") or {}).get("conditions") or ():
        kind, status, reason = each.get("type"), each.get("status"), str(each.get("reason") or "")
        accelerated = kind == "AcceleratedHardwareReady" and status == "False" and reason.startswith("Neuron")
        if accelerated or (kind == "NeuronHealth" and status == "True"):
            return f"{named(kind)}: {named(reason or 'no reason')}"
    return ""
