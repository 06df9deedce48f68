"""Remembers decisions about new pods, in one cache.

Pods that differ only in the names of their containers share an entry. The only part of a conversion that names
containers is its record, so the decision about one of them is made from that about another. Pods with an earlier
record, and decisions whose findings name a container, are decided one by one.
"""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct

from conversion.asks import records
from conversion.asks.steering import Steering
from conversion.facts import NamespaceFacts
from conversion.objects import pods
from conversion.objects.pod_places import pointer
from conversion.patches.decision import Decision, Operation, Outcome
from neuron import names
from runtime.remembered import Remembered

_MOST: Final = 1024 * 1024
"""Bytes of all entries."""
_MOST_NAMED: Final = 64
"""Decisions of one entry, each for other names of containers."""
_MOST_OF_ENTRY: Final = _MOST // 16
"""Bytes of one entry, so that a few shapes with many names do not evict all others."""
_MOST_CONTAINERS: Final = 16
_ANNOTATIONS: Final = pointer("metadata", "annotations")
_RECORD: Final = _ANNOTATIONS + pointer(names.ANNOTATION_CONVERTED_FROM)

Names = tuple[str, ...]
"""Names of the containers of a pod, in order."""


class PodShape(Struct, frozen=True, cache_hash=True):
    """All that a decision about a new Pod depends on, but the names of its containers and the context of conversion.

    Attributes:
        view: of the pod.
        facts: settings of its namespace.
        claiming: as for `convert`.
        steering: settings of the policies that match it.
        by_kubelet: as for `convert`.
    """

    view: Hashable
    facts: NamespaceFacts
    claiming: tuple[str, ...]
    steering: Steering
    by_kubelet: bool


class _Model(NamedTuple):
    """A decision that names containers in the record only. `size`: bytes, also of decisions that are made from it."""

    decision: Decision
    containers: Names
    size: int


class _DecisionsOfShape:
    """The decisions about pods of one shape. `model`: one from which others may be made."""

    __slots__ = ("_tried", "by_names", "model", "size")

    def __init__(self) -> None:
        self.by_names: dict[Names, Decision] = {}
        self.model: _Model | None = None
        self.size = 0
        self._tried = False

    def renamable(self) -> _Model | None:
        """The model, if others can be made from it. Tried once, when the second decision is needed: most have none."""
        if self.model is not None and not self._tried:
            self._tried = is_renamable(self.model.decision, self.model.containers)
            if not self._tried:
                self.model = None
        return self.model

    def add(self, containers: Names, decision: Decision, size: int) -> None:
        """Add a decision; above the bounds of an entry it replaces all others but the model."""
        if len(self.by_names) >= _MOST_NAMED or self.size + size > _MOST_OF_ENTRY:
            self.by_names.clear()
            self.size = 0 if self.model is None else self.model.size
        self.by_names[containers] = decision
        self.size += size


class PodDecisions:
    """Decisions by shape and names of containers. For one thread: the event loop's."""

    def __init__(self) -> None:
        self.entries: Remembered[PodShape, _DecisionsOfShape] = Remembered(_MOST)

    def find(self, shape: PodShape, pod: pods.Pod, containers: Names) -> Decision | None:
        """The decision about such a pod; None if there is none, and none from which it can be made."""
        entry = self.entries.get(shape)
        if entry is None:
            return None
        decision = entry.by_names.get(containers)
        if decision is None and may_be_renamed(pod) and (model := entry.renamable()) is not None:
            decision = renamed(model.decision, model.containers, containers)
            entry.add(containers, decision, model.size)
            self.entries.put(shape, entry, entry.size)
        return decision

    def add(self, shape: PodShape, containers: Names, decision: Decision, size: int) -> None:
        """Remember a decision. `size`: bytes of the decision and of the pod's view."""
        entry = self.entries.get(shape) or _DecisionsOfShape()
        if entry.model is None:
            entry.model = _Model(decision, containers, size)
        entry.add(containers, decision, size)
        self.entries.put(shape, entry, entry.size)

    def clear(self) -> None:
        """Forget all decisions."""
        self.entries.clear()


def may_be_renamed(pod: pods.Pod) -> bool:
    """Whether the decision about a pod may be made from that about a pod with other names of containers."""
    return pod.annotations.converted_from is None and _are_plain(pod.container_names) and pod.repeated() is None


def _are_plain(containers: Names) -> bool:
    return len(containers) <= _MOST_CONTAINERS and all(map(names.DNS_LABEL.fullmatch, containers))


def is_renamable(decision: Decision, containers: Names) -> bool:
    """Whether a decision names the containers only in the record. `containers`: names of the containers of its pod."""
    if decision.outcome is not Outcome.CONVERTED or decision.needs or not _are_plain(containers):
        return False
    texts = [f"{each.message} {each.fix}" for each in decision.warnings]
    return not any(name in text for text in texts for name in containers)


def renamed(decision: Decision, before: Sequence[str], now: Sequence[str]) -> Decision:
    """The decision for a pod whose containers have other names.

    Args:
        decision: one that `is_renamable`.
        before: names of the containers of its pod.
        now: names of the containers of the other pod, in the same order.
    """
    containers = dict(zip(before, now, strict=True))
    patch: list[Operation] = []
    for operation in decision.patch:
        value: Any = operation.get("value")
        if operation["path"] == _RECORD:
            value = records.renamed(value, containers)
        elif operation["path"] == _ANNOTATIONS:
            record = value[names.ANNOTATION_CONVERTED_FROM]
            value = {**value, names.ANNOTATION_CONVERTED_FROM: records.renamed(record, containers)}
        patch.append({**operation, "value": value} if "value" in operation else operation)
    return dataclasses.replace(decision, patch=tuple(patch), patch_size=0)
