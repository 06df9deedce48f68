"""The webhook's view of the cluster: indexes over watch caches. Watch events update them; reading them does no I/O."""

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from neuron import names
from neuron.api import configs
from neuron.api.claim_reader import read_claim, read_class
from neuron.api.claim_specs import ClaimSpec, ClassSpec
from neuron.api.namespaces import namespace_value
from neuron.demand import templates
from neuron.demand.pools import NO_SUPPLY, Supply
from neuron.hardware.instances import Observation
from runtime.api_server import RESOURCE_GROUP, ApiServer, Collection, Resource
from runtime.watching import Timing
from webhook.cluster import supplies
from webhook.cluster.cached_objects import Bounds, Key
from webhook.cluster.claims import ClusterClaims
from webhook.cluster.device_traits import TraitCounts
from webhook.cluster.memory_estimates import footprint
from webhook.cluster.node_types import NODE_METADATA, NodeKind, project_node, with_node, with_types
from webhook.cluster.object_reader import Projection
from webhook.cluster.quotas import NamespaceQuotas, QuotaFacts, project_quota
from webhook.cluster.reflector import Reflector
from webhook.cluster.shared_parts import SharedParts
from webhook.cluster.slice_facts import SliceFacts, project_slice, with_pool
from webhook.cluster.supplies import Described, SupplyIndex
from webhook.decisions.check_keys import unread_keys
from webhook.decisions.ports import NO_FACTS, NamespaceFacts

NAMESPACES: Final = Resource("", "v1", "namespaces")
RESOURCE_QUOTAS: Final = Resource("", "v1", "resourcequotas")
LIMIT_RANGES: Final = Resource("", "v1", "limitranges")
RESOURCE_SLICES: Final = Resource(RESOURCE_GROUP, "v1", "resourceslices")
DEVICE_CLASSES: Final = Resource(RESOURCE_GROUP, "v1", "deviceclasses")
RESOURCE_CLAIM_TEMPLATES: Final = Resource(RESOURCE_GROUP, "v1", "resourceclaimtemplates")

_API_VERSION: Final = f"{RESOURCE_GROUP}/v1"
_OUR_ANNOTATIONS: Final = f"{names.DRIVER}/"
_LIMITED_TYPES: Final = ("Container", "Pod")
# Each of the three denies a pod without a limit of that name (plugin/pkg/admission/limitranger).
_LIMITS: Final = ("min", "max", "maxLimitRequestRatio")


LONGEST_TEMPLATE: Final = 128 * 1024
"""Bytes of a ResourceClaimTemplate. The requests of a longer one count as unknown."""
_TEMPLATE_BYTES: Final = 64 * 1024 * 1024
_TEMPLATE_BYTES_OF_ONE: Final = 4 * 1024 * 1024
"""Memory for all templates, and for those of one namespace. Some thousand typical templates need as much."""
LONGEST_NAMESPACE: Final = 16 * 1024
"""Bytes of all fields of a Namespace that policies can read. Of a longer one, labels and our annotations are kept."""
_NAMESPACE_BYTES: Final = 32 * 1024 * 1024
"""Memory for all Namespaces; without the fields of which only policies read, it is enough for 65,536."""
_MOST_ANNOTATIONS: Final = 64
_MOST_LABELS: Final = 1024
_LONGEST_VALUE: Final = 256
"""Characters of an annotation. No valid value is longer, and a shortened one stays invalid."""


@dataclasses.dataclass(frozen=True, slots=True)
class ClassFacts:
    """A DeviceClass.

    Attributes:
        extended_resource: `spec.extendedResourceName` (KEP-5004); empty if unset.
        created: `metadata.creationTimestamp`, RFC 3339 in UTC, so that text order is time order.
        spec: selectors and configs.
    """

    extended_resource: str
    created: str
    spec: ClassSpec


class TemplateFacts(Struct, frozen=True, gc=False):
    """What is kept of one ResourceClaimTemplate.

    Attributes:
        digest: `templates.digest` of its spec; empty if neither its name nor an annotation marks it as made by the
            webhook.
        managed: whether its label marks it as generated.
        device_classes: DeviceClasses that it requests, including alternatives.
        ultraserver_mode: of its UltraServerConfig, if it has a readable one.
        spec: its requests; None if unknown: the spec cannot be read, or is larger than the cache keeps.
        prune_after: time of its removal, from its annotation; empty if it is not marked.
    """

    digest: str
    managed: bool
    device_classes: frozenset[str]
    ultraserver_mode: int | None
    spec: ClaimSpec | None
    prune_after: str = ""


