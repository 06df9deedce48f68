"""A Namespace as policies see it: `namespaceObject`. Pure.

Source: k8s.io/apiserver/pkg/admission/plugin/cel, CreateNamespaceObject.
"""

from collections.abc import Mapping
from typing import Any, Final

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
