"""Reads what a rehearsal needs: from a cluster, page by page, or from files."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec
import orjson
from msgspec import structs

from cluster.kinds.nodes import neuron_kind
from cluster.resources import POD_DISRUPTION_BUDGETS
from cluster.store import DEVICE_CLASS, POOLS, Store
from cluster.store import NODE as STORED_NODE
from commands.cluster.reader import ClusterReader, Progress, Unseen, items, whole
from commands.cluster.snapshot import ClusterSnapshot, gather, stored
from commands.devices.node_devices import ClusterDevices
from commands.explain.admission_preview import store_of
from commands.objects.manifest_files import ReadProblem
from commands.present import listed
from commands.rehearse.gather import Gathering, GatheringSettings, common_labels, without_legacy
from commands.rehearse.model import AssumedPool
from commands.rehearse.play import POD_DISRUPTION_BUDGET
from commands.rehearse.played_nodes import DRIVER_LABEL
from commands.report.inputs import ClusterInputs, FileInputs, read_surroundings
from commands.report.inventory import Found
from commands.status import kueue
from conversion.claims.candidates import NodeSelection
from conversion.claims.pools import NeuronPools, PodNeeds, Supply, is_of_one_node
from conversion.objects.pods import may_concern_us, mentions
from neuron import names
from neuron.api.node_pools import NODE_POOL, Pool
from neuron.api.nodes import Node
from neuron.api.taints import TolerationSpec
from neuron.hardware.instances import Catalogue, InstanceType
from runtime.api_server import RESOURCE_GROUP, TimedApiServer
from runtime.text import counted

if TYPE_CHECKING:
    import datetime as dt

NODE = ("", "Node")
_POOL_LABEL: Final = names.KARPENTER_POOL_LABELS[0]
_TAINT_RULE: Final = (RESOURCE_GROUP, "DeviceTaintRule")


class CannotAssumeError(Exception):
    """A pool cannot have the number of nodes that `--pool` names; the message says why, and what to do."""


class CannotPlayError(Exception):
    """Nothing can be played: nodes or slices are not readable. The message has the reason and the fix."""


class _Metadata(msgspec.Struct, omit_defaults=True):
    namespace: msgspec.Raw = msgspec.Raw()
    name: msgspec.Raw = msgspec.Raw()


class _Container(msgspec.Struct, omit_defaults=True):
    resources: msgspec.Raw = msgspec.Raw()
    restartPolicy: msgspec.Raw = msgspec.Raw()  # noqa: N815 - the wire's spelling


class _Spec(msgspec.Struct, omit_defaults=True):
    nodeName: msgspec.Raw = msgspec.Raw()  # noqa: N815
    containers: list[_Container] = []
    initContainers: list[_Container] = []  # noqa: N815
    resources: msgspec.Raw = msgspec.Raw()
    overhead: msgspec.Raw = msgspec.Raw()


class _OtherPodStatus(msgspec.Struct, omit_defaults=True):
    phase: msgspec.Raw = msgspec.Raw()


class _OtherPod(msgspec.Struct, omit_defaults=True):
    """What counts of a pod without Neuron devices."""

    metadata: _Metadata
    spec: _Spec
    status: _OtherPodStatus


_decode_other: Final = msgspec.json.Decoder(_OtherPod).decode


def reduced(kind: str, raw: bytes) -> bytes:
    """JSON of an object; of a pod without Neuron devices and claims only what counts: a cluster has many of them."""
    if kind != "Pod" or may_concern_us(raw) or mentions(raw, b"esourceClaim"):
        return raw
    try:
        return msgspec.json.encode(_decode_other(raw))
    except msgspec.DecodeError:
        return raw


def from_files(
    inputs: FileInputs,
    settings: GatheringSettings,
    now: "dt.datetime",
    step: Callable[[], None],
) -> tuple[Gathering, list[str]]:
    """The cluster of files, and what could not be read of them.

    Args:
        inputs: of `commands.report.inputs.read_files`.
        step: is called after each object.

    Raises:
        CannotAssumeError: a pool of `settings.pools` cannot have that many nodes.
    """
    rules: list[Found] = []
    others: list[Found] = []
    for found in inputs.found:
        (rules if (found.group, found.kind) == _TAINT_RULE else others).append(found)
    read = [{**orjson.loads(each.raw), "kind": each.kind} for each in rules]
    read += [each.data for each in inputs.facts if each.group == RESOURCE_GROUP or (each.group, each.kind) == NODE]
    seen = gather(read, "files", now)
    version = settings.options.kubernetes_version or max(
        (node.kubelet for node in items(seen.nodes)), key=_numbers, default=""
    )
    # Files need not have all DeviceClasses: those that they have are among the facts.
    known = {kind: each for kind, each in stored(seen).items() if kind is not DEVICE_CLASS}
    store = store_of(inputs.facts, known, kubernetes=version)
    gathered, problems = _gathering(seen, store, settings)
    for found in sorted(
        others, key=lambda each: (each.kind == "Pod", (each.group, each.kind) != POD_DISRUPTION_BUDGET)
    ):
        gathered.take(found)
        step()
    return gathered, [*map(str, inputs.faults), *problems]


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.removeprefix("v").partition("-")[0].split(".")
    return tuple(int(each) for each in parts if each.isdecimal())


async def from_cluster(
    server: TimedApiServer, address: str, settings: GatheringSettings, progress: Progress
) -> tuple[Gathering, list[str]]:
    """A cluster, and what could not be read of it.

    Raises:
        CannotAssumeError: as for files.
        CannotPlayError: nodes or slices cannot be read.
        ApiServerError: the cluster does not answer.
        ClusterUnavailableError: a kind without which nothing can be said cannot be listed.
    """
    reader = ClusterReader(server, progress=progress)
    around = await read_surroundings(reader, address)
    if around.unseen:
        raise CannotPlayError(" ".join(map(str, around.unseen)))
    settings = dataclasses.replace(settings, counted_classes=kueue.counted_classes(around.queues))
    gathered, problems = _gathering(around.seen, around.store, settings)
    group, kind = POD_DISRUPTION_BUDGET
    budgets = await reader.list(POD_DISRUPTION_BUDGETS, keep=whole)
    if isinstance(budgets, Unseen):
        problems.append(f"{budgets} Drains are played as if there were no PodDisruptionBudgets.")
    for each in items(budgets):
        gathered.take(Found(group, "v1", kind, orjson.dumps(each)))

    def problem(found: ReadProblem) -> None:
        problems.append(f"{found}.")

    await ClusterInputs(reader, "").read_workloads(gathered.take, problem)
    return gathered, problems


def _gathering(seen: ClusterSnapshot, store: Store, settings: GatheringSettings) -> tuple[Gathering, list[str]]:
    """An empty gathering, with the nodes that the user assumes, and what could not be read of devices."""
    assumed = []
    for name, count in settings.pools.items():
        pool = _pool(name, store.supply())
        static = structs.replace(pool, replicas=count, limits=())
        made, nodes = _assumed(pool, count, _type_of(static, settings.catalogue), seen)
        store.put(POOLS[pool.kind], ("", name), static)
        for node in nodes:
            if kind := neuron_kind(node):
                store.put(STORED_NODE, ("", node.name), kind)
        seen = dataclasses.replace(seen, nodes=(*items(seen.nodes), *nodes))
        assumed.append(made)
    cluster = ClusterDevices(seen, store.kubernetes_version(), settings.catalogue)
    return Gathering(settings, store, cluster, tuple(assumed)), list(cluster.map.problems)


def _pool(name: str, supply: Supply) -> Pool:
    known = {each.name: each for each in supply.pools if each.kind == NODE_POOL[1]}
    if name not in known:
        told = f"known are {listed(known, 10)}" if known else "none is known"
        unread = f" ({supply.problem})" if supply.problem else ""
        raise CannotAssumeError(f"there is no NodePool {name[:100]!r}: {told}{unread}")
    if known[name].automatic:
        raise CannotAssumeError(f"{known[name]} is of EKS Auto Mode, on whose nodes the driver cannot run")
    return known[name]


def _type_of(pool: Pool, catalogue: Catalogue) -> InstanceType:
    """The only instance type that a pool makes."""
    found = NeuronPools(Supply((pool,)), catalogue).takers(PodNeeds(NodeSelection(), (TolerationSpec(),), 0, 0))
    types = [entry for match in (*found.static, *found.idle) for entry in match.types]
    if not types:
        raise CannotAssumeError(f"{pool} makes no nodes of a type with Neuron devices")
    if len(types) > 1:
        raise CannotAssumeError(
            f"{pool} makes nodes of several types ({listed([each.name for each in types], 5)}): require one of them in"
            f" {names.LABEL_INSTANCE_TYPE}, or play nodes of one with --spare TYPE=N"
        )
    return types[0]


def _assumed(pool: Pool, count: int, entry: InstanceType, seen: ClusterSnapshot) -> tuple[AssumedPool, list[Node]]:
    """The nodes of a pool that do not exist. They have what its requirements and all of its nodes have in common."""
    has = [each for each in items(seen.nodes) if each.labels.get(_POOL_LABEL) == pool.name]
    if count < len(has):
        raise CannotAssumeError(f"{pool} has {counted(len(has), 'node')}: name at least that many, not {count}")
    rules = {rule.key: rule.values for rule in pool.rules if rule.operator in ("In", "Exists")}
    labels = {
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        **{key: value for key, value in common_labels(entry, has).items() if not is_of_one_node(key)},
        **{key: values[0] for key, values in rules.items() if len(values) == 1},
    }
    published = {each.node for each in items(seen.slices)}
    driver = DRIVER_LABEL.items() <= labels.items() or (bool(has) and all(each.name in published for each in has))
    same = [each for each in (*has, *items(seen.nodes)) if each.instance_type == entry.name]
    offers = without_legacy(same)
    if not driver:
        devices = entry.devices or 0
        cores = devices * (entry.cores(None) or 0)
        legacy = next((each.legacy for each in same if each.legacy), None)
        offers |= legacy or dict(zip(names.LEGACY_RESOURCES, (devices, devices, cores), strict=True))
    taken = {each.name for each in items(seen.nodes)}
    free = (name for number in itertools.count(1) if (name := f"{pool.name}-assumed-{number}") not in taken)
    nodes = [
        Node(name, labels={**labels, "kubernetes.io/hostname": name}, taints=pool.taints, allocatable=offers)
        for name in itertools.islice(free, count - len(has))
    ]
    several = tuple(sorted(key for key, values in rules.items() if key not in labels))
    added = tuple(each.name for each in nodes)
    return AssumedPool(str(pool), count, added, entry.name, driver, pool.dynamic, several), nodes
