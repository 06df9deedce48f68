"""CDI specs: device nodes and environment that a container runtime adds to the containers of a prepared claim.

Format: Container Device Interface 0.6.0. There is one file per claim. An annotation contains the prepared claim, to
rebuild a lost checkpoint. The names of the file and of all devices contain the claim's UID, so no name is used twice
(KEP-4381).
"""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from kubeletplugin.files import DiskFiles, durable_remove, durable_update, is_leftover
from kubeletplugin.prepare.checkpoint import PreparedClaim, PreparedDevice
from kubeletplugin.prepare.containers import MetadataFiles
from neuron import names

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
