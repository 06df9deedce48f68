"""What autoscalers make nodes from: NodePools and node classes of Karpenter, node groups of Cluster Autoscaler.

Sources: Karpenter, `karpenter.sh/v1` NodePool, `karpenter.k8s.aws/v1` EC2NodeClass, and Provisioner (until Karpenter
0.32); Cluster Autoscaler's Cluster API provider, "Scale from zero support": annotations of a MachineDeployment.
"""

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from msgspec import Struct

from neuron import names
from neuron.api.fields import Fields, ObjectMeta, WrongFormError, mapping, read
from neuron.api.taints import Taint
from neuron.quantities import NotAQuantityError, parse_amount

KARPENTER: Final = "karpenter.sh"
PROVIDER: Final = "karpenter.k8s.aws"
CLUSTER_API: Final = "cluster.x-k8s.io"
NODE_POOL: Final = (KARPENTER, "NodePool")
PROVISIONER: Final = (KARPENTER, "Provisioner")
NODE_CLASS: Final = (PROVIDER, "EC2NodeClass")
NODE_GROUP: Final = (CLUSTER_API, "MachineDeployment")
KINDS: Final = (NODE_POOL, PROVISIONER, NODE_CLASS, NODE_GROUP)
"""Group and kind of the objects that `read_pool` and `read_zones` read."""

_AUTO_MODE: Final = "eks.amazonaws.com"
_CAPACITY: Final = "capacity.cluster-autoscaler.kubernetes.io"
_GROUP_SIZE: Final = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-"
_COUNTED: Final = ("nodes", "cpu", "memory", *names.LEGACY_RESOURCES)