UNREADABLE_TEMPLATE: Final = TemplateFacts("", False, frozenset(), None, None)
"""A template that exists, with unknown content."""
UNREADABLE_CLASS: Final = ClassFacts("", "", ClassSpec())
"""A DeviceClass that cannot be read. It may select every device."""


_SHARED: Final = SharedParts()
"""Templates repeat field paths, classes and whole requests."""


def _template_weight(facts: TemplateFacts) -> int:
    return footprint(facts.spec) + footprint(facts.device_classes)


def _shortened(facts: TemplateFacts) -> TemplateFacts:
    return structs.replace(facts, spec=None, device_classes=frozenset(), ultraserver_mode=None)


_TEMPLATE_BOUNDS: Final = Bounds(_TEMPLATE_BYTES, _TEMPLATE_BYTES_OF_ONE, _template_weight, _shortened)


def _nothing() -> None:
    pass


class KubeCluster(ClusterClaims):
    """A `ValidationView` over its caches.

    Observed instance types are kept when their slices and Nodes are deleted: slices are deleted when a driver restarts
    or a node group scales to zero, and pods must keep getting the same claim. Observations only grow. Only the newest
    generation of a pool counts, so that a pool during an update does not look larger. Replicas tell each other the
    types that they have seen (`learn_types`, by their Leases), also a replica that starts while a type has no Node. So
    all choose the same candidates, until the last replica that knows the type has ended; pods that must not depend on
    this name an instance type (annotation, node selector or policy). Whether a pod is converted does not depend on
    observations, but on `supply`: what exists now.

    Caches are a moment behind: a pod that is created together with its namespace may be decided without the
    namespace's annotations.

    Attributes:
        caches: the view is current while all of them run.
        on_types: called when `static_types` may have changed.
    """

    def __init__(self, server: ApiServer, timing: Timing | None = None, *, nodes: bool = True) -> None:
        """Create the caches; they are filled when they run. `nodes`: whether to watch Nodes."""
        ours = Collection(RESOURCE_SLICES, parameters={"fieldSelector": f"spec.driver={names.DRIVER}"})
        slices = Reflector(server, ours, Projection(project_slice), timing=timing)
        kept_class = Projection(project_class, UNREADABLE_CLASS)
        classes = Reflector(server, Collection(DEVICE_CLASSES), kept_class, timing=timing)
        kept_namespace = Projection(project_namespace_labels, bounds=_NAMESPACE_BOUNDS)
        namespaces = Reflector(server, Collection(NAMESPACES), kept_namespace, timing=timing)
        quotas = Reflector(server, Collection(RESOURCE_QUOTAS), Projection(project_quota), timing=timing)
        limit_ranges = Reflector(server, Collection(LIMIT_RANGES), Projection(project_limit_range), timing=timing)
        self.templates = Reflector(
            server,
            Collection(RESOURCE_CLAIM_TEMPLATES),
            Projection(project_template, UNREADABLE_TEMPLATE, LONGEST_TEMPLATE, _TEMPLATE_BOUNDS),
            timing=timing,
        )
        super().__init__(server, self.templates.get)
        self.caches: tuple[Reflector[Any], ...] = (
            slices,
            classes,
            namespaces,
            quotas,
            limit_ranges,
            self.templates,
        )
        self._supplies: tuple[Reflector[Any], ...] = ()
        if nodes:
            labelled = Reflector(server, NODE_METADATA, Projection(project_node), timing=timing, needed=False)
            labelled.on_change(self._node_changed)
            self._supplies = (labelled, *(self._supply_of(server, each, timing) for each in supplies.RESOURCES))
            self.caches = (*self.caches, *self._supplies)
        self._supply = SupplyIndex()
        self._told = NO_SUPPLY
        self._pod_version = 0
        self.on_types: Callable[[], None] = _nothing
        self._kubernetes = ""
        self._pools: defaultdict[str, dict[Key, SliceFacts]] = defaultdict(dict)
        self._observations: Mapping[str, Observation] = MappingProxyType({})
        self._traits = TraitCounts()
        self._servants: defaultdict[str, dict[str, str]] = defaultdict(dict)
        self._extended_resources: Mapping[str, str] = MappingProxyType({})
        self._class_names: frozenset[str] = frozenset()
        self._namespaces: dict[str, NamespaceFacts] = {}
        self._labels: dict[str, Mapping[str, str]] = {}
        self._wholes: dict[str, bytes] = {}
        self._quotas = NamespaceQuotas()
        self._quotas_seen = quotas.synced
        slices.on_change(self._slice_changed)
        classes.on_change(self._class_changed)
        namespaces.on_change(self._namespace_changed)
        quotas.on_change(self._quota_changed)
        limit_ranges.on_change(self._limit_range_changed)

    @property
    def version(self) -> int:
        """Increases when an answer changes that is not about a namespace or template."""
        return self._pod_version + sum(cache.synced.is_set() for cache in self._supplies)

    def kubernetes_version(self) -> str:
        """The version that `set_kubernetes_version` was told last; empty before."""
        return self._kubernetes

    def set_kubernetes_version(self, version: str) -> None:
        """Tell the version of the control plane."""
        if version != self._kubernetes:
            self._kubernetes = version
            self._pod_version += 1

    def observations(self) -> Mapping[str, Observation]:
        """Instance types that this process has seen, by name; the same mapping until `version` changes."""
        return self._observations

    def extended_resources(self) -> Mapping[str, str]:
        """Extended resource -> DeviceClass that serves it; the same mapping until `version` changes."""
        return self._extended_resources

    def class_names(self) -> frozenset[str]:
        """Names of all DeviceClasses."""
        return self._class_names

    def supply(self) -> Supply:
        """Nodes that exist now without a pool, and the pools of autoscalers; the same object until they change."""
        problem = self._unlisted() or self._supply.supply.problem
        found = structs.replace(self._supply.supply, problem=problem)
        if found != self._told:
            self._told = found
        return self._told

    def namespace(self, name: str) -> NamespaceFacts:
        """Facts of a namespace; the same Python object until they change."""
        return self._namespaces.get(name, NO_FACTS)

    def namespace_labels(self, name: str) -> Mapping[str, str] | None:
        """Labels of a namespace; None if it is unknown."""
        return self._labels.get(name)

    def namespace_object(self, name: str) -> Mapping[str, Any] | None:
        """A Namespace as policies see it; None if it is unknown, or too large to be kept."""
        whole = self._wholes.get(name)
        return None if whole is None else msgspec.json.decode(whole, type=dict[str, Any])

    def quotas(self, name: str) -> Mapping[str, int] | None:
        """Devices that the ResourceQuotas of a namespace allow, by resource; None before the first list."""
        return self._quotas.of(name) if self._quotas_seen.is_set() else None

    def template_device_classes(self, namespace: str, name: str) -> frozenset[str]:
        """DeviceClasses that a ResourceClaimTemplate requests; empty if it is unknown."""
        facts = self.templates.get(namespace, name)
        return facts.device_classes if facts else frozenset()

    def template_ultraserver_mode(self, namespace: str, name: str) -> int | None:
        """`ultraserverMode` of a ResourceClaimTemplate's UltraServerConfig, or None."""
        facts = self.templates.get(namespace, name)
        return facts.ultraserver_mode if facts else None

    def _slice_changed(self, key: Key, before: SliceFacts | None, after: SliceFacts | None) -> None:
        self.slice_changed(before.shapes if before else None, after.shapes if after else None)
        if before is not None:
            pool = self._pools[before.pool]
            del pool[key]
            if not pool:
                del self._pools[before.pool]
        seen = self._observations
        if after is not None:
            self._pools[after.pool][key] = after
            seen = with_pool(seen, self._pools[after.pool].values())
        types = self._traits.replace(before.traits if before else (), after.traits if after else ())
        self._learn(self._traits.observed(seen, types))

    def _supply_of(self, server: ApiServer, resource: Resource, timing: Timing | None) -> Reflector[Described]:
        """A cache of objects that describe pools. Without their CustomResourceDefinition it is empty."""
        kind = supplies.RESOURCES[resource]
        cache: Reflector[Described] = Reflector(
            server,
            Collection(resource),
            Projection(supplies.project(kind)),
            timing=timing,
            needed=False,
            installed=False,
            older=Collection(supplies.OLDER[resource]) if resource in supplies.OLDER else None,
        )

        def changed(key: Key, _: Described | None, after: Described | None) -> None:
            self._pod_version += self._supply.keep(kind, *key, after)

        cache.on_change(changed)
        return cache

    def _unlisted(self) -> str:
        """Why pools or Nodes are not known, as a clause; empty if all were listed."""
        missing = [cache for cache in self._supplies if not cache.synced.is_set()]
        return next((cache.problem for cache in missing if cache.problem), "") or "".join(
            f"the list of {cache.resource} is not complete yet" for cache in missing[:1]
        )

    def _node_changed(self, key: Key, before: NodeKind | None, after: NodeKind | None) -> None:  # noqa: ARG002 - of all callbacks
        self._pod_version += self._supply.node_changed(before, after)
        if after is not None:
            self._learn(with_node(self._observations, after))

    def static_types(self) -> Mapping[str, tuple[str, ...]]:
        """Instance types of nodes that no pool made, which this process has seen or was told, with their labels."""
        return {name: each.labels for name, each in sorted(self._observations.items()) if not each.pooled}

    def learn_types(self, types: Mapping[str, Sequence[str]]) -> None:
        """Take in the `static_types` of another replica, so that all replicas know the same types."""
        self._learn(with_types(self._observations, types))

    def _learn(self, seen: Mapping[str, Observation]) -> None:
        if seen != self._observations:
            self._observations = MappingProxyType(dict(seen))
            self._pod_version += 1
            self.on_types()

    def _class_changed(self, key: Key, before: ClassFacts | None, after: ClassFacts | None) -> None:
        name = key[1]
        known = self._class_names
        self._class_names = known - {name} if after is None else known | {name}
        self.class_changed(name, after.spec if after else None)
        touched = {facts.extended_resource for facts in (before, after) if facts and facts.extended_resource}
        if before is not None and before.extended_resource:
            del self._servants[before.extended_resource][name]
        if after is not None and after.extended_resource:
            self._servants[after.extended_resource][name] = after.created
        serving = dict(self._extended_resources)
        for resource in touched:
            servants = self._servants[resource]
            if servants:
                serving[resource] = _servant(servants)
            else:
                del self._servants[resource]
                serving.pop(resource, None)
        if serving != self._extended_resources or self._class_names != known:
            self._extended_resources = MappingProxyType(serving)
            self._pod_version += 1

    def _namespace_changed(self, key: Key, _: Any, after: "NamespaceRecord | None") -> None:
        if after is None:
            self._labels.pop(key[1], None)
        else:
            self._labels[key[1]] = after.labels
        if after is None or after.whole is None:
            self._wholes.pop(key[1], None)
        else:
            self._wholes[key[1]] = after.whole
        annotations, unread = (after.annotations, after.unread) if after else ((), ())
        self._keep(key[1], structs.replace(self.namespace(key[1]), annotations=annotations, unread=unread))

    def _quota_changed(self, key: Key, _: QuotaFacts | None, after: QuotaFacts | None) -> None:
        self._quotas.keep(key[0], key[1], after)
        self._keep(key[0], structs.replace(self.namespace(key[0]), quotas=self._quotas.legacy(key[0])))

    def _limit_range_changed(self, key: Key, _: bool | None, after: bool | None) -> None:
        facts = self.namespace(key[0])
        named = _with(facts.limit_ranges, key[1], present=bool(after))
        self._keep(key[0], structs.replace(facts, limit_ranges=named))

    def _keep(self, namespace: str, facts: NamespaceFacts) -> None:
        if facts == NO_FACTS:
            self._namespaces.pop(namespace, None)
        else:
            self._namespaces[namespace] = facts


