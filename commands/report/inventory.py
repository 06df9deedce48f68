"""Groups objects into workloads: a Deployment instead of its ReplicaSets and pods, a CronJob instead of its Jobs.

An object belongs to the last controller on the way through `ownerReferences`. A controller is found by its uid, or by
kind and name where no object has the uid: dumps that were edited or restored have others, or none. If a controller is
not among the objects, because its kind is not known here, it becomes a workload with the pods of the first object that
it controls.
"""

import dataclasses
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from commands.cluster.reader import ENDED
from commands.report.model import PodsNow
from conversion.objects import pods
from neuron import names
from neuron.findings import Finding
from runtime.answers import identity

_LONGEST_CHAIN: Final = 8
"""Owners above each other: Pod, Job, JobSet, TrainJob and a few of an operator."""
_FINISHED_CONDITIONS: Final = ("Complete", "Failed")
_NODE: Final = "Node"
_POD: Final = ("", "Pod")

CONTROLLED: Final = frozenset(
    {("", "Pod"), ("apps", "ReplicaSet"), ("batch", "Job"), ("apps", "StatefulSet"), ("", "ReplicationController")}
)
"""Kinds that other controllers often own. They are read last, so that few objects have to be kept."""


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """One object as it was read.

    Attributes:
        text: JSON; of one that waits, compressed.
        source: file, or empty.
        form: findings about how a file writes it.
        readable: false for pods of a file that have a value of a wrong type: they are reported, whatever they request.
    """

    group: str
    version: str
    kind: str
    text: bytes
    source: str = ""
    line: int = 0
    form: tuple[Finding, ...] = ()
    readable: bool = True
    waits: bool = False

    @property
    def raw(self) -> bytes:
        """JSON."""
        return zlib.decompress(self.text) if self.waits else self.text

    def waiting(self) -> "Found":
        """The same for objects of which many are kept: a stored pod takes a third of its text."""
        return self if self.waits else dataclasses.replace(self, text=zlib.compress(self.text, 1), waits=True)

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


@dataclasses.dataclass(frozen=True, slots=True)
class Owner:
    """The controller of an object, in its namespace."""

    group: str
    version: str
    kind: str
    name: str
    uid: str
    namespace: str = ""

    @property
    def by_name(self) -> str:
        """What stands for its uid where the object has none."""
        return f"{self.kind}.{self.group}/{self.namespace}/{self.name}"


@dataclasses.dataclass(frozen=True, slots=True)
class Root:
    """A workload.

    Attributes:
        found: the object, or one that it controls.
        owner: the workload itself, if `found` is an object that it controls; else None.
        uid: of the workload; empty in files.
        running: whether the object is a pod that exists. Its node name is then not the user's.
    """

    found: Found
    owner: Owner | None
    uid: str
    running: bool = False


