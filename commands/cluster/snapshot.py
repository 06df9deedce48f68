"""Reads the objects of a cluster, page by page: those that say which devices there are and who uses them, and a store.

Objects are JSON mappings with the fields that commands need: large fields that none of them needs are left out. What
cannot be read is an `Unseen` with the reason.
"""

import asyncio
import dataclasses
import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import ROUND_DOWN, Decimal
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias, TypeVar

import msgspec
import orjson
import yaml
from msgspec import structs

from cluster.bounded_objects import Holdings, Key
from cluster.collections import OTHERS, RESIZERS, SUPPLIES, TEMPLATES, KeptKind
from cluster.kinds.device_classes import UNREADABLE_CLASS, project_class
from cluster.kinds.nodes import neuron_kind
from cluster.kinds.resource_slices import slice_facts
from cluster.look_ups import LookUps
from cluster.reflector import ObjectReader, key_of
from cluster.resources import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from cluster.store import DEVICE_CLASS, NODE, RESOURCE_SLICE, Store, StoredKind
from commands.cluster.reader import ENDED, ClusterReader, Object, Seen, Unseen, answered, is_missing, items, unseen
from conversion.claims.containers import basic_requests, names_legacy
from neuron import names
from neuron.api.fields import WrongFormError, mapping, mappings, text
from neuron.api.nodes import Node, read_node
from neuron.api.slices import TAINT_RULE, Slice, read_rule, read_slice, tainted
from neuron.api.stored_claims import PODS as RESERVED_PODS
from neuron.api.stored_claims import StoredClaim, User, read_stored_claim
from neuron.api.workloads import group_of
from neuron.quantities import amount_of
from runtime.api_server import (
    JSON,
    PARTIAL_LIST,
    RESOURCE_GROUP,
    ApiServerError,
    ClusterUnavailableError,
    Resource,
    UnreachableError,
    explain,
)
from runtime.files import open_regular
from runtime.watching import Counters

T = TypeVar("T")
Kept: TypeAlias = Seen[tuple[Key, T]]
"""What a store keeps of all objects of a kind, by key."""

_POD_MARKS: Final = (b'"resourceClaims"', b'"extendedResourceClaimStatus"', names.NEURON_TAINT_KEY.encode())
"""One of these is in every pod that may use Neuron devices: all legacy resources begin with the third."""
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_METADATA: Final = (
    "name",
    "namespace",
    "uid",
    "labels",
    "annotations",
    "ownerReferences",
    "creationTimestamp",
    "deletionTimestamp",
)
_POD_SPEC: Final = (
    "nodeName",
    "schedulerName",
    "schedulingGates",
    "schedulingGroup",
    "resourceClaims",
    "nodeSelector",
    "affinity",
    "tolerations",
    "priority",
    "priorityClassName",
)
_POD_STATUS: Final = ("phase", "conditions", "resourceClaimStatuses", "extendedResourceClaimStatus")
_CONTAINERS: Final = ("initContainers", "containers")


_COUNTED: Final = "pods"


