"""The store: everything that is known of one cluster, and the only answer to what is in it.

It is filled by changes of objects: by watches (the server), by lists (commands that read a cluster once) or by files.
Every answer is known, none, or not seen. What was read completely is told with `complete`; then what is missing is
none. Of any other collection, what is missing was not seen, and the answer is None. A store over another one is an
overlay: its objects are about to be applied there.
"""

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import structs

from cluster.bounded_objects import Bounds, Key
from cluster.kinds import claim_templates, namespaces
from cluster.kinds.claim_templates import UNREADABLE_TEMPLATE, TemplateFacts, project_template
from cluster.kinds.device_classes import UNREADABLE_CLASS, ClassFacts, DeviceClasses, project_class
from cluster.kinds.namespaces import (
    NamespaceQuotas,
    NamespaceRecord,
    QuotaFacts,
    project_limit_range,
    project_namespace_record,
    project_quota,
)
from cluster.kinds.nodes import NodeKind, SupplyIndex, project_node, with_node, with_types
from cluster.kinds.resource_slices import Census, SliceFacts, TraitCounts, project_slice, with_pool
from conversion.claims.pools import NO_SUPPLY, Supply
from conversion.facts import NO_FACTS, NamespaceFacts
from neuron.api import node_pools, workloads
from neuron.api.claim_specs import GROUP, ClaimSpec, ClassSpec
from neuron.api.fields import namespace_named
from neuron.api.node_pools import Described
from neuron.api.workloads import GroupClaim, group_of
from neuron.hardware.device_shapes import DeviceShape
from neuron.hardware.instances import Observation

T = TypeVar("T")
Templates = Callable[[str, str], TemplateFacts | None]
LookUp = Callable[[str, str, Sequence[str]], Awaitable[Mapping[str, bool | None]]]
"""Asks the API server which objects of a kind and namespace exist."""


class Slices:
    """ResourceSlices of the driver: what instance types, and which distinct devices, they publish.

    Observed instance types are kept when their slices and Nodes are deleted: slices are deleted when a driver restarts
    or a node group scales to zero, and pods must keep getting the same claim. Observations only grow. Only the newest
    generation of a pool counts, so that a pool during an update does not look larger.
    """

    def __init__(self) -> None:
        self.observations: Mapping[str, Observation] = MappingProxyType({})
        self.census = Census()
        self._pools: defaultdict[str, dict[Key, SliceFacts]] = defaultdict(dict)
        self._traits = TraitCounts()

    def change(self, key: Key, before: SliceFacts | None, after: SliceFacts | None) -> tuple[bool, bool]:
        """Take in a change. Returns whether observations changed, and whether shapes did."""
        shapes = self.census.replace(before.shapes if before else None, after.shapes if after else None)
        if before is not None:
            pool = self._pools[before.pool]
            del pool[key]
            if not pool:
                del self._pools[before.pool]
        seen = self.observations
        if after is not None:
            self._pools[after.pool][key] = after
            seen = with_pool(seen, self._pools[after.pool].values())
        types = self._traits.replace(before.traits if before else (), after.traits if after else ())
        return self.learn(self._traits.observed(seen, types)), bool(shapes)

    def learn(self, seen: Mapping[str, Observation]) -> bool:
        """Keep observations. True if they differ from those before."""
        if seen == self.observations:
            return False
        self.observations = MappingProxyType(dict(seen))
        return True