class LabelRule(Struct, frozen=True):
    """A requirement on a label of the nodes, as a NodePool and a node selector write it."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class Pool(Struct, frozen=True):
    """Nodes that an autoscaler makes, or keeps.

    Attributes:
        kind: of the object.
        name: of the object.
        rules: requirements that each node meets, template labels among them.
        taints: of each node, for good.
        limits: upper limits of all nodes together, as far as they can forbid a node: by resource.
        weight: the pool with the highest is tried first.
        replicas: the fixed number of nodes; None: nodes are made when pods wait.
        node_class: group, kind and name of its node class; empty strings if it names none.
        serves_claims: whether its autoscaler is told of our devices (Cluster Autoscaler's annotation).
    """

    kind: str
    name: str
    rules: tuple[LabelRule, ...] = ()
    taints: tuple[Taint, ...] = ()
    limits: tuple[tuple[str, int], ...] = ()
    weight: int = 0
    replicas: int | None = None
    node_class: tuple[str, str, str] = ("", "", "")
    serves_claims: bool = False

    @property
    def automatic(self) -> bool:
        """Whether EKS Auto Mode makes its nodes, on which the driver cannot run."""
        return self.node_class[0] == _AUTO_MODE

    @property
    def dynamic(self) -> bool:
        """Whether nodes are made when pods wait."""
        return self.replicas is None

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class _WrittenRule(Fields, frozen=True):
    key: str
    operator: str = "In"
    values: list[str] | None = None


class _NodeClassRef(Fields, frozen=True):
    group: str = ""
    kind: str = ""
    name: str = ""
    api_version: str = ""


class _NodesOfPool(Fields, frozen=True):
    """`spec.template.spec` of a NodePool, and the part of a Provisioner's `spec` that is equal."""

    requirements: list[_WrittenRule] | None = None
    taints: list[dict[str, object]] | None = None
    node_class_ref: _NodeClassRef | None = None


class _Labels(Fields, frozen=True):
    labels: dict[str, str] | None = None


class _Template(Fields, frozen=True):
    metadata: _Labels | None = None
    spec: _NodesOfPool | None = None


class _PoolSpec(_NodesOfPool, frozen=True):
    template: _Template | None = None
    labels: dict[str, str] | None = None
    limits: dict[str, object] | None = None
    weight: int | None = None
    replicas: int | None = None


class _WrittenPool(Fields, frozen=True):
    metadata: ObjectMeta
    spec: _PoolSpec | None = None


class _Subnet(Fields, frozen=True):
    zone: str = ""


class _NodeClassStatus(Fields, frozen=True):
    subnets: list[_Subnet] | None = None


class _NodeClass(Fields, frozen=True):
    metadata: ObjectMeta
    status: _NodeClassStatus | None = None


Described: TypeAlias = Pool | tuple[str, ...] | str
"""What an object says: a pool, the zones of a node class, or why it cannot be read."""


def describe(kind: str, item: object) -> Described | None:
    """What an object of a kind of `KINDS` says; None for one that describes no nodes."""
    try:
        return read_described(kind, item)
    except WrongFormError as error:
        return str(error)


def read_described(kind: str, item: object) -> Pool | tuple[str, ...] | None:
    """What an object of a kind of `KINDS` says; None for one that describes no nodes.

    Raises:
        neuron.api.fields.WrongFormError: it has another form.
    """
    return read_zones(item) if kind == NODE_CLASS[1] else read_pool(kind, item)


def read_pool(kind: str, item: object) -> Pool | None:
    """A NodePool, Provisioner or MachineDeployment; None for one that is being deleted, or not described.

    Raises:
        neuron.api.fields.WrongFormError: it has another form.
    """
    found = read(item, _WrittenPool)
    if found.metadata.deletion_timestamp:
        return None
    spec = found.spec or _PoolSpec()
    if kind == NODE_GROUP[1]:
        return _node_group(found.metadata)
    template = spec.template or _Template(_Labels(spec.labels), spec)
    described = template.spec or _NodesOfPool()
    class_ref = described.node_class_ref or _NodeClassRef()
    group = class_ref.group or class_ref.api_version.partition("/")[0]
    labels = (template.metadata or _Labels()).labels or {}
    own = {names.KARPENTER_POOL_LABELS[kind == PROVISIONER[1]]: found.metadata.name}
    if group and class_ref.kind and class_ref.name:
        own[f"{group}/{class_ref.kind.lower()}"] = class_ref.name
    if group == _AUTO_MODE:
        own[names.LABEL_COMPUTE_TYPE] = names.AUTO_MODE
    limits: Mapping[str, object] = spec.limits or {}
    if kind == PROVISIONER[1]:
        limits = mapping(limits.get("resources"))
    return Pool(
        kind,
        found.metadata.name,
        (
            *_of_labels({**labels, **own}),
            *(LabelRule(each.key, each.operator, tuple(each.values or ())) for each in described.requirements or ()),
        ),
        _taints(described.taints or ()),
        tuple(_counts(limits)),
        spec.weight or 0,
        spec.replicas,
        (group, class_ref.kind, class_ref.name),
    )


def read_zones(item: object) -> tuple[str, ...]:
    """The zones of the subnets in which an EC2NodeClass makes nodes, sorted; empty if they are not known.

    Raises:
        neuron.api.fields.WrongFormError: it has another form.
    """
    status = read(item, _NodeClass).status or _NodeClassStatus()
    return tuple(sorted({each.zone for each in status.subnets or () if each.zone}))


def _node_group(metadata: ObjectMeta) -> Pool | None:
    """A MachineDeployment whose annotations describe its nodes, and which Cluster Autoscaler scales."""
    annotations = metadata.annotations or {}
    if f"{_GROUP_SIZE}max-size" not in annotations or annotations[f"{_GROUP_SIZE}max-size"].strip() == "0":
        return None
    labels = dict(_pairs(annotations.get(f"{_CAPACITY}/labels", "")))
    ours = annotations.get(f"{_CAPACITY}/dra-driver") == names.DRIVER
    if not labels and not ours:
        return None
    taints: list[dict[str, object]] = []
    for text in annotations.get(f"{_CAPACITY}/taints", "").split(","):
        value, _, effect = text.strip().rpartition(":")
        key, _, given = value.partition("=")
        taints += [{"key": key, "value": given, "effect": effect}] if key else []
    return Pool(NODE_GROUP[1], metadata.name, tuple(_of_labels(labels)), _taints(taints), serves_claims=ours)


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """`a=1,b=2`, as Cluster Autoscaler reads it."""
    for pair in text.split(","):
        key, equal, value = pair.strip().partition("=")
        if key and equal:
            yield key, value


def _of_labels(labels: Mapping[str, str]) -> Iterator[LabelRule]:
    return (LabelRule(key, "In", (value,)) for key, value in sorted(labels.items()))


def _taints(entries: "list[dict[str, object]] | tuple[()]") -> tuple[Taint, ...]:
    return tuple(taint for taint in map(Taint.read, entries) if taint.prevents)


def _counts(limits: Mapping[str, object]) -> Iterator[tuple[str, int]]:
    """The limits that are read, as whole numbers; a limit that is no quantity is left out."""
    for resource in _COUNTED:
        if resource in limits:
            try:
                yield resource, int(parse_amount(limits[resource]))
            except NotAQuantityError:
                continue