class NodeLoads:
    """What the pods on each node request: CPU, memory, ephemeral storage, and their number."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(self, pod: Object) -> None:
        """Count a pod, if it is on a node and has not ended."""
        spec, node = mapping(pod.get("spec")), mapping(pod.get("spec")).get("nodeName")
        if node and mapping(pod.get("status")).get("phase") not in ENDED:
            amounts: Any = basic_requests(spec)
            self._sums[str(node)].update({**amounts, _COUNTED: 1})

    def clear(self) -> None:
        """Forget all pods: they are read again."""
        self._sums.clear()

    def lacking(self, pod: Object, node: Node) -> dict[str, str]:
        """Resources of which a node has too little free for one more pod, with the amounts as a text.

        A resource that the Node does not state is not judged.
        """
        used: Any = self._sums.get(node.name, Counter())
        found = {}
        for resource, wanted in {**basic_requests(pod.get("spec")), _COUNTED: Decimal(1)}.items():
            offered = amount_of(node.allocatable.get(resource))
            free = max(offered - used[resource], Decimal(0))
            if resource in node.allocatable and wanted > 0 and free < wanted:
                shown = [_shown(resource, each) for each in (free, offered, wanted)]
                found[resource] = f"{shown[0]} of {shown[1]} {resource} free, the pod needs {shown[2]}"
        return found


def _shown(resource: str, amount: Decimal) -> str:
    """An amount for people: 3.5, or 12.5Gi."""
    if resource in (_COUNTED, "cpu"):
        return f"{amount.normalize():f}"
    return f"{(amount / 2**30).quantize(Decimal('0.1'), ROUND_DOWN).normalize():f}Gi"


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """Objects of a cluster.

    Attributes:
        address: URL of the API server.
        taken: the time by the API server's clock.
        nodes: all Nodes.
        slices: the driver's ResourceSlices. Their devices have the taints of DeviceTaintRules, too.
        claims: all ResourceClaims. One that is reserved for a PodGroup also has the group's pods that use it as users.
        pods: pods that refer to a claim or request a legacy resource: metadata, the fields of scheduling, names and
            resources of containers, and of the status phase, conditions and claims.
        classes: all DeviceClasses, with whole spec.
        rules: all DeviceTaintRules; empty where the API server serves none.
        loads: what all pods request of their nodes; None: not read.
    """

    address: str
    taken: dt.datetime
    nodes: Seen[Node] = ()
    slices: Seen[Slice] = ()
    claims: Seen[StoredClaim] = ()
    pods: Seen[Object] = ()
    classes: Seen[Object] = ()
    rules: Seen[Object] = ()
    loads: NodeLoads | None = None


async def read_snapshot(
    reader: ClusterReader, address: str, *, with_pods: bool = True, with_loads: bool = False
) -> ClusterSnapshot:
    """Read everything, one list after the other, so that at most one page is in memory.

    Args:
        address: of the API server.
        with_pods: whether to read pods, the longest list of most clusters. They are also read to find the pods of
            PodGroups for which claims are reserved.
        with_loads: whether to read pods without Neuron devices as well, and count what they request.

    Raises:
        ApiServerError: the cluster does not answer, or refuses the credentials.
    """
    ours = f"spec.driver={names.DRIVER}"
    slices = answered(await reader.list(RESOURCE_SLICES, keep=read_slice, fieldSelector=ours))
    served = await taint_rules(reader)
    rules = () if served is None else answered(await reader.list(served, keep=_plain))
    claims = answered(await reader.list(RESOURCE_CLAIMS, keep=read_stored_claim))
    nodes = answered(await reader.list(NODES, keep=read_node))
    classes = answered(await reader.list(DEVICE_CLASSES, keep=_plain))
    in_groups = any(each.ours and each.groups for each in items(claims))
    loads = NodeLoads() if with_loads else None
    pods: Seen[Object] = ()
    if loads is not None:
        counting = loads

        def counted(item: Object) -> Object | None:
            counting.add(item)
            return _pod(item)

        pods = answered(await reader.list(PODS, keep=counted, again=counting.clear))
    elif with_pods or in_groups:
        pods = answered(await reader.list(PODS, keep=_pod, marks=_POD_MARKS))
    found = ClusterSnapshot(address, reader.server.now(), nodes, slices, claims, pods, classes, rules)
    return _completed(dataclasses.replace(found, loads=None if isinstance(pods, Unseen) else loads))


def stored(seen: ClusterSnapshot) -> dict[StoredKind[Any], Kept[Any]]:
    """What a store keeps of a snapshot: slices, Nodes and DeviceClasses."""
    slices, nodes = seen.slices, seen.nodes
    return {
        # What is kept of a slice does not depend on its name.
        RESOURCE_SLICE: slices
        if isinstance(slices, Unseen)
        else tuple((("", str(number)), facts) for number, each in enumerate(slices) if (facts := slice_facts(each))),
        NODE: nodes
        if isinstance(nodes, Unseen)
        else tuple((("", each.name), kind) for each in nodes if (kind := neuron_kind(each))),
        DEVICE_CLASS: seen.classes
        if isinstance(seen.classes, Unseen)
        else tuple((key_of(each), _safely(project_class, each) or UNREADABLE_CLASS) for each in seen.classes),
    }


def gather(objects: Iterable[Object], address: str, taken: dt.datetime) -> ClusterSnapshot:
    """A snapshot of objects from a file; kinds that are not needed and objects that cannot be read are ignored.

    Args:
        address: what to show as the cluster.
        taken: when they were read.
    """
    found: dict[str, list[Any]] = {kind: [] for kind in _PROJECTIONS}
    for item in objects:
        kind = item.get("kind")
        if isinstance(kind, str) and kind in found and (kept := _safely(_PROJECTIONS[kind], item)) is not None:
            found[kind].append(kept)
    nodes, slices, claims, pods, classes, rules = (tuple(each) for each in found.values())
    ours = tuple(each for each in slices if each.driver == names.DRIVER)
    return _completed(ClusterSnapshot(address, taken, nodes, ours, claims, pods, classes, rules))


async def taint_rules(reader: ClusterReader) -> Resource | None:
    """DeviceTaintRules in the version that the API server prefers; None if it serves none, or does not say.

    Raises:
        UnreachableError: the cluster does not answer.
    """
    try:
        found = (await reader.served()).get((RESOURCE_GROUP, TAINT_RULE))
    except UnreachableError:
        raise
    except ApiServerError:
        return None
    return None if found is None else found.resource


def _completed(snapshot: ClusterSnapshot) -> ClusterSnapshot:
    return _with_members(_with_rules(snapshot))


def _with_members(snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """The snapshot with the pods that use claims of their PodGroup: such a claim is reserved for the group only."""
    if isinstance(snapshot.claims, Unseen) or isinstance(snapshot.pods, Unseen):
        return snapshot
    if not any(claim.groups for claim in snapshot.claims):
        return snapshot
    members: dict[tuple[str, str, str], list[User]] = {}
    for pod in snapshot.pods:
        group, metadata = group_of(pod), pod["metadata"]
        for claim in _claims_of(pod) if group else ():
            user = User(RESERVED_PODS, metadata["name"], metadata.get("uid", ""))
            members.setdefault((metadata.get("namespace", ""), group, claim), []).append(user)
    return dataclasses.replace(snapshot, claims=tuple(_with_pods(claim, members) for claim in snapshot.claims))


def _with_pods(claim: StoredClaim, members: Mapping[tuple[str, str, str], list[User]]) -> StoredClaim:
    metadata = claim.metadata
    found = [
        each for group in claim.groups for each in members.get((metadata.namespace, group.name, metadata.name), ())
    ]
    return structs.replace(claim, users=(*claim.users, *found)) if found else claim


def _claims_of(pod: Object) -> Iterable[str]:
    """Names of the claims that a pod uses, as its status and its spec have them."""
    made = mappings(mapping(pod.get("status")).get("resourceClaimStatuses"))
    named = mappings(mapping(pod.get("spec")).get("resourceClaims"))
    return {text(each.get("resourceClaimName")) for each in (*made, *named)} - {""}


def _with_rules(snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """The snapshot with the taints that rules give to devices."""
    if isinstance(snapshot.rules, Unseen) or isinstance(snapshot.slices, Unseen) or not snapshot.rules:
        return snapshot
    rules = [rule for item in snapshot.rules if (rule := _safely(read_rule, item)) is not None]
    return dataclasses.replace(snapshot, slices=tuple(tainted(each, rules) for each in snapshot.slices))


def _safely(project: Callable[[Object], T | None], item: Object) -> T | None:
    try:
        return project(item)
    except (WrongFormError, KeyError, TypeError, AttributeError, ValueError):
        return None


def _plain(item: Object) -> Object:
    return {**{key: item[key] for key in ("spec", "status") if key in item}, "metadata": _metadata(item)}


def _pod(item: Object) -> Object | None:
    spec, status = item["spec"], item.get("status") or {}
    containers = {
        key: [_some(each, ("name", "resources", "restartPolicy")) for each in spec[key]]
        for key in _CONTAINERS
        if spec.get(key)
    }
    uses = (
        spec.get("resourceClaims")
        or status.get("extendedResourceClaimStatus")
        or any(names_legacy(each.get("resources") or {}) for group in containers.values() for each in group)
    )
    if not uses:
        return None
    return {
        "metadata": _metadata(item),
        "spec": _some(spec, _POD_SPEC) | containers,
        "status": _some(status, _POD_STATUS),
    }


def _metadata(item: Object) -> dict[str, object]:
    metadata = _some(item["metadata"], _METADATA)
    annotations = metadata.get("annotations")
    if annotations and _LAST_APPLIED in annotations:
        metadata["annotations"] = {key: value for key, value in annotations.items() if key != _LAST_APPLIED}
    return metadata


def _some(value: Object | None, keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: value[key] for key in keys if key in value} if value else {}


_PROJECTIONS: Final[Mapping[str, Callable[[Object], Any]]] = {
    "Node": read_node,
    "ResourceSlice": read_slice,
    "ResourceClaim": read_stored_claim,
    "Pod": _pod,
    "DeviceClass": _plain,
    TAINT_RULE: _plain,
}
"""What a snapshot keeps of each kind, in the order of its fields."""


class ObjectsError(Exception):
    """A file cannot be read; the message has its name, the reason and the fix."""


def read_objects(file: Path, stdin: BinaryIO) -> list[Object]:
    """The objects of a file, with the items of lists.

    Args:
        file: its path; `-`: standard input.
        stdin: is read for `-`.

    Raises:
        ObjectsError: it cannot be read, or has no objects.
    """
    name = "standard input" if str(file) == "-" else str(file)
    try:
        if str(file) == "-":
            content = stdin.read()
        else:
            with open_regular(file, pipes=True) as opened:
                content = opened.read()
    except OSError as error:
        raise ObjectsError(f"cannot read {name}: {error.strerror}") from error
    try:
        found = [item for document in _documents(content) for item in _items(document)]
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ObjectsError(f"{name} is neither JSON nor YAML: {error}") from error
    if not found:
        raise ObjectsError(f"{name} has no objects: write them with `kubectl get … -o json`")
    return found


def _documents(content: bytes) -> list[object]:
    try:
        return [orjson.loads(content)]
    except orjson.JSONDecodeError:
        return list(yaml.load_all(content, yaml.CSafeLoader))


def _items(document: object) -> Iterator[Object]:
    if not isinstance(document, Mapping):
        return
    items = document.get("items")
    if isinstance(items, list):
        yield from (item for item in items if isinstance(item, Mapping))
    elif "kind" in document:
        yield document


# --- a store of the cluster, by one list of each kind; nothing is followed afterwards ---------------------------------


async def read_store(
    reader: ClusterReader, address: str, have: Mapping[StoredKind[Any], Kept[Any]] | None = None
) -> Store:
    """The store of a cluster as it is now; it asks the API server for the claims that pods name (`Store.exist`).

    Args:
        address: of the API server, for messages.
        have: what the caller has read, by kind: it is not read again.

    Raises:
        ApiServerError: the cluster does not answer.
        ClusterUnavailableError: a kind without which nothing can be said cannot be listed.
    """
    known = have or {}
    store = Store(look_up=LookUps(reader.server, lambda: float("inf")).exist)
    version = await reader.version()
    store.set_kubernetes_version("" if isinstance(version, Unseen) else version)
    kept: tuple[KeptKind[Any], ...] = (RESIZERS, TEMPLATES, *OTHERS, *SUPPLIES)
    found = {**known, **await read_kinds(reader, (each for each in kept if each.kind not in known))}
    problems = {each.kind: _problem(each, found[each.kind]) for each in kept}
    fatal = dict.fromkeys(filter(None, (problems[each.kind] for each in kept if each.needed)))
    if fatal:
        raise ClusterUnavailableError(f"the cluster at {address} cannot be used: {'; '.join(fatal)}")
    fill(store, found)
    store.unseen = problems[RESIZERS.kind]
    unlisted = next(filter(None, (problems[each.kind] for each in SUPPLIES)), "")
    store.unlisted_pools(lambda: unlisted)
    return store


async def read_kinds(reader: ClusterReader, kinds: Iterable[KeptKind[Any]]) -> dict[StoredKind[Any], Kept[Any]]:
    """What is kept of all objects of some kinds. A collection that a cluster need not have is empty if it has none."""
    wanted = tuple(kinds)
    read = await asyncio.gather(*(_read(reader, each) for each in wanted))
    return {each.kind: seen for each, seen in zip(wanted, read, strict=True)}


def fill(store: Store, found: Mapping[StoredKind[Any], Kept[Any]]) -> None:
    """Put what was read of some kinds into a store. A kind that was seen is complete."""
    for kind, seen in found.items():
        for key, projection in items(seen):
            store.put(kind, key, projection)
        if not isinstance(seen, Unseen):
            store.complete(kind)


def _problem(kept: KeptKind[Any], seen: Kept[Any]) -> str:
    """Why the objects of a kind cannot be listed, as a clause; empty if they were."""
    if not isinstance(seen, Unseen):
        return ""
    return seen.why if seen.error is None else explain(seen.error, "list", kept.collection.resource)


async def _read(reader: ClusterReader, kept: KeptKind[T]) -> Kept[T]:
    """What is kept of all objects of a kind."""
    objects = ObjectReader(kept.collection.resource, kept.projection, Counters())
    found: Holdings[T] = Holdings(kept.projection.bounds)

    def restart() -> None:
        nonlocal found
        found = Holdings(kept.projection.bounds)

    def take(raw: msgspec.Raw) -> None:
        key, _, projection = objects.read(memoryview(raw))
        if projection is not None:
            found.put(key, projection)

    for served in filter(None, (kept.collection, kept.older)):
        accept = PARTIAL_LIST if served.metadata_only else JSON
        try:
            await reader.read(served.resource, take, restart, accept=accept, **served.query)
            break
        except ApiServerError as error:
            if kept.installed or not is_missing(error):
                return unseen(error, served.resource, "list")
    return tuple(found.items())
