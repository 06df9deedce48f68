"""What a SchedulingHintPolicy added to a pod: the member `hints` of the record (`webhook.decisions.records`).

On UPDATE it separates added entries from the user's own. Built-in hints are recognised by their content and are not in
it. Users can forge it. That is harmless: entries that the pod does not have are dropped (`held`), only what the old
object has is restored, labels count only if the policy sets them on CREATE, and an update that is not the manifest
applied again gets back only labels that a policy in force sets (`by`). Lists longer than `MOST` are ignored.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from neuron.demand.scheduling import Entry, SchedulingHints
from webhook.decisions.canonical import key_of, keys_of

MOST: Final = 128
"""Entries of one list. A SchedulingHintPolicy adds at most 32; several passes can add those of several policies."""


class AddedAffinity(Struct, frozen=True, omit_defaults=True):
    """Requirements that were added to terms of required node affinity, and preferred terms."""

    required: tuple[dict[str, Any], ...] = ()
    preferred: tuple[dict[str, object], ...] = ()


class AddedHints(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What was added, as the pod has it.

    Attributes:
        tolerations: items of `spec.tolerations`.
        node_affinity: parts of `spec.affinity.nodeAffinity`.
        scheduler_name: the scheduler name that replaced the default or a legacy one.
        labels: labels that the pod did not have.
        replaced_labels: labels that take precedence over the pod's own values.
    """

    tolerations: tuple[dict[str, object], ...] = ()
    node_affinity: AddedAffinity = AddedAffinity()
    scheduler_name: str | None = None
    labels: dict[str, str] = {}
    replaced_labels: dict[str, str] = {}

    def __bool__(self) -> bool:
        """Whether anything was added."""
        return self != NOTHING_ADDED

    def by(self, hints: SchedulingHints) -> "AddedHints":
        """The part of it that a policy adds."""
        if self == NOTHING_ADDED:
            return self
        affinity = self.node_affinity
        return AddedHints(
            tolerations=_among(self.tolerations, hints.tolerations),
            node_affinity=AddedAffinity(
                _among(affinity.required, hints.required), _among(affinity.preferred, hints.preferred)
            ),
            scheduler_name=self.scheduler_name if self.scheduler_name == hints.scheduler_name else None,
            labels=_both(self.labels, hints.labels),
            replaced_labels=_both(self.replaced_labels, hints.labels),
        )

    def held(
        self,
        tolerations: Sequence[Entry] | None,
        terms: Sequence[Entry] | None,
        preferred: Sequence[Entry] | None,
        scheduler: str | None,
    ) -> "AddedHints":
        """The part of it that a pod really has. Without labels."""
        if self == NOTHING_ADDED:
            return self
        affinity = self.node_affinity
        return AddedHints(
            tolerations=_among(self.tolerations, tolerations or ()),
            node_affinity=AddedAffinity(
                _among(
                    affinity.required, (each for term in terms or () for each in term.get("matchExpressions") or ())
                ),
                _among(affinity.preferred, preferred or ()),
            ),
            scheduler_name=self.scheduler_name if self.scheduler_name == scheduler else None,
        )


def _among(entries: Sequence[dict[str, Any]], others: Iterable[Entry]) -> tuple[dict[str, Any], ...]:
    if not entries:
        return ()
    known = keys_of(others)
    return tuple(each for each in entries if key_of(each) in known)


def _both(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in one.items() if other.get(key) == value}


def union(before: Sequence[dict[str, object]], now: Sequence[dict[str, object]]) -> tuple[dict[str, object], ...]:
    """Entries of both, each once, at most `MOST`."""
    if not before or not now:
        return tuple(before or now)
    known = keys_of(before)
    return (*before, *(entry for entry in now if key_of(entry) not in known))[:MOST]


NO_AFFINITY = AddedAffinity()
NOTHING_ADDED = AddedHints()


def decode(value: object) -> AddedHints:
    """Decode JSON-like data. A value of another type, or with more than `MOST` entries, is ignored."""
    try:
        added = msgspec.convert(value, AddedHints)
    except msgspec.ValidationError:
        return NOTHING_ADDED
    affinity = added.node_affinity
    lists = (added.tolerations, affinity.required, affinity.preferred, added.labels, added.replaced_labels)
    return NOTHING_ADDED if any(len(each) > MOST for each in lists) else added


def encode(added: AddedHints) -> Mapping[str, Any]:
    """JSON-like data, without empty members."""
    found: dict[str, object] = msgspec.to_builtins(added)
    return {key: value for key, value in found.items() if value}
