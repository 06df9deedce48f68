"""The checkpoint: prepared claims in one versioned file with a checksum, which survives a crash."""

import dataclasses
import difflib
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from kubeletplugin.files import DiskFiles, durable_write
from kubeletplugin.ports import JsonObject

FILE_NAME: Final = "checkpoint.json"
API_VERSION: Final = "checkpoint.neuron.aws.com/v1"
API_VERSION_SHARES: Final = "checkpoint.neuron.aws.com/v2"
"""Version of a checkpoint with shares: a driver that does not know shares would read it as one of whole devices."""
KIND: Final = "NeuronCheckpoint"
_BEFORE: Final = "-before"
"""End of the UID under which devices of a claim are held after its end."""


class DamagedCheckpointError(Exception):
    """The checkpoint exists but cannot be used; the message has the reason."""


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """What a claim holds of a device that several claims can share.

    Attributes:
        id: `shareID` of the allocation.
        cores: physical cores, numbered from 0 on the device; None for all of them: a whole device.
        logical_neuron_core: physical cores of one logical core, which all claims on the device agree on.
        certain: False if the state was lost and nothing tells the cores: the claim holds all of them.
    """

    id: str
    cores: tuple[int, ...] | None = None
    logical_neuron_core: int = 1
    certain: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One allocated device of a prepared claim.

    Attributes:
        request: its name in the allocation, `req` or `req/sub`.
        indices: N of each of its `/dev/neuronN`; several for a whole node.
        admin_access: whether the request has `adminAccess`; another claim may hold the device.
        share: of a device that several claims can share; None for other devices.
    """

    request: str
    pool: str
    device: str
    indices: tuple[int, ...]
    admin_access: bool = False
    share: Share | None = None

    @property
    def parent_request(self) -> str:
        """The request's name without its alternative: containers and the kubelet use this name."""
        return self.request.partition("/")[0]

    @property
    def cores(self) -> tuple[int, ...] | None:
        """Physical cores that the claim holds of the device; None for all."""
        return None if self.share is None else self.share.cores

    @property
    def in_doubt(self) -> bool:
        """Whether the claim has a part of the device, and it is lost which."""
        return self.share is not None and not self.share.certain


@dataclasses.dataclass(frozen=True, slots=True)
class PreparedClaim:
    """A prepared claim: enough to repeat the answer to the kubelet and to write the CDI spec again.

    Attributes:
        allocation: digest of the prepared allocation; if it differs, the claim is prepared again.
        devices: in the order of the allocation.
        environment: variables of the containers, by request without its alternative.
        metadata: of the devices for the containers (KEP-5304), by the same; empty in older checkpoints.
        number: of the preparation that decided it; containers name it. 0 in older checkpoints.
        asked: of the last preparation, also of one that repeated the answer.
    """

    uid: str
    namespace: str
    name: str
    allocation: str
    devices: tuple[PreparedDevice, ...]
    environment: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    metadata: dict[str, JsonObject] = dataclasses.field(default_factory=dict)
    number: int = 0
    asked: int = 0

    def __str__(self) -> str:
        named = f"{self.namespace}/{self.name} " if self.name else ""
        return f"{named}(UID {self.object_uid})"

    @property
    def object_uid(self) -> str:
        """The UID of the claim's object."""
        return self.uid.removesuffix(_BEFORE)

    @property
    def has_ended(self) -> bool:
        """Whether it is not prepared any more, and only holds devices until no process has them."""
        return self.uid.endswith(_BEFORE)

    @property
    def ended(self) -> str:
        """Half a sentence about a claim that is held: what became of it."""
        return "has ended" if self.has_ended else "no longer exists"

    @property
    def held(self) -> frozenset[int]:
        """Devices that it holds, by index; `adminAccess` holds none."""
        return frozenset(index for device in self.devices if not device.admin_access for index in device.indices)


