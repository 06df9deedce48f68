"""What containers of a claim get of its devices: variables of the Neuron runtime, and metadata in files.

Variables come from a claim's configs and cores and the node's UltraServer files. Sources: the Neuron runtime's
configuration (NEURON_LOGICAL_NC_CONFIG, NEURON_RT_VISIBLE_CORES, NEURON_RT_ULTRASERVER_*), and for the choice of the
mode AWS's published init script for UltraServer jobs.

Metadata (`DeviceMetadata` of KEP-5304) are the attributes of the ResourceSlice, with what is decided on the node: PCI
address, cores, logicalNeuronCore and the place in the UltraServer. A container that uses a request of a claim has the
file of the request, read-only, at a path of Kubernetes. The host's files are in the driver's state. They are written
before the CDI spec that mounts them, and removed after it. By them a container also names its claim
(`discover.processes`).
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from kubeletplugin.discover.devices import physical_cores
from kubeletplugin.discover.processes import ClaimFile, read_name
from kubeletplugin.discover.sysfs import Membership, NodeHardware, UltraServer
from kubeletplugin.files import DiskFiles, durable_remove, durable_update, is_leftover
from kubeletplugin.ports import JsonObject
from kubeletplugin.prepare.checkpoint import PreparedClaim, PreparedDevice
from neuron import names
from neuron.api.allocation import AllocatedClaim
from neuron.api.configs import ConfigsInForce
from neuron.hardware.instances import InstanceType

LOGICAL_NC_CONFIG: Final = "NEURON_LOGICAL_NC_CONFIG"
ULTRASERVER_MODE: Final = "NEURON_RT_ULTRASERVER_MODE"
ULTRASERVER_SERVER_ID: Final = "NEURON_RT_ULTRASERVER_SERVER_ID"
ULTRASERVER_NODE_ID: Final = "NEURON_RT_ULTRASERVER_NODE_ID"

_CORES: Final = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", re.ASCII)
_MODES_FOR_NODES: Final = {4: (1,), 2: (3, 2), 1: (4,)}
"""Number of nodes -> values of the kernel driver's mode enum, best first.

The digits differ: 4 is "four nodes" in the config and "one node" in the enum. Two nodes can be on top of each other (3,
preferred) or side by side (2).
"""

_STANDALONE: Final = Membership("0" * 16, -1)


CONTAINER_ROOT: Final = "/var/run/kubernetes.io/dra-device-attributes"
FOLDER: Final = "device-metadata"
API_VERSION: Final = "metadata.resource.k8s.io/v1alpha1"
KIND: Final = "DeviceMetadata"
ATTRIBUTE_PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
"""Kubernetes' standard attribute (deviceattribute.StandardDeviceAttributePCIBusID)."""


class UltraServerError(Exception):
    """The node cannot be part of the requested UltraServer set; the message has the reason."""


def environment(in_force: ConfigsInForce, ultraserver: UltraServer | None) -> dict[str, str]:
    """Variables for the containers of one request.

    Args:
        in_force: the request's settings. The runtime's defaults apply to missing ones.
        ultraserver: the node's UltraServer, read just before; used only if a mode is set.

    Raises:
        UltraServerError: the node has no such set, or its nodes are still electing.
    """
    variables = {}
    if in_force.logical_neuron_core is not None:
        variables[LOGICAL_NC_CONFIG] = str(in_force.logical_neuron_core)
    if in_force.ultraserver_mode is not None:
        mode, member = _ultraserver(in_force.ultraserver_mode, ultraserver)
        variables[ULTRASERVER_MODE] = str(mode)
        variables[ULTRASERVER_SERVER_ID] = member.server_id
        variables[ULTRASERVER_NODE_ID] = str(member.node_id)
    return variables


def visible_cores(numbers: Sequence[int]) -> str:
    """The value of NEURON_RT_VISIBLE_CORES: a range if the cores are consecutive, else a list.

    Args:
        numbers: logical cores, ascending, with the numbers of the host.
    """
    first, last = numbers[0], numbers[-1]
    if last - first + 1 == len(numbers) and first < last:
        return f"{first}-{last}"
    return ",".join(map(str, numbers))


def read_visible_cores(value: str) -> tuple[int, ...]:
    """The cores of a value that `visible_cores` wrote; none if it is something else.

    It is ascending. Containers choose their variables: "0-9999" many times is more than the driver has memory for.
    """
    found: list[int] = []
    for part in value.split(","):
        match = _CORES.fullmatch(part)
        if match is None:
            return ()
        first = int(match[1])
        if found and first <= found[-1]:
            return ()
        found += range(first, int(match[2] or first) + 1)
    return tuple(found)


