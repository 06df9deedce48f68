"""Namespaces: our annotations, labels, and all that policies can read of them."""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from checks.words import unread_keys
from cluster.bounded_objects import KEPT, Bounds
from neuron import names
from neuron.api.fields import namespace_value

_OUR_ANNOTATIONS: Final = f"{names.DRIVER}/"


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


BOUNDS: Final = Bounds(KEPT.namespaces, KEPT.namespaces, _whole_weight, _without_whole)


def project_namespace_record(item: Mapping[str, Any]) -> NamespaceRecord:
    """`neuron.aws.com/` annotations of a Namespace, its labels, and all that policies can read."""
    labels = item["metadata"].get("labels") or {}
    whole: bytes | None = msgspec.json.encode(namespace_value(item))
    if whole is not None and len(whole) > KEPT.namespace:
        whole = None
    kept = dict(itertools.islice(labels.items(), KEPT.labels))
    return NamespaceRecord(project_namespace(item) or (), kept, whole, unread_keys(item["metadata"]))


def project_namespace(item: Mapping[str, Any]) -> tuple[tuple[str, str], ...] | None:
    """`neuron.aws.com/` annotations of a Namespace, sorted; None if it has none.

    A Namespace in a file may have values that are no text, which the API server would refuse: they are left out.
    """
    annotations = item["metadata"].get("annotations") or {}
    ours = sorted(
        (key, value[: KEPT.value])
        for key, value in annotations.items()
        if key.startswith(_OUR_ANNOTATIONS) and isinstance(value, str)
    )
    return tuple(ours[: KEPT.annotations]) or None
