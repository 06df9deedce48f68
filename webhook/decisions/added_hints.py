"""What a SchedulingHintPolicy added to a pod, so that re-applying can tell it from the user's own.

It is the member `hints` of the record (`webhook.decisions.records`); the built-in hints are known by their shape and
not in it. A user can write anything there. That is harmless: what is put back on UPDATE is in the old object already,
labels count only as far as a policy said so on CREATE, and an entry that the pod does not hold is dropped.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from neuron.scheduling import Entry


class AddedAffinity(Struct, frozen=True, omit_defaults=True):
    """Requirements that were added to terms of required node affinity, and preferred terms."""

    required: tuple[dict[str, Any], ...] = ()
    preferred: tuple[dict[str, Any], ...] = ()


class AddedHints(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What was added, as it stands in the pod.

    Attributes:
        tolerations: items of `spec.tolerations`.
        node_affinity: parts of `spec.affinity.nodeAffinity`.
        scheduler_name: the scheduler name that took the place of the default or legacy one.
        labels: labels that the pod did not have.
        replaced_labels: labels that come before what the pod says itself.
    """

    tolerations: tuple[dict[str, Any], ...] = ()
    node_affinity: AddedAffinity = AddedAffinity()
    scheduler_name: str | None = None
    labels: dict[str, str] = {}
    replaced_labels: dict[str, str] = {}

    def __bool__(self) -> bool:
        """Whether there is anything."""
        return self != NOTHING_ADDED

    def held(
        self,
        tolerations: Sequence[Entry] | None,
        terms: Sequence[Entry] | None,
        preferred: Sequence[Entry] | None,
        scheduler: str | None,
    ) -> "AddedHints":
        """As much of it as a pod really holds, labels apart."""
        expressions = [each for term in terms or () for each in term.get("matchExpressions") or ()]
        affinity = self.node_affinity
        return AddedHints(
            tolerations=tuple(each for each in self.tolerations if each in (tolerations or ())),
            node_affinity=AddedAffinity(
                tuple(each for each in affinity.required if each in expressions),
                tuple(each for each in affinity.preferred if each in (preferred or ())),
            ),
            scheduler_name=self.scheduler_name if self.scheduler_name == scheduler else None,
        )


NO_AFFINITY = AddedAffinity()
NOTHING_ADDED = AddedHints()


def decode(value: object) -> AddedHints:
    """Read what JSON holds; what is no such thing says nothing."""
    try:
        return msgspec.convert(value, AddedHints)
    except msgspec.ValidationError:
        return NOTHING_ADDED


def encode(added: AddedHints) -> Mapping[str, Any]:
    """As JSON-like data."""
    found: dict[str, Any] = msgspec.to_builtins(added)
    return {key: value for key, value in found.items() if value}
