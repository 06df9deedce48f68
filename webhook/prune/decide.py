"""Which generated templates may go. Pure: time is given."""

import dataclasses
import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, TypeAlias

from neuron import names, templates

Key: TypeAlias = tuple[str, str]
"""Namespace and name."""

CLOCK_TOLERANCE: Final = dt.timedelta(minutes=5)
"""How far the clocks of two machines that prune may be apart."""


@dataclasses.dataclass(frozen=True, slots=True)
class Generated:
    """A ResourceClaimTemplate that the webhook made and no other client changed.

    Attributes:
        namespace: where it is.
        name: `templates.Template.name`.
        uid: `metadata.uid`.
        version: `metadata.resourceVersion`.
        created: `metadata.creationTimestamp`.
        mark: its annotation `names.ANNOTATION_PRUNE_AFTER`; empty where it has none.
        labels: all of them.
        spec: as it is stored.
    """

    namespace: str
    name: str
    uid: str
    version: str
    created: dt.datetime
    mark: str
    labels: Mapping[str, str]
    spec: Mapping[str, Any]

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.namespace, self.name

    def manifest(self) -> dict[str, Any]:
        """The object to create, should it have to come back."""
        metadata = {"name": self.name, "namespace": self.namespace, "labels": dict(self.labels)}
        return {"apiVersion": templates.API_VERSION, "kind": templates.KIND, "metadata": metadata, "spec": self.spec}


def read_generated(item: Mapping[str, Any]) -> Generated | None:
    """A ResourceClaimTemplate (`resource.k8s.io/v1`) if it is one of ours to remove; None for every other.

    Ours are labelled so, have the name that their spec gives them, and have been written by the webhook alone, as
    `metadata.managedFields` says: `neuron-dra convert` prints the same objects, and those that people apply are theirs.
    """
    metadata, spec = item["metadata"], item["spec"]
    labels = metadata.get("labels") or {}
    if labels.get(names.LABEL_MANAGED_BY) != names.MANAGER or not templates.names_itself(metadata["name"], spec):
        return None
    managers = {entry.get("manager") for entry in metadata.get("managedFields") or ()}
    if managers != {names.MANAGER} or metadata.get("ownerReferences") or metadata.get("deletionTimestamp"):
        return None
    created = _time(metadata.get("creationTimestamp"))
    if created is None:
        return None
    return Generated(
        metadata["namespace"],
        metadata["name"],
        metadata["uid"],
        metadata["resourceVersion"],
        created,
        (metadata.get("annotations") or {}).get(names.ANNOTATION_PRUNE_AFTER) or "",
        labels,
        spec,
    )


def candidates(
    generated: Iterable[Generated], referred: Collection[Key], now: dt.datetime, older_than: dt.timedelta
) -> tuple[Generated, ...]:
    """Templates that no pod refers to and that are older, by namespace and name.

    Args:
        generated: ours.
        referred: templates that pods refer to.
        now: an aware time.
        older_than: the age at which an unused template may go.
    """
    found = [each for each in generated if each.key not in referred and now - each.created > older_than]
    return tuple(sorted(found, key=lambda each: each.key))


def mark(now: dt.datetime, grace: dt.timedelta) -> str:
    """The value of the annotation: RFC 3339, to the microsecond, so that no two marks are alike."""
    return (now + grace).astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def left_over(template: Generated, now: dt.datetime) -> bool:
    """Whether it carries a mark of an earlier run whose time has come, by the clock of any host.

    All others have to be marked anew: those without a mark, with one that is too recent to trust two clocks with, or
    with one that cannot be read.
    """
    due = _time(template.mark)
    return due is not None and due <= now - CLOCK_TOLERANCE


def _time(text: Any) -> dt.datetime | None:
    try:
        moment = dt.datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo else None
