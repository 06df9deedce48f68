"""Decides which generated templates may be removed. Pure: the caller passes the time."""

import dataclasses
import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, TypeAlias

from conversion.claims import templates
from neuron import names

Key: TypeAlias = tuple[str, str]
"""Namespace and name."""

User: TypeAlias = tuple[str, str]
"""Kind and name of an object that refers to a template: `Pod`, `PodGroup` or `Workload`."""

CLOCK_TOLERANCE: Final = dt.timedelta(minutes=5)
"""Tolerated difference between the clocks of two machines that prune."""


@dataclasses.dataclass(frozen=True, slots=True)
class Generated:
    """A ResourceClaimTemplate that the webhook created and that no other client changed.

    Attributes:
        name: `templates.Template.name`.
        uid: `metadata.uid`.
        version: `metadata.resourceVersion`.
        created: `metadata.creationTimestamp`.
        mark: its annotation `names.ANNOTATION_PRUNE_AFTER`, or empty.
        labels: all labels.
        annotations: all others.
    """

    namespace: str
    name: str
    uid: str
    version: str
    created: dt.datetime
    mark: str
    labels: Mapping[str, str]
    spec: Mapping[str, object]
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.namespace, self.name

    def manifest(self) -> dict[str, object]:
        """The body to create it again."""
        metadata: dict[str, object] = {"name": self.name, "namespace": self.namespace, "labels": dict(self.labels)}
        if self.annotations:
            metadata["annotations"] = dict(self.annotations)
        return {"apiVersion": templates.API_VERSION, "kind": templates.KIND, "metadata": metadata, "spec": self.spec}


def read_generated(item: Mapping[str, Any]) -> Generated | None:
    """A ResourceClaimTemplate (`resource.k8s.io/v1`) if prune may remove it, else None.

    It may if it has the label, the name of a generated template or the annotation of one that a policy carries, and
    only the webhook wrote it (`metadata.managedFields`). `neuron-dra convert` prints the same objects; those that users
    apply are kept.
    """
    metadata, spec = item["metadata"], item["spec"]
    labels = metadata.get("labels") or {}
    annotations = metadata.get("annotations") or {}
    if not templates.is_written_by_us(metadata) or metadata.get("deletionTimestamp"):
        return None
    if not templates.is_unchanged(metadata["name"], annotations, spec):
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
        annotations.get(names.ANNOTATION_PRUNE_AFTER) or "",
        labels,
        spec,
        {name: value for name, value in annotations.items() if name != names.ANNOTATION_PRUNE_AFTER},
    )


def candidates(
    generated: Iterable[Generated], referred: Collection[Key], now: dt.datetime, older_than: dt.timedelta
) -> tuple[Generated, ...]:
    """Templates to which nothing refers and that are older than `older_than`, by namespace and name.

    Args:
        generated: all generated templates.
        referred: templates to which pods, PodGroups or Workloads refer.
        now: an aware time.
        older_than: the minimum age.
    """
    found = [each for each in generated if each.key not in referred and now - each.created > older_than]
    return tuple(sorted(found, key=lambda each: each.key))


def mark(now: dt.datetime, grace: dt.timedelta) -> str:
    """The value of the annotation: RFC 3339 with microseconds, so that marks are unique."""
    return (now + grace).astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def left_over(template: Generated, now: dt.datetime) -> bool:
    """Whether it has a mark of an earlier run that is due, with tolerance for the clocks of other machines.

    Other templates must be marked again: without a mark, with a recent one, or with one that cannot be parsed.
    """
    due = _time(template.mark)
    return due is not None and due <= now - CLOCK_TOLERANCE


def _time(text: Any) -> dt.datetime | None:
    try:
        moment = dt.datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo else None
