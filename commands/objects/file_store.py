"""A store of the objects in files."""

from collections.abc import Iterable, Mapping
from typing import Final

from cluster import from_files
from cluster.store import Store
from commands.objects import vertical_autoscalers
from commands.objects.manifests import Manifest
from neuron.api.claim_specs import GROUP
from neuron.api.fields import mapping, text

_CLAIM_KINDS: Final = ("ResourceClaim", "ResourceClaimTemplate")


class FileStore(Store):
    """A store that also knows how claims and templates are written: they are enriched when they are applied.

    Attributes:
        resized: the VerticalPodAutoscalers that resize pods in place, by namespace, kind and name of the workload.
    """

    def __init__(self, found: Iterable[Manifest] = (), below: Store | None = None) -> None:
        """Take objects; of two with one name, the later one counts."""
        super().__init__(below)
        self._written: dict[tuple[str, str, str], Manifest] = {}
        self.resized: dict[tuple[str, str, str], str] = {}
        for manifest in found:
            self.take(manifest)

    def take(self, manifest: Manifest) -> None:
        """Read what an object means for others."""
        from_files.take(self, manifest.group, manifest.kind, manifest.namespace, manifest.name, manifest.data)
        if manifest.group == GROUP and manifest.kind in _CLAIM_KINDS:
            self._written[manifest.kind, manifest.namespace, manifest.name] = manifest
        if (manifest.group, manifest.kind) == vertical_autoscalers.KIND:
            self.take_autoscaler(manifest.namespace, manifest.data)

    def take_autoscaler(self, namespace: str, data: Mapping[str, object]) -> None:
        """Read a VerticalPodAutoscaler of the files or of the cluster."""
        target = vertical_autoscalers.resized_in_place(data)
        if target is not None:
            self.resized[namespace, *target] = text(mapping(data.get("metadata")).get("name"))

    def take_autoscalers(self, found: Iterable[Mapping[str, object]]) -> None:
        """Read the VerticalPodAutoscalers of a cluster."""
        for each in found:
            self.take_autoscaler(text(mapping(each.get("metadata")).get("namespace")), each)

    def written(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """The manifest of a claim or template."""
        return self._written.get((kind, namespace, name))
