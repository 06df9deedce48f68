"""Conversion of pods that differ only in the names of their containers: one decision serves them all. Pure.

The only part of such a decision that names containers is the record of the conversion. Decisions whose findings name a
container, and pods with an earlier record, are decided one by one.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Final

from neuron import names
from webhook.decisions import pods, records
from webhook.decisions.decision import Decision, Operation, Outcome
from webhook.decisions.patches import pointer

_MOST_CONTAINERS: Final = 16
_ANNOTATIONS: Final = pointer("metadata", "annotations")
_RECORD: Final = _ANNOTATIONS + pointer(names.ANNOTATION_CONVERTED_FROM)


def may_be_renamed(pod: pods.Pod) -> bool:
    """Whether the decision about a pod may be made from that about a pod with other names of containers."""
    containers = pod.container_names
    if pod.annotations.converted_from is not None or len(containers) > _MOST_CONTAINERS:
        return False
    return all(map(names.DNS_LABEL.fullmatch, containers)) and pod.repeated() is None


def is_renamable(decision: Decision, containers: Sequence[str]) -> bool:
    """Whether a decision names the containers only in the record. `containers`: names of the containers of its pod."""
    if decision.outcome is not Outcome.CONVERTED or decision.needs:
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
    return dataclasses.replace(decision, patch=tuple(_renamed(decision.patch, dict(zip(before, now, strict=True)))))


def _renamed(patch: Sequence[Operation], containers: dict[str, str]) -> Iterator[Operation]:
    for operation in patch:
        if operation["path"] == _RECORD:
            yield {**operation, "value": records.renamed(operation["value"], containers)}
        elif operation["path"] == _ANNOTATIONS:
            annotations = dict(operation["value"])
            record = annotations[names.ANNOTATION_CONVERTED_FROM]
            annotations[names.ANNOTATION_CONVERTED_FROM] = records.renamed(record, containers)
            yield {**operation, "value": annotations}
        else:
            yield operation
