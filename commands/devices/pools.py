"""Reads ResourceSlices and Nodes: newest generations, incomplete pools, instance types, what a device plugin offers."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from neuron import names
from neuron.quantities import NotACountError, parse_count
from runtime.text import named
from webhook.cluster.listing import Object


def newest(slices: Iterable[Object]) -> list[Object]:
    """Specs of the slices in the newest generation of each pool."""
    items = list(slices)
    generations: dict[str, int] = {}
    for item in items:
        pool = item["spec"]["pool"]
        generations[pool["name"]] = max(generations.get(pool["name"], 0), int(pool.get("generation") or 0))
    specs = (item["spec"] for item in items)
    return [spec for spec in specs if int(spec["pool"].get("generation") or 0) == generations[spec["pool"]["name"]]]


def incomplete(specs: Iterable[Object]) -> dict[str, tuple[int, int]]:
    """Slices found and expected, of pools with missing slices: the scheduler does not allocate from them (KEP-4381).

    Args:
        specs: as of `newest`.
    """
    pools: defaultdict[str, list[int]] = defaultdict(list)
    for spec in specs:
        pools[spec["pool"]["name"]].append(int(spec["pool"].get("resourceSliceCount") or 0))
    return {name: (len(each), max(each)) for name, each in pools.items() if len(each) < max(each)}


def node_of(spec: Object) -> str:
    """The node whose devices a slice has; by the driver's convention, the pool's name is the node's."""
    return str(spec.get("nodeName") or spec["pool"]["name"])


def attribute(attributes: Object, name: str) -> Any:
    """The value of an attribute of the driver, whatever its type; None without it."""
    box = attributes.get(f"{names.DRIVER}/{name}") or attributes.get(name)
    return next(iter(box.values()), None) if isinstance(box, Mapping) else None


def text_attribute(attributes: Object, name: str) -> str:
    """A string or version attribute of the driver; empty without it."""
    value = attribute(attributes, name)
    return value if isinstance(value, str) else ""


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
