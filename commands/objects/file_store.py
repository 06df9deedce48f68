"""A store of the objects in files."""

from collections.abc import Iterable
from typing import Final

from cluster import from_files
from cluster.store import Store
from commands.objects.manifests import Manifest
from neuron.api.claim_specs import GROUP

_CLAIM_KINDS: Final = ("ResourceClaim", "ResourceClaimTemplate")


class FileStore(Store):
    """A store that also knows how claims and templates are written: they are enriched when they are applied."""

    def __init__(self, found: Iterable[Manifest] = (), below: Store | None = None) -> None:
        """Take objects; of two with one name, the later one counts."""
        super().__init__(below)
        self._written: dict[tuple[str, str, str], Manifest] = {}
        for manifest in found:
            self.take(manifest)

    def take(self, manifest: Manifest) -> None:
        """Read what an object means for others."""
        from_files.take(self, manifest.group, manifest.kind, manifest.namespace, manifest.name, manifest.data)
        if manifest.group == GROUP and manifest.kind in _CLAIM_KINDS:
            self._written[manifest.kind, manifest.namespace, manifest.name] = manifest

    def written(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """The manifest of a claim or template."""
        return self._written.get((kind, namespace, name))
