"""What containers of a claim get: a CDI spec with device nodes, variables of the Neuron runtime and metadata in files.

There is one spec per claim (Container Device Interface 0.6.0). An annotation contains the prepared claim, to rebuild a
lost checkpoint. The names of the file and of all devices contain the claim's UID, so no name is used twice (KEP-4381).

Variables come from a claim's configs and cores and the node's UltraServer files. Sources: the Neuron runtime's
configuration (NEURON_LOGICAL_NC_CONFIG, NEURON_RT_VISIBLE_CORES, NEURON_RT_ULTRASERVER_*), and for the choice of the
mode AWS's published init script for UltraServer jobs.

Metadata (`DeviceMetadata` of KEP-5304) are the attributes of the ResourceSlice, with what is decided on the node: PCI
address, cores, logicalNeuronCore and the place in the UltraServer. A container that uses a request of a claim has the
file of the request, read-only, at a path of Kubernetes. The host's files are in the driver's state. They are written
before the CDI spec that mounts them, and removed after it. By them a container also names its claim
(`discover.processes`).
"""

import dataclasses
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

CDI_VERSION: Final = "0.6.0"
"""The first version with annotations."""
KIND: Final = f"{names.DRIVER}/claim"
ANNOTATION_CLAIM: Final = f"{names.DRIVER}/prepared-claim"
ANNOTATION_BOOT_ID: Final = f"{names.DRIVER}/boot-id"

_PREFIX: Final = f"{names.DRIVER}-claim_"
_SUFFIX: Final = ".json"
_UID: Final = re.compile(r"[A-Za-z0-9-]{1,63}", re.ASCII)
_DEFAULT_DEV_ROOT: Final = Path("/dev")
_NULL: Final = (1, 3)
"""Numbers of Linux's null device."""


class DamagedSpecError(Exception):
    """A spec file of the driver cannot be read; the message has the reason."""


def device_ids(claim: PreparedClaim, position: int) -> tuple[str, ...]:
    """The qualified CDI device ids of one of the claim's devices.

    The first device of a request also gets an id for the request's environment. A container that uses a request gets
    all of its devices, so it gets the environment once. The device's own id is first, because pod status shows the
    first id as the device's name.
    """
    device = claim.devices[position]
    ids = [f"{KIND}={_device_name(claim, device)}"]
    first = next(i for i, other in enumerate(claim.devices) if other.parent_request == device.parent_request)
    if position == first and claim.environment.get(device.parent_request):
        ids.append(f"{KIND}={_request_name(claim, device.parent_request)}")
    return tuple(ids)


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceId:
    """The parts of a CDI device id of this driver.

    Attributes:
        uid: of the claim.
        request: its name without the alternative.
        device: the device's name; empty for the id of the request's environment.
    """

    uid: str
    request: str
    device: str


def parse_id(qualified: str) -> DeviceId | None:
    """The parts of a qualified CDI device id; None if it is not one of this driver."""
    kind, _, name = qualified.partition("=")
    # Neither UIDs nor names of requests contain an underscore.
    uid, _, rest = name.partition("_")
    request, _, device = rest.partition("_")
    return DeviceId(uid, request, device) if kind == KIND and _UID.fullmatch(uid) and request else None


def spec(
    claim: PreparedClaim,
    boot_id: str,
    dev_root: Path | None = _DEFAULT_DEV_ROOT,
    mount: Callable[[PreparedClaim, str], dict[str, object] | None] = lambda claim, request: None,  # noqa: ARG005
) -> dict[str, object]:
    """The CDI spec of a prepared claim.

    The first device of a request also mounts the request's metadata: a container gets all devices of its requests.

    Args:
        boot_id: of the running kernel.
        dev_root: the host's directory of device nodes; in containers they are in /dev with the host's numbers.
            None: the devices are emulated, and containers get null devices.
        mount: returns the mount of a request's metadata; None if there is none.
    """
    devices: list[dict[str, Any]] = [
        {
            "name": _device_name(claim, device),
            "containerEdits": {"deviceNodes": [_device_node(index, dev_root) for index in device.indices]},
        }
        for device in claim.devices
    ]
    mounted: set[str] = set()
    for device, entry in zip(claim.devices, devices, strict=True):
        request = device.parent_request
        if request not in mounted and (found := mount(claim, request)) is not None:
            entry["containerEdits"]["mounts"] = [found]
        mounted.add(request)
    for request, variables in sorted(claim.environment.items()):
        if variables:
            environment = [f"{name}={value}" for name, value in sorted(variables.items())]
            devices.append({"name": _request_name(claim, request), "containerEdits": {"env": environment}})
    return {
        "cdiVersion": CDI_VERSION,
        "kind": KIND,
        "annotations": {
            ANNOTATION_CLAIM: msgspec.json.encode(dataclasses.replace(claim, asked=0), order="sorted").decode(),
            ANNOTATION_BOOT_ID: boot_id,
        },
        "devices": devices,
    }