def _servant(servants: Mapping[str, str]) -> str:
    """The class that serves an extended resource: the newest one, then the first by name (KEP-5004)."""
    newest = max(servants.values())
    return min(name for name, created in servants.items() if created == newest)


def _with(members: tuple[str, ...], member: str, *, present: bool) -> tuple[str, ...]:
    others = {name for name in members if name != member}
    return tuple(sorted(others | {member} if present else others))


# --- what is kept of an object ----------------------------------------------------------------------------


def project_class(item: Mapping[str, Any]) -> ClassFacts:
    """Facts of a DeviceClass (`resource.k8s.io/v1`)."""
    spec = item["spec"]
    created = item["metadata"].get("creationTimestamp") or ""
    return ClassFacts(spec.get("extendedResourceName") or "", created, read_class(_API_VERSION, spec)[0])


@dataclasses.dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """What is kept of a Namespace.

    Attributes:
        annotations: those under `neuron.aws.com/`, sorted.
        whole: all that policies can read, as JSON; None: too large.
        unread: as `NamespaceFacts.unread`.
    """

    annotations: tuple[tuple[str, str], ...]
    labels: Mapping[str, str]
    whole: bytes | None = None
    unread: tuple[tuple[str, str], ...] = ()


def _whole_weight(record: NamespaceRecord) -> int:
    return len(record.whole or b"")