def uid_before(uid: str) -> str:
    """The UID under which devices of a claim are held after its end. No object has it."""
    return f"{uid}{_BEFORE}"


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of one node.

    Attributes:
        boot_id: of the kernel. After a reboot no claim is prepared.
        claims: prepared claims by UID.
        incomplete: whether claims may be missing: a damaged checkpoint was replaced, and claims have not been read from
            the API server since.
        count: number of preparations.
    """

    boot_id: str
    claims: Mapping[str, PreparedClaim] = dataclasses.field(default_factory=dict)
    incomplete: bool = False
    count: int = 0

    @property
    def prepared(self) -> Mapping[str, PreparedClaim]:
        """The claims that are still prepared, by UID."""
        return {uid: claim for uid, claim in self.claims.items() if not claim.has_ended}

    def with_claim(self, claim: PreparedClaim) -> "Checkpoint":
        """This state with the claim."""
        return dataclasses.replace(self, claims={**self.claims, claim.uid: claim})

    def without_claims(self, *uids: str) -> "Checkpoint":
        """This state without these claims."""
        rest = {uid: claim for uid, claim in self.claims.items() if uid not in uids}
        return dataclasses.replace(self, claims=rest)

    def ended(self, uid: str) -> "Checkpoint":
        """This state without the claim; its devices stay held, because its containers may still run."""
        claim = self.claims.get(uid)
        if claim is None:
            return self
        left = tuple(device for device in claim.devices if not device.admin_access)
        before = self.claims.get(uid_before(uid))
        devices = (*left, *(before.devices if before is not None else ()))
        state = self.without_claims(uid)
        if not devices:
            return state
        ended = PreparedClaim(uid_before(uid), claim.namespace, claim.name, "", devices, asked=self.count)
        return state.with_claim(ended)


class _Data(msgspec.Struct, frozen=True):
    boot_id: str
    claims: tuple[PreparedClaim, ...]
    incomplete: bool
    count: int = 0


class _File(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    checksum: str
    data: msgspec.Raw


class _CheckpointVersion(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str


class CheckpointStore:
    """The checkpoint file. Callers hold a lock (`files.locked`): two instances of the driver share the file."""

    def __init__(self, files: DiskFiles, directory: Path) -> None:
        self._files = files
        self.path: Final = directory / FILE_NAME
        self._loaded: tuple[tuple[int, ...] | None, Checkpoint | None] = (None, None)

    def load(self) -> Checkpoint | None:
        """The state on the disk; None if there is no file.

        Raises:
            DamagedCheckpointError: it cannot be decoded, fails its checksum or is of a newer version.
            OSError: it cannot be read.
        """
        identity = self._files.identity(self.path)
        if identity is None:
            return None
        if identity != self._loaded[0]:
            self._loaded = (identity, decode(self._files.read(self.path)))
        return self._loaded[1]

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the state. Raises OSError; then the old state stays."""
        durable_write(self._files, self.path, encode(checkpoint))
        self._loaded = (self._files.identity(self.path), checkpoint)

    def set_aside(self) -> tuple[Path, bytes]:
        """Copy the damaged file, for operators; returns the path of the copy, and its content. Raises OSError."""
        data = self._files.read(self.path)
        aside = self.path.with_name(f"{FILE_NAME}.damaged-{hashlib.sha256(data).hexdigest()[:12]}")
        durable_write(self._files, aside, data)
        return aside, data


def encode(checkpoint: Checkpoint) -> bytes:
    """The file's content; the same state gives the same bytes."""
    claims = tuple(claim for _, claim in sorted(checkpoint.claims.items()))
    data = msgspec.json.encode(
        _Data(checkpoint.boot_id, claims, checkpoint.incomplete, checkpoint.count), order="sorted"
    )
    shared = any(device.share is not None for claim in claims for device in claim.devices)
    version = API_VERSION_SHARES if shared else API_VERSION
    return msgspec.json.encode(_File(version, KIND, _checksum(data), msgspec.Raw(data)))


def decode(content: bytes) -> Checkpoint:
    """Read the file's content. Raises DamagedCheckpointError."""
    try:
        version = msgspec.json.decode(content, type=_CheckpointVersion).api_version
        if version not in (API_VERSION, API_VERSION_SHARES):
            known = f"{API_VERSION} and {API_VERSION_SHARES}"
            raise DamagedCheckpointError(f"it has apiVersion {version!r}, and this driver knows {known} only")
        file = msgspec.json.decode(content, type=_File)
        if file.kind != KIND:
            raise DamagedCheckpointError(f"it has kind {file.kind!r}, not {KIND}")
        if file.checksum != _checksum(bytes(file.data)):
            raise DamagedCheckpointError("its checksum does not fit its content")
        data = msgspec.json.decode(file.data, type=_Data)
    except msgspec.MsgspecError as error:
        raise DamagedCheckpointError(f"it is not readable: {error}") from error
    except UnicodeDecodeError as error:
        raise DamagedCheckpointError(f"it is not UTF-8: {error}") from error
    except RecursionError as error:
        raise DamagedCheckpointError("it is not readable: it is nested too deeply") from error
    return Checkpoint(data.boot_id, {claim.uid: claim for claim in data.claims}, data.incomplete, data.count)


def difference(damaged: bytes, restored: Checkpoint) -> str:
    """What a damaged file says of its claims, and what is restored: a unified diff; empty if both say the same.

    The file may say anything: what cannot be read is one line.
    """
    try:
        found = msgspec.json.decode(damaged)["data"]["claims"]
        before = [line for claim in found for line in _lines(claim)]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError, TypeError, AttributeError):
        before = ["(its claims cannot be read)"]
    claims = msgspec.json.decode(msgspec.json.encode([claim for _, claim in sorted(restored.claims.items())]))
    after = [line for claim in claims for line in _lines(claim)]
    lines = difflib.unified_diff(before[:1000], after[:1000], "damaged", "restored", n=1, lineterm="")
    return "\n".join(lines)


def _lines(claim: Mapping[str, Any]) -> list[str]:
    lines = [f"{claim['namespace']}/{claim['name']} {claim['uid']}"]
    for device in claim["devices"]:
        share = device.get("share")
        cores = f", cores {share.get('cores') or 'all'}" if share else ""
        lines.append(f"  {device['request']}: {device['device']}{cores}")
    return [line[:400] for line in lines]


def _checksum(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