class _Reference(msgspec.Struct, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""
    apiVersion: str = ""  # noqa: N815 - the wire's spelling
    controller: bool | None = None


class _InventoryMetadata(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    ownerReferences: list[_Reference] | None = None  # noqa: N815
    labels: dict[str, object] | None = None


class _JobCondition(msgspec.Struct, frozen=True):
    type: str = ""
    status: str = ""


class _InventoryStatus(msgspec.Struct, frozen=True):
    phase: str = ""
    conditions: list[_JobCondition] | None = None


class _InventorySpec(msgspec.Struct, frozen=True):
    nodeName: str | None = None  # noqa: N815
    replicas: object = None


class _Head(msgspec.Struct, frozen=True):
    metadata: _InventoryMetadata | None = None
    status: _InventoryStatus | None = None
    spec: _InventorySpec | None = None


_decode: Final = msgspec.json.Decoder(_Head).decode


class Inventory:
    """Takes objects, and yields workloads. Memory grows with the number of Neuron objects, not with their size.

    Attributes:
        finished: number of pods and Jobs that have ended.
        unreadable: objects that could not be read.
    """

    def __init__(self, finds_template: Callable[[bytes], object] | None = None) -> None:
        """Prepare. `finds_template` finds what names a template of a ClaimTemplate; None: there is none."""
        self._finds_template = finds_template
        self.finished = 0
        self.unreadable: list[str] = []
        self._owners: dict[str, Owner] = {}
        self._roots: set[str] = set()
        self._uids: dict[str, str] = {}
        """Of the objects, by `Owner.by_name`."""
        self._known: set[str] = set()
        """Uids of the objects."""
        self._spare: dict[str, tuple[Owner, Found]] = {}
        self._pods: defaultdict[Owner, list[int]] = defaultdict(lambda: [0, 0, 0])
        """Direct owner, or the pod -> pods of the plugin, converted pods, pods without a node."""
        self._nodes: defaultdict[Owner, set[str]] = defaultdict(set)
        """The same -> nodes with pods of the device plugin."""

    def take(self, found: Found) -> Root | None:
        """Take an object; returns it if it is a workload. Objects that do not name Neuron resources are ignored."""
        raw = found.raw
        concerns_us = not found.readable or pods.may_concern_us(raw)
        if not concerns_us and (self._finds_template is None or not self._finds_template(raw)):
            return None
        try:
            head = _decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            known = identity(raw)
            self.unreadable.append(f"{found.kind} {known.namespace}/{known.name}")
            return None
        metadata, kind = head.metadata or _InventoryMetadata(), (found.group, found.kind)
        itself = _owner(found.group, found.version, found.kind, metadata.name, metadata.uid, metadata.namespace)
        if kind != _POD:
            self._uids[itself.by_name] = itself.uid
            self._known.add(itself.uid)
        if self._is_finished(kind, head):
            self.finished += 1
            self._note_owner(metadata, itself)
            return None
        owner = self._note_owner(metadata, itself)
        if owner is not None and head.spec is not None and head.spec.replicas == 0:
            return None  # An old revision: it has no pods.
        if kind == _POD and concerns_us:
            self._count(metadata, head, owner or itself)
        if owner is None:
            self._roots.add(itself.uid)
            return Root(found, None, metadata.uid, running=kind == _POD and head.status is not None)
        if owner.uid not in self._roots and owner.uid not in self._owners and owner.uid not in self._spare:
            self._spare[owner.uid] = (owner, found.waiting())
        return None

    @property
    def saw_pods(self) -> bool:
        """Whether there was a pod with a status: one that exists."""
        return bool(self._pods)

    def rest(self) -> Iterator[Root]:
        """Workloads that are not among the objects: controllers of kinds that are not known here. Call it last."""
        seen: set[str] = set()
        for owner, found in self._spare.values():
            root = self.root_of(owner)
            if root.uid in self._roots or root.uid in seen:
                continue
            seen.add(root.uid)
            yield Root(found, root, root.uid, running=found.kind == "Pod")

    def root_of(self, owner: Owner) -> Owner:
        """The last controller above an object. `owner`: the object's own controller."""
        for _ in range(_LONGEST_CHAIN):
            uid = owner.uid if owner.uid in self._known else self._uids.get(owner.by_name, owner.uid)
            above = self._owners.get(uid)
            if above is None:
                return owner if uid == owner.uid else dataclasses.replace(owner, uid=uid)
            owner = above
        return owner

    def pods_of(self) -> Callable[[str], PodsNow]:
        """A function from the uid of a workload to its pods. Call it after all objects were taken."""
        sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        for owner, counts in self._pods.items():
            into = sums[self.root_of(owner).uid]
            for at, count in enumerate(counts):
                into[at] += count
        known: Mapping[str, PodsNow] = {uid: PodsNow(*counts) for uid, counts in sums.items()}
        return lambda uid: known.get(uid, PodsNow())

    def on_nodes(self) -> Mapping[str, frozenset[str]]:
        """Node -> uids of workloads whose pods use the device plugin there. Call it after all objects were taken."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for owner, nodes in self._nodes.items():
            uid = self.root_of(owner).uid
            for node in nodes:
                found[node].add(uid)
        return {node: frozenset(uids) for node, uids in found.items()}

    def _note_owner(self, metadata: _InventoryMetadata, itself: Owner) -> Owner | None:
        """The controller of an object; remembered for the objects that this object controls itself."""
        for each in metadata.ownerReferences or ():
            if each.controller and each.kind != _NODE and each.uid != itself.uid:
                group, _, version = each.apiVersion.rpartition("/")
                owner = _owner(group, version, each.kind, each.name, each.uid, metadata.namespace)
                self._owners[itself.uid] = owner
                return owner
        return None

    def _is_finished(self, kind: tuple[str, str], head: _Head) -> bool:
        status = head.status
        if status is None:
            return False
        if kind == _POD:
            return status.phase in ENDED
        return kind == ("batch", "Job") and any(
            each.type in _FINISHED_CONDITIONS and each.status == "True" for each in status.conditions or ()
        )

    def _count(self, metadata: _InventoryMetadata, head: _Head, owner: Owner) -> None:
        if head.status is None:
            return
        converted = (metadata.labels or {}).get(names.LABEL_CONVERTED) == "true"
        node = (head.spec and head.spec.nodeName) or ""
        counts = self._pods[owner]
        counts[1 if converted else 0] += 1
        counts[2] += not node
        if node and not converted:
            self._nodes[owner].add(node)


def _owner(group: str, version: str, kind: str, name: str, uid: str, namespace: str) -> Owner:
    owner = Owner(group, version, kind, name, uid, namespace or "default")
    return owner if uid else dataclasses.replace(owner, uid=owner.by_name)
