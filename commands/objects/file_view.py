"""A view of a cluster that contains the objects of manifests, and of a cluster everything else."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from commands.objects import vertical_autoscalers
from commands.objects.manifest_cluster import ManifestCluster
from commands.objects.manifests import Manifest
from neuron.api import pod_groups, ultraservers
from neuron.api.claim_reader import read_claim, read_class
from neuron.api.claim_specs import GROUP, ClaimSpec, ClassSpec
from neuron.api.fields import mapping, text
from neuron.demand.pools import Supply
from webhook.decisions.ports import NO_FACTS, NamespaceFacts, ServerView

_CLAIM_KINDS: Final = ("ResourceClaim", "ResourceClaimTemplate")


class FileView:
    """A `ServerView` of the files, and of a cluster for everything that is not in the files."""

    def __init__(self, found: Iterable[Manifest] = (), live: ServerView | None = None) -> None:
        """Prepare; `take` adds more objects, and `join` the cluster."""
        self._files = ManifestCluster()
        self._live = live
        self._claims: dict[tuple[str, str, str], ClaimSpec] = {}
        self._written: dict[tuple[str, str, str], Manifest] = {}
        self._classes: dict[str, ClassSpec] = {}
        self._to_come: set[tuple[str, str]] = set()
        self._resized: dict[tuple[str, str, str], str] = {}
        self._groups: dict[tuple[str, str], Sequence[pod_groups.GroupClaim]] = {}
        for manifest in found:
            self.take(manifest)

    def take(self, manifest: Manifest) -> None:
        """Read what an object in the files means for others."""
        self._files.take(manifest)
        if (manifest.group, manifest.kind) == (pod_groups.GROUP, pod_groups.POD_GROUP):
            (claims,) = pod_groups.claim_lists(manifest.kind, manifest.data)
            self._groups[manifest.namespace, manifest.name] = claims
        if (manifest.group, manifest.kind) == (ultraservers.GROUP, ultraservers.WORKLOAD):
            self._to_come.add((manifest.namespace, ultraservers.template_of(manifest.data)))
        if (manifest.group, manifest.kind) == vertical_autoscalers.KIND:
            self.take_autoscaler(manifest.namespace, manifest.data)
        if manifest.group != GROUP:
            return
        version, spec = str(manifest.data.get("apiVersion")), manifest.data.get("spec")
        if manifest.kind in _CLAIM_KINDS:
            key = manifest.kind, manifest.namespace, manifest.name
            self._claims[key] = read_claim(manifest.kind, version, spec)[0]
            self._written[key] = manifest
        elif manifest.kind == "DeviceClass":
            self._classes[manifest.name] = read_class(version, spec)[0]

    def take_autoscaler(self, namespace: str, data: Mapping[str, object]) -> None:
        """Read a VerticalPodAutoscaler of the files or of the cluster."""
        target = vertical_autoscalers.resized_in_place(data)
        if target is not None:
            self._resized[namespace, *target] = text(mapping(data.get("metadata")).get("name"))

    def take_autoscalers(self, found: Iterable[Mapping[str, object]]) -> None:
        """Read the VerticalPodAutoscalers of a cluster."""
        for each in found:
            self.take_autoscaler(text(mapping(each.get("metadata")).get("namespace")), each)

    def join(self, live: ServerView | None) -> None:
        """Complete the files by a cluster."""
        self._live = live

    @property
    def is_live(self) -> bool:
        """Whether there is a cluster."""
        return self._live is not None

    @property
    def version(self) -> int:
        """Files do not change."""
        return 0

    @property
    def claim_version(self) -> int:
        """Files do not change."""
        return 0

    def kubernetes_version(self) -> str:
        """That of the cluster; without one, unknown."""
        return self._live.kubernetes_version() if self._live else ""

    def observations(self) -> Mapping[str, Any]:
        """Only a cluster has nodes."""
        return self._live.observations() if self._live else {}

    def extended_resources(self) -> Mapping[str, str]:
        return {**(self._live.extended_resources() if self._live else {}), **self._files.extended_resources()}

    def supply(self) -> Supply:
        """The pools of files and cluster; of two with one name, the file's will be applied."""
        files = self._files.supply()
        return files if self._live is None else files.over(self._live.supply())

    def class_names(self) -> frozenset[str] | None:
        """Names of `device_classes`."""
        known = self.device_classes()
        return None if known is None else frozenset(known)

    def namespace(self, name: str) -> NamespaceFacts:
        """The file's Namespace, if there is one."""
        facts = self._files.namespace(name)
        return self._live.namespace(name) if facts == NO_FACTS and self._live else facts

    def namespace_labels(self, name: str) -> Mapping[str, str] | None:
        """The file's Namespace, if there is one."""
        labels = self._files.namespace_labels(name)
        return self._live.namespace_labels(name) if labels is None and self._live else labels

    def namespace_object(self, name: str) -> Mapping[str, object] | None:
        """The file's Namespace, if there is one."""
        live = self._live if self._files.namespace_labels(name) is None else None
        return (live or self._files).namespace_object(name)

    def quotas(self, name: str) -> Mapping[str, int] | None:
        """The smaller limits of both, because quotas in the files will be applied."""
        found, live = self._files.quotas(name), self._live.quotas(name) if self._live else None
        if found is None or live is None:
            return live if found is None else found
        return {key: min(found.get(key, amount), amount) for key, amount in {**found, **live}.items()}

    def template_device_classes(self, namespace: str, name: str) -> frozenset[str]:
        found = self._files.template_device_classes(namespace, name)
        return found or (self._live.template_device_classes(namespace, name) if self._live else frozenset())

    def template_ultraserver_mode(self, namespace: str, name: str) -> int | None:
        found = self._files.template_ultraserver_mode(namespace, name)
        return self._live.template_ultraserver_mode(namespace, name) if found is None and self._live else found

    def template_digest(self, namespace: str, name: str) -> str | None:
        """The hash of the spec of a template in the files."""
        return self._files.template_digest(namespace, name)

    def device_shapes(self) -> Sequence[Any]:
        """Only a cluster has slices."""
        return self._live.device_shapes() if self._live else ()

    def device_classes(self) -> Mapping[str, ClassSpec] | None:
        """The classes of files and cluster; None without a cluster, because other classes are unknown."""
        known = self._live.device_classes() if self._live else None
        return None if known is None else {**known, **self._classes}

    def file_classes(self) -> Mapping[str, ClassSpec]:
        """DeviceClasses in the files."""
        return self._classes

    def group_claims(self, namespace: str, pod: Mapping[str, object]) -> Sequence[pod_groups.GroupClaim]:
        """The claims of the PodGroup of a pod or pod template; empty if the files have none."""
        return self._groups.get((namespace, pod_groups.group_of(pod)), ()) if self._groups else ()

    @property
    def resizes(self) -> bool:
        """Whether a VerticalPodAutoscaler that is known resizes pods in place."""
        return bool(self._resized)

    def resized_by(self, namespace: str, kind: str, name: str) -> str:
        """The VerticalPodAutoscaler that resizes the pods of a workload in place; empty if the files have none."""
        return self._resized.get((namespace, kind, name), "")

    def claim(self, kind: str, namespace: str, name: str) -> ClaimSpec | None:
        """A claim or template in the files."""
        return self._claims.get((kind, namespace, name))

    def written(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """The manifest of a claim or template in the files."""
        return self._written.get((kind, namespace, name))

    def claim_template(self, namespace: str, name: str) -> ClaimSpec | None:
        found = self.claim("ResourceClaimTemplate", namespace, name)
        return self._live.claim_template(namespace, name) if found is None and self._live else found

    async def exist(self, kind: str, namespace: str, names: Iterable[str]) -> Mapping[str, bool | None]:
        """Which objects exist, or will be made by AWS's UltraServer operator; None if there is no cluster."""
        to_come = self._to_come if kind == "ResourceClaimTemplate" else ()
        found: dict[str, bool | None] = {
            name: True if self.claim(kind, namespace, name) is not None or (namespace, name) in to_come else None
            for name in names
        }
        unknown = [name for name, exists in found.items() if exists is None]
        if self._live and unknown:
            found |= await self._live.exist(kind, namespace, unknown)
        return found
