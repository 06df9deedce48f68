"""Metadata of objects: names, labels, annotations, owners; and a Namespace as policies see it.

Source of `namespaceObject`: k8s.io/apiserver/pkg/admission/plugin/cel, CreateNamespaceObject.
"""

from collections.abc import Mapping
from typing import Any, Final

from neuron.api.fields import Fields


class OwnerReference(Fields, frozen=True):
    """`metav1.OwnerReference`."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class ObjectMeta(Fields, frozen=True):
    """`metav1.ObjectMeta`. Fields that are absent are empty, or None where null and absent differ from empty."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that controls the object; None without one."""
        return next((each for each in self.owner_references or () if each.controller), None)


_METADATA: Final = (
    *("name", "generateName", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp"),
    *("deletionTimestamp", "deletionGracePeriodSeconds", "labels", "annotations", "finalizers"),
)


def namespace_value(data: Mapping[str, object]) -> dict[str, Any]:
    """The fields of a Namespace that policies see; `data` is the object, whole or in part."""
    metadata = data.get("metadata")
    kept = metadata if isinstance(metadata, dict) else {}
    made: dict[str, object] = {"metadata": {field: kept[field] for field in _METADATA if kept.get(field) is not None}}
    return made | {field: data[field] for field in ("spec", "status") if isinstance(data.get(field), dict)}


def namespace_named(name: str) -> dict[str, Any]:
    """One of which only the name is known, with the label that every Namespace has."""
    return {"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}}}