def _kept_otherwise(_item: Mapping[str, Any]) -> None:
    """Caches keep nothing of such an object; `from_files` reads it."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class StoredKind(Generic[T]):
    """A kind of objects of which a store keeps something; the type of what it keeps is `T`.

    Attributes:
        group: of the API.
        project: what is kept of an object: a value that compares by content; None: the object is not kept.
        unreadable: is kept for an object that cannot be read; None: nothing is kept.
        bounds: how many bytes a cache keeps in all; None: no bound.
        namespaced: whether objects have a namespace.
    """

    name: str
    group: str = ""
    project: Callable[[Mapping[str, Any]], T | None] = _kept_otherwise
    unreadable: T | None = None
    bounds: Bounds[T] | None = None
    namespaced: bool = True


NAMESPACE: Final = StoredKind("Namespace", "", project_namespace_record, bounds=namespaces.BOUNDS, namespaced=False)
RESOURCE_QUOTA: Final = StoredKind("ResourceQuota", "", project_quota)
LIMIT_RANGE: Final = StoredKind("LimitRange", "", project_limit_range)
DEVICE_CLASS: Final = StoredKind("DeviceClass", GROUP, project_class, UNREADABLE_CLASS, namespaced=False)
CLAIM_TEMPLATE: Final = StoredKind(
    "ResourceClaimTemplate", GROUP, project_template, UNREADABLE_TEMPLATE, claim_templates.BOUNDS
)
RESOURCE_CLAIM: Final[StoredKind[ClaimSpec]] = StoredKind("ResourceClaim", GROUP)
RESOURCE_SLICE: Final = StoredKind("ResourceSlice", GROUP, project_slice, namespaced=False)
NODE: Final = StoredKind("Node", "", project_node, namespaced=False)
POOLS: Final[Mapping[str, StoredKind[Described]]] = {
    kind: StoredKind(kind, group, functools.partial(node_pools.describe, kind)) for group, kind in node_pools.KINDS
}
"""What describes pools of autoscalers, by the name of its kind."""
POD_GROUP: Final[StoredKind[Sequence[GroupClaim]]] = StoredKind(workloads.POD_GROUP, workloads.SCHEDULING)
AUTOSCALER: Final = StoredKind("VerticalPodAutoscaler", workloads.VERTICAL_AUTOSCALER[0], workloads.resized_in_place)
"""Those that resize pods in place: kind and name of the workload."""
TO_COME: Final[StoredKind[bool]] = StoredKind("to come")
"""ResourceClaimTemplates that an operator will make."""

_API_KINDS: Final[tuple[StoredKind[Any], ...]] = (
    NAMESPACE,
    RESOURCE_QUOTA,
    LIMIT_RANGE,
    DEVICE_CLASS,
    CLAIM_TEMPLATE,
    RESOURCE_CLAIM,
    RESOURCE_SLICE,
    NODE,
    POD_GROUP,
    AUTOSCALER,
    *POOLS.values(),
)
KINDS: Final[Mapping[str, StoredKind[Any]]] = {kind.name: kind for kind in _API_KINDS}
"""By the name of the API's kind."""


