"""Namespaces: our annotations, labels, and all that policies can read of them."""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from checks.words import unread_keys
from cluster.bounded_objects import Bounds
from neuron import names
from neuron.api.fields import namespace_value

_OUR_ANNOTATIONS: Final = f"{names.DRIVER}/"
LONGEST_NAMESPACE: Final = 16 * 1024
"""Bytes of all fields of a Namespace that policies can read. Of a longer one, labels and our annotations are kept."""
_NAMESPACE_BYTES: Final = 32 * 1024 * 1024
"""Memory for all Namespaces; without the fields of which only policies read, it is enough for 65,536."""
_MOST_ANNOTATIONS: Final = 64
_MOST_LABELS: Final = 1024
_LONGEST_VALUE: Final = 256
"""Characters of an annotation. No valid value is longer, and a shortened one stays invalid."""


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


BOUNDS: Final = Bounds(_NAMESPACE_BYTES, _NAMESPACE_BYTES, _whole_weight, _without_whole)


def project_namespace_record(item: Mapping[str, Any]) -> NamespaceRecord:
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