def _ultraserver(nodes: int, ultraserver: UltraServer | None) -> tuple[int, Membership]:
    candidates = _MODES_FOR_NODES[nodes]
    if nodes == 1:
        # Every node supports this, also if its list of modes does not have it.
        return candidates[0], _STANDALONE
    if ultraserver is None:
        raise UltraServerError(
            f"ultraserverMode {nodes} needs an UltraServer, but the kernel driver shows none on this node."
        )
    if ultraserver.busy:
        raise UltraServerError(
            "The nodes of the UltraServer are still electing their places; the kubelet tries again by itself."
        )
    mode = next((candidate for candidate in candidates if candidate in ultraserver.modes), None)
    member = ultraserver.members.get(nodes)
    if mode is None or member is None:
        listed = ", ".join(str(value) for value in sorted(ultraserver.modes)) or "none"
        raise UltraServerError(
            f"This node cannot be one of {nodes} UltraServer nodes: the kernel driver lists the modes {listed} "
            f"(it takes {' or '.join(map(str, candidates))}) and "
            f"{'names a' if member else 'names no'} set of {nodes} nodes."
        )
    return mode, member


def container_path(document: dict[str, Any], request: str) -> str:
    """The path of a request's file in containers.

    Args:
        request: its name without the alternative.
    """
    pod_claim = document.get("podClaimName")
    claim = f"resourceclaimtemplates/{pod_claim}" if pod_claim else f"resourceclaims/{document['metadata']['name']}"
    return f"{CONTAINER_ROOT}/{claim}/{request}/{names.DRIVER}-metadata.json"


class MetadataFiles:
    """The files of one node, one for each claim and request. All methods raise OSError."""

    def __init__(self, files: DiskFiles, state_dir: Path) -> None:
        self._files = files
        self._directory = state_dir / FOLDER

    def path(self, claim: PreparedClaim, request: str) -> Path:
        """The host's file of a request. Raises ValueError for names that could point outside the directory."""
        return self._directory / ClaimFile(claim.uid, request, claim.number).name

    def mount(self, claim: PreparedClaim, request: str) -> dict[str, object] | None:
        """The mount of a request's file, as in a CDI spec; None if the request is not known."""
        if not request:
            return None
        place = container_path(_document(claim, request), request)
        return {"hostPath": str(self.path(claim, request)), "containerPath": place, "options": ["ro", "bind"]}

    def ensure(self, claim: PreparedClaim) -> None:
        """Write the claim's files, unless they have this content already."""
        # A claim that was restored, and that another driver of our name prepared, may have no name of its request.
        for request in dict.fromkeys(device.parent_request for device in claim.devices if device.request):
            path, document = self.path(claim, request), _document(claim, request)
            content = msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2) + b"\n"
            durable_update(self._files, path, content)

    def remove(self, uid: str) -> None:
        """Remove the claim's files. Containers that still run keep their mounts, which show the names."""
        self._remove(lambda owner: owner == uid)

    def keep(self, uids: Collection[str]) -> None:
        """Remove the files of all other claims, and temporary files that a crash left."""
        self._remove(lambda owner: owner not in uids)

    def _remove(self, chosen: Callable[[str], bool]) -> None:
        if self._files.identity(self._directory) is None:
            return
        for name in self._files.names(self._directory):
            file = read_name(name)
            if is_leftover(name) or (file is not None and chosen(file.uid)):
                durable_remove(self._files, self._directory / name)


def _document(claim: PreparedClaim, request: str) -> JsonObject:
    """The metadata of a request; of a claim that was restored without it, only its name."""
    return claim.metadata.get(request) or _about(claim, 0) | {"requests": []}


def _about(claim: AllocatedClaim | PreparedClaim, generation: int) -> JsonObject:
    metadata = {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid, "generation": generation}
    return {"kind": KIND, "apiVersion": API_VERSION, "metadata": metadata}


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
    found: dict[str, JsonObject] = {}
    for device in devices:
        parent = device.parent_request
        if parent not in found:
            found[parent] = _about(claim, generation) | {"requests": [{"name": device.request, "devices": []}]}
            if claim.pod_claim:
                found[parent]["podClaimName"] = claim.pod_claim
        attributes = (
            published(device.device)
            | _places(device, hardware)
            | _ultraserver_attributes(hardware)
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


def _ultraserver_attributes(hardware: NodeHardware) -> JsonObject:
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
