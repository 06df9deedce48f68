"""The ResourceSlices that a node of a type will publish, for autoscalers that have no node to look at.

They come from the driver's own code, which reads an emulated node: the same as `neuron-dra-kubelet-plugin --emulate`.
"""

import dataclasses
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from commands.devices.allocator_inputs import PodClaim, Selects, hardware_of, read_demand
from conversion.claims.containers import Ask, Role
from conversion.claims.instance_fit import DeviceConfig
from conversion.claims.making import Claim, make_claim
from kubeletplugin.discover import emulate
from kubeletplugin.discover.devices import shares_cores
from kubeletplugin.discover.health import NodeFacts
from kubeletplugin.discover.sysfs import discover
from kubeletplugin.publish.slices import (
    ClusterFeatures,
    NodeDevices,
    Withholding,
    desired_slices,
    driver_version,
    plan_writes,
)
from neuron import known_faults, names
from neuron.api.claim_reader import claim_spec
from neuron.api.claim_specs import ClassSpec, Selector
from neuron.api.slices import read_slice
from neuron.hardware.instances import InstanceType

Object = dict[str, Any]

_FEATURES_SINCE: Final = (1, 36, 0)
"""The version of Kubernetes that keeps shared counters and consumable capacity without a feature gate."""


@dataclasses.dataclass(frozen=True, slots=True)
class NodeTemplate:
    """A node that does not exist yet.

    Attributes:
        entry: its type, of which the number of devices is known.
        name: of the node.
        kernel_driver: version of its Neuron kernel driver.
        kubernetes: version of the control plane; empty: one that keeps all features.
        counters: whether shared counters can be described.
    """

    entry: InstanceType
    name: str
    kernel_driver: str = emulate.DRIVER_VERSION
    kubernetes: str = ""
    counters: bool = True


def resource_slices(node: NodeTemplate) -> list[Object]:
    """The complete ResourceSlices of the node, without an owner: there is no Node object."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        emulate.write_tree(root, node.entry, driver_version=node.kernel_driver)
        hardware = discover(root / "sys", root / "dev")
    facts = NodeFacts(node.name, "", node.entry.name)
    version = known_faults.parse(node.kubernetes)
    current = version is None or version >= _FEATURES_SINCE
    withholding = Withholding(node.kubernetes)
    features = withholding.features(ClusterFeatures(counters=current and node.counters, shares=current))
    found = NodeDevices(hardware, node.entry, shares_cores=shares_cores("auto", node.entry))
    found = dataclasses.replace(found, shares_cores=found.shares_cores and withholding.shares(found, features))
    desired = desired_slices(facts, found, driver_version(), features)
    bodies = plan_writes(facts, desired, {}).create
    for body in bodies:
        del body["metadata"]["ownerReferences"]
    return list(bodies)


def karpenter_config(nodes: Iterable[NodeTemplate]) -> Object:
    """The DRAConfig of Karpenter's KWOK driver: the only object of Karpenter that takes templates of slices.

    It has no shared counters, so an UltraServer node publishes its devices only.
    """
    pools = []
    for node in nodes:
        alone = dataclasses.replace(node, counters=False)
        labels = [node.entry.name, names.SAGEMAKER_PREFIX + node.entry.name]
        term = {"matchExpressions": [{"key": names.LABEL_INSTANCE_TYPE, "operator": "In", "values": labels}]}
        slices = [{"devices": each["spec"]["devices"]} for each in resource_slices(alone)]
        name = node.entry.name.replace(".", "-")
        pools.append({"name": name, "nodeSelectorTerms": [term], "resourceSlices": slices})
    return {
        "apiVersion": "test.karpenter.sh/v1alpha1",
        "kind": "DRAConfig",
        "metadata": {"name": names.DRIVER.replace(".", "-")},
        "spec": {"driver": names.DRIVER, "pools": pools},
    }


_CAPACITY: Final = "capacity.cluster-autoscaler.kubernetes.io"


def capacity_annotations(entry: InstanceType) -> Mapping[str, str]:
    """Annotations of a MachineDeployment from which Cluster Autoscaler knows the devices of a group without nodes."""
    return {f"{_CAPACITY}/dra-driver": names.DRIVER, f"{_CAPACITY}/gpu-count": str(entry.devices)}


def slices_of_annotations(entry: InstanceType, node: str) -> list[Object]:
    """The ResourceSlices that Cluster Autoscaler makes of these annotations.

    Source: `InstanceResourceSlices` of its Cluster API provider. The devices have one attribute.
    """
    attributes = {"type": {"string": "gpu"}}
    devices = [{"name": f"gpu-{index}", "attributes": attributes} for index in range(entry.devices or 0)]
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{node}-{names.DRIVER}"},
            "spec": {
                "driver": names.DRIVER,
                "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                "devices": devices,
            },
        }
    ]


_CLASS: Final = {names.DEVICE_CLASS: ClassSpec((Selector("spec.selectors[0]", f"device.driver == '{names.DRIVER}'"),))}


def claims_of(entry: InstanceType) -> Iterator[tuple[int, Mapping[str, object]]]:
    """Each count of devices that one container can request on a type, with the spec of its claim."""
    for count in range(1, (entry.devices or 0) + 1):
        ask = Ask("main", Role.APP, "spec.containers[0]", names.RESOURCE_NEURON, count)
        made = make_claim([ask], [entry], DeviceConfig(), names.DEVICE_CLASS, pin_types=False)
        if isinstance(made, Claim):
            yield count, made.template.spec["spec"]


def fits(spec: Mapping[str, object], slices: Sequence[Mapping[str, object]]) -> bool:
    """Whether the scheduler allocates a claim on an empty node with these ResourceSlices."""
    node = hardware_of(map(read_slice, slices)).node()
    demand = read_demand([PodClaim("neuron", claim_spec(spec))], _CLASS, Selects())
    return node.allocate(demand.claim) is not None
