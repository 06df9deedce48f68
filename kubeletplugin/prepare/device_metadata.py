"""What a container may know of its devices: `DeviceMetadata` of KEP-5304 for each request of a claim. Pure.

The attributes are those of the ResourceSlice, with what is decided on the node: PCI address, cores, logicalNeuronCore
and the place in the UltraServer.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kubeletplugin.discover.sharing import physical_cores
from kubeletplugin.discover.sysfs import NodeHardware
from kubeletplugin.ports import JsonObject
from kubeletplugin.prepare.checkpoint import PreparedDevice
from kubeletplugin.prepare.metadata_files import API_VERSION, KIND
from neuron import names
from neuron.api.allocation import AllocatedClaim
from neuron.hardware.instances import InstanceType

ATTRIBUTE_PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
"""Kubernetes' standard attribute (deviceattribute.StandardDeviceAttributePCIBusID)."""


def documents(
    claim: AllocatedClaim,
    devices: Sequence[PreparedDevice],
    environment: Mapping[str, Mapping[str, str]],
    published: Callable[[str], JsonObject],
    hardware: NodeHardware,
    instance: InstanceType | None,
    generation: int,
) -> dict[str, JsonObject]:
    """The metadata of each request, by its name without the alternative.

    Args:
        environment: variables of the containers, by request.
        published: returns the attributes of a device in the ResourceSlice.
        generation: of the files; more than that of the files that they replace.
    """
    about = {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid, "generation": generation}
    found: dict[str, JsonObject] = {}
    for device in devices:
        parent = device.parent_request
        if parent not in found:
            found[parent] = {
                "kind": KIND,
                "apiVersion": API_VERSION,
                "metadata": about,
                **({"podClaimName": claim.pod_claim} if claim.pod_claim else {}),
                "requests": [{"name": device.request, "devices": []}],
            }
        attributes = (
            published(device.device)
            | _places(device, hardware)
            | _ultraserver(hardware)
            | _cores(device, claim, environment.get(parent, {}), hardware, instance)
        )
        entry: JsonObject = {"driver": names.DRIVER, "pool": device.pool, "name": device.device}
        found[parent]["requests"][0]["devices"].append(entry | {"attributes": attributes})
    return found


def _places(device: PreparedDevice, hardware: NodeHardware) -> JsonObject:
    if len(device.indices) != 1:
        return {}
    place = hardware.places.get(device.indices[0])
    return {} if place is None or place.address is None else {ATTRIBUTE_PCI_BUS_ID: {"string": place.address}}


def _ultraserver(hardware: NodeHardware) -> JsonObject:
    """The largest set of nodes of which this node is a member."""
    server = hardware.ultraserver
    if server is None or server.busy or not server.members:
        return {}
    nodes, member = max(server.members.items())
    return {
        "ultraServerId": {"string": member.server_id},
        "ultraServerNodeId": {"int": member.node_id},
        "ultraServerNodes": {"int": nodes},
    }


def _cores(
    device: PreparedDevice,
    claim: AllocatedClaim,
    variables: Mapping[str, str],
    hardware: NodeHardware,
    instance: InstanceType | None,
) -> JsonObject:
    """Physical cores that the claim has of the device, and how the runtime groups and numbers them."""
    attributes: JsonObject = {}
    numbers = device.cores
    if numbers is None:
        each = [physical_cores(hardware, instance, index) for index in device.indices]
        amount: object = None if None in each else sum(count or 0 for count in each)
    else:
        amount = len(numbers)
        attributes["deviceCores"] = {"string": ",".join(map(str, numbers))}
    if amount is not None:
        attributes[names.CAPACITY_CORES] = {"int": amount}
    size = claim.in_force(device.request).logical_neuron_core
    if size is None and instance is not None:
        size = instance.default_logical_neuron_core
    if size is not None:
        attributes["logicalNeuronCore"] = {"int": size}
    if names.ENV_VISIBLE_CORES in variables:
        attributes["visibleCores"] = {"string": variables[names.ENV_VISIBLE_CORES]}
    return attributes
