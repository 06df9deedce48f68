"""What a container may know of its devices: `DeviceMetadata` of KEP-5304 for each request of a claim, and its files.

The attributes are those of the ResourceSlice, with what is decided on the node: PCI address, cores, logicalNeuronCore
and the place in the UltraServer. A container that uses a request of a claim has the file of the request, read-only, at
a path of Kubernetes. The host's files are in the driver's state. They are written before the CDI spec that mounts them,
and removed after it. By them a container also names its claim (`discover.processes`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from kubeletplugin.discover.devices import physical_cores
from kubeletplugin.discover.processes import ClaimFile, read_name
from kubeletplugin.discover.sysfs import NodeHardware
from kubeletplugin.files import DiskFiles, durable_remove, durable_write, is_leftover
from kubeletplugin.ports import JsonObject
from kubeletplugin.prepare.checkpoint import PreparedClaim, PreparedDevice
from neuron import names
from neuron.api.allocation import AllocatedClaim
from neuron.hardware.instances import InstanceType

CONTAINER_ROOT: Final = "/var/run/kubernetes.io/dra-device-attributes"
FOLDER: Final = "device-metadata"
API_VERSION: Final = "metadata.resource.k8s.io/v1alpha1"
KIND: Final = "DeviceMetadata"


ATTRIBUTE_PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
"""Kubernetes' standard attribute (deviceattribute.StandardDeviceAttributePCIBusID)."""


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

    def mount(self, claim: PreparedClaim, request: str) -> dict[str, object]:
        """The mount of a request's file, as in a CDI spec."""
        place = container_path(_document(claim, request), request)
        return {"hostPath": str(self.path(claim, request)), "containerPath": place, "options": ["ro", "bind"]}

    def ensure(self, claim: PreparedClaim) -> None:
        """Write the claim's files, unless they have this content already."""
        for request in dict.fromkeys(device.parent_request for device in claim.devices):
            path, document = self.path(claim, request), _document(claim, request)
            content = msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2) + b"\n"
            if self._files.identity(path) is not None and self._files.read(path) == content:
                continue
            self._files.make_directory(self._directory)
            durable_write(self._files, path, content)

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


def _document(claim: PreparedClaim, request: str) -> dict[str, Any]:
    """The metadata of a request; of a claim that was restored without it, only its name."""
    about = {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid, "generation": 0}
    bare = {"kind": KIND, "apiVersion": API_VERSION, "metadata": about, "requests": []}
    return claim.metadata.get(request) or bare


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
