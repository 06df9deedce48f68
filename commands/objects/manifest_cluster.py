"""A view of a cluster that contains exactly the objects of manifests."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import structs

from commands.objects.manifests import Manifest
from neuron.api.claim_specs import ClaimSpec, ClassSpec
from neuron.api.namespaces import namespace_named, namespace_value
from neuron.api.node_pools import KINDS
from neuron.demand import templates
from neuron.demand.pools import Supply
from neuron.hardware.device_shapes import DeviceShape
from neuron.hardware.instances import Observation
from runtime.api_server import RESOURCE_GROUP
from webhook.cluster import caches as cluster
from webhook.cluster import supplies
from webhook.cluster.caches import TemplateFacts
from webhook.cluster.quotas import NamespaceQuotas, project_quota
from webhook.cluster.supplies import SupplyIndex
from webhook.decisions.ports import NO_FACTS, NamespaceFacts

_T = TypeVar("_T")


class ManifestCluster:
    """A `ClusterView` of the objects in manifests."""

    def __init__(self, manifests: Iterable[Manifest] = ()) -> None:
        self._namespaces: defaultdict[str, NamespaceFacts] = defaultdict(lambda: NO_FACTS)
        self._labels: dict[str, Mapping[str, str]] = {}
        self._wholes: dict[str, Mapping[str, object]] = {}
        self._quotas = NamespaceQuotas()
        self._with_quotas: set[str] = set()
        self._extended_resources: dict[str, str] = {}
        self._classes: dict[str, ClassSpec] = {}
        self._templates: dict[tuple[str, str], TemplateFacts] = {}
        self._supply = SupplyIndex()
        for manifest in manifests:
            self.take(manifest)

    def take(self, manifest: Manifest) -> None:
        """Read an object that concerns conversion; others, and unreadable ones, are ignored."""
        data, key = manifest.data, (manifest.namespace, manifest.name)
        match manifest.group, manifest.kind:
            case "", "Namespace" if manifest.name:
                record = _read(cluster.project_namespace_labels, data)
                if record:
                    self._say(manifest.name, annotations=record.annotations, unread=record.unread)
                    self._labels[manifest.name] = record.labels
                    self._wholes[manifest.name] = namespace_value(data)
            case "", "ResourceQuota":
                self._take_quota(manifest)
            case "", "LimitRange" if _read(cluster.project_limit_range, data):
                limit_ranges = {*self._namespaces[key[0]].limit_ranges, key[1]}
                self._say(key[0], limit_ranges=tuple(sorted(limit_ranges)))
            case pool if pool in KINDS:
                self._supply.keep(manifest.kind, *key, supplies.project(manifest.kind)(data))
            case group, "DeviceClass" if group == RESOURCE_GROUP:
                facts = _read(cluster.project_class, data)
                if facts:
                    self._classes[manifest.name] = facts.spec
                if facts and facts.extended_resource:
                    self._extended_resources[facts.extended_resource] = manifest.name
            case group, "ResourceClaimTemplate" if group == RESOURCE_GROUP:
                template = _read(_with_digest, data)
                if template:
                    self._templates[key] = template

    def _take_quota(self, manifest: Manifest) -> None:
        namespace = manifest.namespace
        # If the files contain a quota of a namespace, they are assumed to contain all of them.
        self._with_quotas.add(namespace)
        self._quotas.keep(namespace, manifest.name, _read(project_quota, manifest.data))
        self._say(namespace, quotas=self._quotas.legacy(namespace))

    def _say(self, namespace: str, **facts: object) -> None:
        self._namespaces[namespace] = structs.replace(self._namespaces[namespace], **facts)

    @property
    def version(self) -> int:
        """Constant: manifests do not change."""
        return 0

    def kubernetes_version(self) -> str:
        """Unknown."""
        return ""

    def observations(self) -> Mapping[str, Observation]:
        """Manifests publish no devices."""
        return {}

    def extended_resources(self) -> Mapping[str, str]:
        """`extendedResourceName` -> the DeviceClass among the manifests that serves it."""
        return self._extended_resources

    def supply(self) -> Supply:
        """Pools among the manifests; they have no nodes."""
        return self._supply.supply

    def class_names(self) -> frozenset[str] | None:
        """Unknown: the cluster may have other DeviceClasses than the manifests."""
        return None

    def namespace(self, name: str) -> NamespaceFacts:
        return self._namespaces.get(name, NO_FACTS)

    def namespace_labels(self, name: str) -> Mapping[str, str] | None:
        return self._labels.get(name)

    def namespace_object(self, name: str) -> Mapping[str, object] | None:
        """As in the files, with the label that the API server adds; a Namespace that they do not have has only that."""
        known = namespace_value(self._wholes.get(name, {}))
        metadata = namespace_named(name)["metadata"]
        written = known["metadata"].get("labels")
        labels = {**metadata["labels"], **(written if isinstance(written, dict) else {})}
        return {**known, "metadata": {**known["metadata"], **metadata, "labels": labels}}

    def quotas(self, name: str) -> Mapping[str, int] | None:
        """Limits of the ResourceQuotas in the manifests; None if the namespace has none."""
        return self._quotas.of(name) if name in self._with_quotas else None

    def template_device_classes(self, namespace: str, name: str) -> frozenset[str]:
        """DeviceClasses that a template among the manifests requests."""
        facts = self._templates.get((namespace, name))
        return facts.device_classes if facts else frozenset()

    def template_ultraserver_mode(self, namespace: str, name: str) -> int | None:
        """`ultraserverMode` of a template among the manifests."""
        facts = self._templates.get((namespace, name))
        return facts.ultraserver_mode if facts else None

    @property
    def claim_version(self) -> int:
        """Constant: manifests do not change."""
        return 0

    def device_shapes(self) -> Sequence[DeviceShape]:
        """Manifests publish no devices."""
        return ()

    def device_classes(self) -> Mapping[str, ClassSpec]:
        """DeviceClasses among the manifests."""
        return self._classes

    def claim_template(self, namespace: str, name: str) -> ClaimSpec | None:
        """Requests of a template in the manifests."""
        facts = self._templates.get((namespace, name))
        return facts.spec if facts else None

    def template_digest(self, namespace: str, name: str) -> str | None:
        facts = self._templates.get((namespace, name))
        return facts.digest if facts else None


def _with_digest(data: Mapping[str, Any]) -> TemplateFacts:
    """The facts of a template with its hash, whatever its name: a policy may carry a template of any name."""
    return structs.replace(cluster.project_template(data), digest=templates.digest(data["spec"]))


def _read(project: Callable[[Mapping[str, object]], _T], data: dict[str, object]) -> _T | None:
    """The projection of an object; None if the object is malformed."""
    try:
        return project(data)
    except (KeyError, TypeError, AttributeError, ValueError):
        return None