def _without_whole(record: NamespaceRecord) -> NamespaceRecord:
    return dataclasses.replace(record, whole=None)


_NAMESPACE_BOUNDS: Final = Bounds(_NAMESPACE_BYTES, _NAMESPACE_BYTES, _whole_weight, _without_whole)


def project_namespace_labels(item: Mapping[str, Any]) -> NamespaceRecord:
    """`neuron.aws.com/` annotations of a Namespace, its labels (at most 1,024), and all that policies can read."""
    labels = item["metadata"].get("labels") or {}
    whole: bytes | None = msgspec.json.encode(namespace_value(item))
    if whole is not None and len(whole) > LONGEST_NAMESPACE:
        whole = None
    kept = dict(itertools.islice(labels.items(), _MOST_LABELS))
    return NamespaceRecord(project_namespace(item) or (), kept, whole, unread_keys(item["metadata"]))


def project_namespace(item: Mapping[str, Any]) -> tuple[tuple[str, str], ...] | None:
    """`neuron.aws.com/` annotations of a Namespace, sorted; None if it has none.

    A Namespace in a file may have values that are no text, which the API server would refuse: they are left out.
    """
    annotations = item["metadata"].get("annotations") or {}
    ours = sorted(
        (key, value[:_LONGEST_VALUE])
        for key, value in annotations.items()
        if key.startswith(_OUR_ANNOTATIONS) and isinstance(value, str)
    )
    return tuple(ours[:_MOST_ANNOTATIONS]) or None


