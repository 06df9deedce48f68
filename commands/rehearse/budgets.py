"""PodDisruptionBudgets as a drain meets them. Pure.

Source: pkg/controller/disruption of Kubernetes: percentages are rounded up, `expectedPods` counts the pods that the
controllers want.
"""

import dataclasses
from collections.abc import Mapping
from typing import Final

from pydantic import ValidationError

from commands.rehearse.model import DrainBudget
from neuron.api.fields import mapping
from policies.judging.matching import selects
from policies.schema.base import LabelSelector

POD_DISRUPTION_BUDGET: Final = ("policy", "PodDisruptionBudget")


@dataclasses.dataclass(slots=True)
class _Read:
    namespace: str
    name: str
    spec: Mapping[str, object]
    selector: LabelSelector
    expected: int
    members: int = 0


class DrainBudgets:
    """The budgets of all namespaces. Take them before pods."""

    def __init__(self) -> None:
        self._found: list[_Read] = []
        self._by_namespace: dict[str, list[int]] = {}

    def take(self, item: Mapping[str, object]) -> None:
        """A PodDisruptionBudget. One without a selector, or with one that cannot be read, is left out."""
        metadata, spec, status = (mapping(item.get(key)) for key in ("metadata", "spec", "status"))
        namespace, expected = str(metadata.get("namespace") or "default"), status.get("expectedPods")
        try:
            selector = LabelSelector.model_validate(spec.get("selector"))
        except ValidationError:
            return
        self._by_namespace.setdefault(namespace, []).append(len(self._found))
        wanted = expected if isinstance(expected, int) else 0
        self._found.append(_Read(namespace, str(metadata.get("name")), spec, selector, wanted))

    def of(self, namespace: str, labels: Mapping[str, str]) -> tuple[int, ...]:
        """Indices of the budgets that count a pod."""
        found = tuple(
            number for number in self._by_namespace.get(namespace, ()) if selects(self._found[number].selector, labels)
        )
        for number in found:
            self._found[number].members += 1
        return found

    def made(self) -> tuple[DrainBudget, ...]:
        """All budgets. Call it after all pods."""
        return tuple(DrainBudget(f"{each.namespace}/{each.name}", _most(each)) for each in self._found)


def _most(budget: _Read) -> int:
    """Pods that may be unavailable at one time."""
    expected = max(budget.expected, budget.members)
    unavailable, available = budget.spec.get("maxUnavailable"), budget.spec.get("minAvailable")
    if unavailable is not None:
        return _scaled(unavailable, expected)
    return max(0, expected - _scaled(available, expected)) if available is not None else expected


def _scaled(value: object, of: int) -> int:
    """A number, or a percentage of the expected pods, rounded up; 0 for anything else."""
    text = str(value)
    if text.endswith("%") and text[:-1].isdecimal():
        return -(-int(text[:-1]) * of // 100)
    return int(text) if text.isdecimal() else 0