class Store:
    """What is known of a cluster.

    Caches that follow watches are a moment behind: a pod that is created together with its namespace may be decided
    without the namespace's annotations.

    Attributes:
        on_types: called when `static_types` may have changed.
        unseen: why `resizers` may be incomplete, as a clause; empty if it is not.
    """

    def __init__(
        self, below: "Store | None" = None, *, templates: Templates | None = None, look_up: LookUp | None = None
    ) -> None:
        """Make an empty store.

        Args:
            below: the cluster to which the objects of this store will be applied.
            templates: reads what is kept of a ResourceClaimTemplate, if another one keeps it; may be called in any
                thread.
            look_up: asks the API server for objects that are not kept.
        """
        self._below = below
        self._held: dict[tuple[StoredKind[Any], Key], Any] = {}
        self._templates = templates
        self._look_up = look_up
        self._complete: set[tuple[StoredKind[Any], str]] = set()
        self._unlisted: Callable[[], str] | None = None
        self._version = 0
        self.on_types: Callable[[], None] = lambda: None
        self.unseen = ""
        self._claim_version = 0
        self._kubernetes = ""
        self._slices = Slices()
        self._classes = DeviceClasses()
        self._class_names: frozenset[str] = frozenset()
        self._namespaces: dict[str, NamespaceFacts] = {}
        self._labels: dict[str, Mapping[str, str]] = {}
        self._wholes: dict[str, bytes] = {}
        self._quotas = NamespaceQuotas()
        self._resizers: dict[str, dict[str, tuple[str, str]]] = {}
        self._supply = SupplyIndex()
        self._told = NO_SUPPLY
        self._changes: Mapping[StoredKind[Any], Callable[[Key, Any, Any], None]] = {
            NAMESPACE: self._namespace_changed,
            RESOURCE_QUOTA: self._quota_changed,
            LIMIT_RANGE: self._limit_range_changed,
            DEVICE_CLASS: self._class_changed,
            RESOURCE_SLICE: self._slice_changed,
            NODE: self._node_changed,
            AUTOSCALER: self._autoscaler_changed,
            **{kind: functools.partial(self._pool_changed, kind.name) for kind in POOLS.values()},
        }

    def over(self, below: "Store | None") -> None:
        """Tell the cluster to which the objects of this store will be applied; None: it is not known."""
        self._below = below

    # --- filling ------------------------------------------------------------------------------------------------

    def change(self, kind: StoredKind[T], key: Key, before: T | None, after: T | None) -> None:
        """Take in the change of an object that the caller keeps; None: it is not kept."""
        self._changes[kind](key, before, after)

    def put(self, kind: StoredKind[T], key: Key, after: T) -> None:
        """Keep an object, in place of an earlier one of that name."""
        before = self._held.get((kind, key))
        self._held[kind, key] = after
        if kind in self._changes:
            self._changes[kind](key, before, after)

    def drop(self, kind: StoredKind[T], key: Key) -> None:
        """Forget an object that was put."""
        before = self._held.pop((kind, key), None)
        if before is not None and kind in self._changes:
            self._changes[kind](key, before, None)

    def get(self, kind: StoredKind[T], key: Key) -> T | None:
        """What is kept of an object that was put here."""
        found: T | None = self._held.get((kind, key))
        return found

    def complete(self, kind: StoredKind[Any], namespace: str = "") -> None:
        """Tell that all objects of a kind were read; `namespace`: of one namespace only."""
        if (kind, namespace) not in self._complete:
            self._complete.add((kind, namespace))
            self._version += 1

    def is_complete(self, kind: StoredKind[Any], namespace: str = "") -> bool:
        """Whether all objects of a kind were read: then a missing one is none."""
        mine = (kind, "") in self._complete or (kind, namespace) in self._complete
        return mine or (self._below is not None and self._below.is_complete(kind, namespace))

    def unlisted_pools(self, why: Callable[[], str]) -> None:
        """Tell who knows why pools or Nodes were not seen: a clause, empty if they were."""
        self._unlisted = why

    def set_kubernetes_version(self, version: str) -> None:
        """Tell the version of the control plane."""
        if version != self._kubernetes:
            self._kubernetes = version
            self._version += 1

    # --- of the cluster -----------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Grows when an answer changes that is not about a namespace or template."""
        return self._version if self._below is None else self._version + self._below.version

    @property
    def claim_version(self) -> int:
        """Grows when `device_shapes` or `device_classes` changes."""
        return self._claim_version if self._below is None else self._claim_version + self._below.claim_version

    def kubernetes_version(self) -> str:
        """Version of the control plane; empty if it is not known."""
        return self._kubernetes or ("" if self._below is None else self._below.kubernetes_version())

    def observations(self) -> Mapping[str, Observation]:
        """Instance types that were seen, by name; the same mapping until `version` changes."""
        mine = self._slices.observations
        return mine if self._below is None else {**self._below.observations(), **mine}

    def static_types(self) -> Mapping[str, tuple[str, ...]]:
        """Instance types of nodes that no pool made, which this process has seen or was told, with their labels."""
        return {name: each.labels for name, each in sorted(self._slices.observations.items()) if not each.pooled}

    def learn_types(self, types: Mapping[str, Sequence[str]]) -> None:
        """Take in the `static_types` of another replica, so that all replicas know the same types."""
        self._learnt(changed=self._slices.learn(with_types(self._slices.observations, types)))

    def supply(self) -> Supply:
        """Nodes that exist without a pool, and the pools of autoscalers; the same object until they change."""
        found = self._supply.supply
        problem = (self._unlisted() if self._unlisted else "") or found.problem
        if problem != found.problem:
            found = structs.replace(found, problem=problem)
        if self._below is not None:
            found = found.over(self._below.supply())
        if found != self._told:
            self._told = found
        return self._told

    # --- DeviceClasses and devices ------------------------------------------------------------------------------

    def extended_resources(self) -> Mapping[str, str]:
        """Extended resource -> DeviceClass that serves it; the same mapping until `version` changes.

        A class that is about to be applied is newer than all that exist.
        """
        mine = self._classes.extended_resources
        return mine if self._below is None else {**self._below.extended_resources(), **mine}

    def known_classes(self) -> Mapping[str, ClassSpec]:
        """The DeviceClasses that were read, by name, whether or not there are others."""
        mine = self._classes.specs
        return mine if self._below is None else {**self._below.known_classes(), **mine}

    def device_classes(self) -> Mapping[str, ClassSpec] | None:
        """All DeviceClasses by name; None: there may be others that were not seen."""
        return self.known_classes() if self.is_complete(DEVICE_CLASS) else None

    def class_names(self) -> frozenset[str] | None:
        """Names of all DeviceClasses; None as for `device_classes`."""
        if not self.is_complete(DEVICE_CLASS):
            return None
        return self._class_names if self._below is None else frozenset(self.known_classes())

    def device_shapes(self) -> Sequence[DeviceShape]:
        """The distinct devices of the cluster."""
        mine = self._slices.census.shapes()
        return mine if self._below is None else (*self._below.device_shapes(), *mine)

    # --- namespaces ---------------------------------------------------------------------------------------------

    def namespace(self, name: str) -> NamespaceFacts:
        """Settings of a namespace; the same Python object until they change."""
        mine = self._namespaces.get(name, NO_FACTS)
        if self._below is None:
            return mine
        below = self._below.namespace(name)
        if mine == NO_FACTS or below == NO_FACTS:
            return below if mine == NO_FACTS else mine
        # `kubectl apply` keeps what others wrote.
        quotas = {each.name: each for each in (*below.quotas, *mine.quotas)}
        return NamespaceFacts(
            tuple(sorted({**dict(below.annotations), **dict(mine.annotations)}.items())),
            tuple(quotas[name] for name in sorted(quotas)),
            tuple(sorted({*below.limit_ranges, *mine.limit_ranges})),
            tuple(sorted({*below.unread, *mine.unread})),
        )

    def namespace_labels(self, name: str) -> Mapping[str, str] | None:
        """Labels of a namespace; None if it was not seen, or does not exist."""
        mine = self._labels.get(name)
        below = self._below.namespace_labels(name) if self._below is not None else None
        return mine if below is None else {**below, **(mine or {})}

    def namespace_object(self, name: str) -> Mapping[str, Any] | None:
        """A Namespace as policies see it; None if it does not exist, or is too large to be kept.

        Of one that was not seen, the name and the label that every Namespace has are known.
        """
        whole = self._wholes.get(name)
        if whole is None:
            if self._below is not None and name not in self._labels:
                return self._below.namespace_object(name)
            return None if name in self._labels or self.is_complete(NAMESPACE) else namespace_named(name)
        found: dict[str, Any] = msgspec.json.decode(whole)
        below = self._below.namespace_object(name) if self._below is not None else None
        return _applied(below, found) if below is not None else found

    def quotas(self, name: str) -> Mapping[str, int] | None:
        """Devices that the ResourceQuotas of a namespace allow, by resource; empty: none limits them.

        None: they were not seen. Quotas that are about to be applied count together with those that exist.
        """
        below = self._below.quotas(name) if self._below is not None else None
        mine = self._quotas.of(name)
        if below:
            return {key: min(mine.get(key, amount), amount) for key, amount in {**mine, **below}.items()}
        return mine if self.is_complete(RESOURCE_QUOTA, name) else None

    def resizers(self, namespace: str) -> Mapping[tuple[str, str], str]:
        """VerticalPodAutoscalers of a namespace that resize pods in place, by kind and name of the workload."""
        mine = {workload: name for name, workload in self._resizers.get(namespace, {}).items()}
        below = self._below.resizers(namespace) if self._below is not None else {}
        return {**below, **mine} if below else mine

    # --- claims and templates -----------------------------------------------------------------------------------

    def template(self, namespace: str, name: str) -> TemplateFacts | None:
        """What is kept of a ResourceClaimTemplate; None: not seen, or it does not exist. For any thread."""
        mine = (
            self._templates(namespace, name) if self._templates else self._held.get((CLAIM_TEMPLATE, (namespace, name)))
        )
        return mine if mine is not None or self._below is None else self._below.template(namespace, name)

    def claim_template(self, namespace: str, name: str) -> ClaimSpec | None:
        """Requests of a ResourceClaimTemplate; None if they are not known. For any thread."""
        facts = self.template(namespace, name)
        return facts.spec if facts is not None else None

    def template_device_classes(self, namespace: str, name: str) -> frozenset[str]:
        """DeviceClasses that a ResourceClaimTemplate requests; empty if it is unknown."""
        facts = self.template(namespace, name)
        return facts.device_classes if facts else frozenset()

    def template_ultraserver_mode(self, namespace: str, name: str) -> int | None:
        """`ultraserverMode` of a ResourceClaimTemplate's UltraServerConfig, or None."""
        facts = self.template(namespace, name)
        return facts.ultraserver_mode if facts else None

    def group_claims(self, namespace: str, pod: Mapping[str, object]) -> Sequence[GroupClaim]:
        """The claims of the PodGroup of a pod or pod template; empty if it was not seen, or has none."""
        return self.get(POD_GROUP, (namespace, group_of(pod))) or ()

    async def exist(self, kind: str, namespace: str, names: Iterable[str]) -> Mapping[str, bool | None]:
        """Which ResourceClaims or ResourceClaimTemplates exist, or are about to.

        What is not kept is asked of the API server (`look_ups`): caches do not have an object that was applied a moment
        ago. Takes at most a second, and less than the review has left, for any number of names. Does not raise.

        Returns:
            For each name whether it exists; None if it is not known: no cluster, no permission, too many names, or no
            answer in time.
        """
        wanted = list(names)
        found: dict[str, bool | None] = {name: self._holds(kind, (namespace, name)) or None for name in wanted}
        unknown = [name for name, exists in found.items() if exists is None]
        if self._look_up is not None and unknown:
            found |= await self._look_up(kind, namespace, unknown)
        if self._below is not None and unknown:
            found |= await self._below.exist(kind, namespace, unknown)
        return found

    def _holds(self, kind: str, key: Key) -> bool:
        if kind == RESOURCE_CLAIM.name:
            return (RESOURCE_CLAIM, key) in self._held
        known = self._templates(*key) if self._templates else self._held.get((CLAIM_TEMPLATE, key))
        return known is not None or (TO_COME, key) in self._held

    # --- changes ------------------------------------------------------------------------------------------------

    def _slice_changed(self, key: Key, before: SliceFacts | None, after: SliceFacts | None) -> None:
        learnt, shapes = self._slices.change(key, before, after)
        self._learnt(changed=learnt)
        self._claim_version += shapes

    def _node_changed(self, key: Key, before: NodeKind | None, after: NodeKind | None) -> None:  # noqa: ARG002 - of all callbacks
        self._version += self._supply.node_changed(before, after)
        if after is not None:
            self._learnt(changed=self._slices.learn(with_node(self._slices.observations, after)))

    def _learnt(self, *, changed: bool) -> None:
        if changed:
            self._version += 1
            self.on_types()

    def _pool_changed(self, kind: str, key: Key, _: Described | None, after: Described | None) -> None:
        self._version += self._supply.keep(kind, *key, after)

    def _class_changed(self, key: Key, before: ClassFacts | None, after: ClassFacts | None) -> None:
        spec, served = self._classes.change(key[1], before, after)
        self._claim_version += spec
        if served:
            self._class_names = frozenset(self._classes.specs)
            self._version += 1

    def _namespace_changed(self, key: Key, _: NamespaceRecord | None, after: NamespaceRecord | None) -> None:
        if after is None:
            self._labels.pop(key[1], None)
        else:
            self._labels[key[1]] = after.labels
        if after is None or after.whole is None:
            self._wholes.pop(key[1], None)
        else:
            self._wholes[key[1]] = after.whole
        self._keep(key[1], annotations=after.annotations if after else (), unread=after.unread if after else ())

    def _quota_changed(self, key: Key, _: QuotaFacts | None, after: QuotaFacts | None) -> None:
        self._quotas.keep(key[0], key[1], after)
        self._keep(key[0], quotas=self._quotas.legacy(key[0]))

    def _limit_range_changed(self, key: Key, _: bool | None, after: bool | None) -> None:
        others = {name for name in self._own(key[0]).limit_ranges if name != key[1]}
        self._keep(key[0], limit_ranges=tuple(sorted(others | {key[1]} if after else others)))

    def _autoscaler_changed(self, key: Key, _: tuple[str, str] | None, after: tuple[str, str] | None) -> None:
        known = self._resizers.setdefault(key[0], {})
        known.pop(key[1], None)
        if after is not None:
            known[key[1]] = after
        elif not known:
            del self._resizers[key[0]]

    def _own(self, namespace: str) -> NamespaceFacts:
        return self._namespaces.get(namespace, NO_FACTS)

    def _keep(self, namespace: str, **changed: object) -> None:
        facts = structs.replace(self._own(namespace), **changed)
        if facts == NO_FACTS:
            self._namespaces.pop(namespace, None)
        else:
            self._namespaces[namespace] = facts


def _applied(below: Mapping[str, Any], applied: Mapping[str, Any]) -> dict[str, Any]:
    """A Namespace after `kubectl apply`, which keeps labels and annotations that others wrote."""
    before, after = below["metadata"], applied["metadata"]
    kept = {
        field: {**(before.get(field) or {}), **(after.get(field) or {})}
        for field in ("labels", "annotations")
        if before.get(field) or after.get(field)
    }
    return {**below, **applied, "metadata": {**before, **after, **kept}}