def _device_node(index: int, dev_root: Path | None) -> dict[str, object]:
    node: dict[str, object] = {"path": f"/dev/neuron{index}", "permissions": "rw"}
    if dev_root is None:
        # With numbers, the runtime looks for no node on the host: the driver has not the capability to create one.
        return node | {"type": "c", "major": _NULL[0], "minor": _NULL[1]}
    return node if dev_root == _DEFAULT_DEV_ROOT else node | {"hostPath": f"{dev_root}/neuron{index}"}


def _device_name(claim: PreparedClaim, device: PreparedDevice) -> str:
    # With the request's name: a claim can have a device twice, to use it and with adminAccess.
    return f"{claim.uid}_{device.parent_request}_{device.device}"


def _request_name(claim: PreparedClaim, request: str) -> str:
    return f"{claim.uid}_{request}"


# --- variables of the Neuron runtime, and metadata in files -------------------------------------------------------

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
METADATA_KIND: Final = "DeviceMetadata"
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
    return {"kind": METADATA_KIND, "apiVersion": API_VERSION, "metadata": metadata}


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


class _WrittenSpec(msgspec.Struct, frozen=True):
    annotations: dict[str, str]


class SpecFiles:
    """The spec files of one node. All methods raise OSError."""

    def __init__(
        self,
        files: DiskFiles,
        directory: Path,
        boot_id: str,
        dev_root: Path | None = _DEFAULT_DEV_ROOT,
        metadata: MetadataFiles | None = None,
    ) -> None:
        """Without `metadata`, containers get no metadata of their devices."""
        self._metadata = metadata
        self._files = files
        self._directory = directory
        self._boot_id = boot_id
        self._dev_root = dev_root

    def path(self, uid: str) -> Path:
        """The spec file of a claim. Raises ValueError for a UID that could point outside the directory."""
        if not _UID.fullmatch(uid):
            raise ValueError(f"{uid!r} is not the UID of a ResourceClaim.")
        return self._directory / f"{_PREFIX}{uid}{_SUFFIX}"

    def ensure(self, claim: PreparedClaim) -> bool:
        """Write the claim's spec, unless the file has this content already; returns whether it was written."""
        path = self.path(claim.uid)
        if self._metadata is None:
            whole = spec(claim, self._boot_id, self._dev_root)
        else:
            # The runtime refuses a container whose mount has no source.
            self._metadata.ensure(claim)
            whole = spec(claim, self._boot_id, self._dev_root, self._metadata.mount)
        return durable_update(self._files, path, msgspec.json.format(msgspec.json.encode(whole), indent=1))

    def remove(self, uid: str) -> None:
        """Remove the claim's spec if there is one."""
        path = self.path(uid)
        if self._files.identity(path) is not None:
            durable_remove(self._files, path)
        if self._metadata is not None:
            self._metadata.remove(uid)

    def uids(self) -> list[str]:
        """UIDs of the claims that have a spec. Removes temporary files that a crash left."""
        self._files.make_directory(self._directory)
        found = []
        for name in self._files.names(self._directory):
            if is_leftover(name) and name.startswith(f".{_PREFIX}"):
                self._files.remove(self._directory / name)
            elif name.startswith(_PREFIX) and name.endswith(_SUFFIX):
                found.append(name.removeprefix(_PREFIX).removesuffix(_SUFFIX))
        known = [uid for uid in found if _UID.fullmatch(uid)]
        if self._metadata is not None:
            self._metadata.keep(known)
        return known

    def read(self, uid: str) -> PreparedClaim:
        """The prepared claim in a spec.

        Raises:
            DamagedSpecError: the spec cannot be read, or is of another boot.
        """
        try:
            annotations = msgspec.json.decode(self._files.read(self.path(uid)), type=_WrittenSpec).annotations
            claim = msgspec.json.decode(annotations[ANNOTATION_CLAIM], type=PreparedClaim)
            boot_id = annotations[ANNOTATION_BOOT_ID]
        except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, RecursionError) as error:
            raise DamagedSpecError(f"{self.path(uid)} cannot be read back: {error!r}") from error
        if claim.uid != uid:
            raise DamagedSpecError(f"{self.path(uid)} carries the claim {claim}, not the one of its name")
        if boot_id != self._boot_id:
            raise DamagedSpecError(f"{self.path(uid)} was written before the node was rebooted")
        return claim