def project_limit_range(item: Mapping[str, Any]) -> bool | None:
    """True if a LimitRange denies pods without a legacy resource, else None."""
    for limit in item["spec"].get("limits") or ():
        if limit.get("type") in _LIMITED_TYPES:
            bounded = {name for field in _LIMITS for name in limit.get(field) or ()}
            if not bounded.isdisjoint(names.LEGACY_RESOURCES):
                return True
    return None


def project_template(item: Mapping[str, Any]) -> TemplateFacts:
    """Facts of a ResourceClaimTemplate (`resource.k8s.io/v1`)."""
    metadata, spec = item["metadata"], item["spec"]
    devices = (spec.get("spec") or {}).get("devices") or {}
    facts = TemplateFacts(
        templates.digest(spec) if _is_compared(metadata) else "",
        (metadata.get("labels") or {}).get(names.LABEL_MANAGED_BY) == names.MANAGER,
        frozenset(_device_classes(devices.get("requests") or ())),
        _ultraserver_mode(devices.get("config") or ()),
        read_claim("ResourceClaimTemplate", _API_VERSION, spec)[0],
        ((metadata.get("annotations") or {}).get(names.ANNOTATION_PRUNE_AFTER) or "")[:_LONGEST_VALUE],
    )
    return _SHARED.of(facts)


def _is_compared(metadata: Mapping[str, Any]) -> bool:
    """Whether a template can be one that the webhook made. No other one is compared with a demand by its hash."""
    annotated = names.ANNOTATION_TEMPLATE_DIGEST in (metadata.get("annotations") or {})
    return annotated or metadata["name"].startswith(names.TEMPLATE_PREFIX)


def _device_classes(requests: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for request in requests:
        for part in (request.get("exactly") or {}, *(request.get("firstAvailable") or ())):
            if part.get("deviceClassName"):
                yield part["deviceClassName"]


def _ultraserver_mode(entries: Iterable[Mapping[str, Any]]) -> int | None:
    for entry in entries:
        opaque = entry.get("opaque") or {}
        if opaque.get("driver") == names.DRIVER:
            config = configs.decode_object(opaque.get("parameters")).config
            if isinstance(config, configs.UltraServerConfig):
                return config.ultraserver_mode
    return None
