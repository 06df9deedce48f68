"""DeviceClasses: what they select, and which of them serves an extended resource (KEP-5004)."""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from neuron.api.claim_reader import read_class
from neuron.api.claim_specs import ClassSpec
from runtime.api_server import RESOURCE_GROUP

_API_VERSION: Final = f"{RESOURCE_GROUP}/v1"


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


UNREADABLE_CLASS: Final = ClassFacts("", "", ClassSpec())
"""A DeviceClass that cannot be read. It may select every device."""


def project_class(item: Mapping[str, Any]) -> ClassFacts:
    """Facts of a DeviceClass; `apiVersion` is the stored version, if the object has none, as in a list."""
    spec = item["spec"]
    created = item["metadata"].get("creationTimestamp") or ""
    version = str(item.get("apiVersion") or _API_VERSION)
    return ClassFacts(spec.get("extendedResourceName") or "", str(created), read_class(version, spec)[0])


class DeviceClasses:
    """All classes of one source.

    Attributes:
        specs: by name. A new mapping when one changes.
        extended_resources: `extendedResourceName` -> name of the class that serves it. A new mapping when one changes.
    """

    def __init__(self) -> None:
        self.specs: Mapping[str, ClassSpec] = MappingProxyType({})
        self.extended_resources: Mapping[str, str] = MappingProxyType({})
        self._servants: defaultdict[str, dict[str, str]] = defaultdict(dict)

    def change(self, name: str, before: ClassFacts | None, after: ClassFacts | None) -> tuple[bool, bool]:
        """Take in a change. Returns whether a spec changed, and whether names or extended resources did."""
        known, spec = self.specs, after.spec if after else None
        changed = known.get(name) != spec
        if changed:
            specs = {other: each for other, each in known.items() if other != name}
            self.specs = MappingProxyType(specs if spec is None else {**specs, name: spec})
        touched = {facts.extended_resource for facts in (before, after) if facts and facts.extended_resource}
        if before is not None and before.extended_resource:
            del self._servants[before.extended_resource][name]
        if after is not None and after.extended_resource:
            self._servants[after.extended_resource][name] = after.created
        serving = dict(self.extended_resources)
        for resource in touched:
            servants = self._servants[resource]
            if servants:
                serving[resource] = _servant(servants)
            else:
                del self._servants[resource]
                serving.pop(resource, None)
        served = serving != self.extended_resources
        if served:
            self.extended_resources = MappingProxyType(serving)
        return changed, served or (name in known) != (name in self.specs)


def _servant(servants: Mapping[str, str]) -> str:
    """The class that serves an extended resource: the newest one, then the first by name (KEP-5004)."""
    newest = max(servants.values())
    return min(name for name, created in servants.items() if created == newest)
