"""Scheduling hints of a policy, and the hints that a pod lacks. Works on JSON-like values.

Hints only add tolerations and narrow node affinity. The pod's own values stay, except for labels that a policy replaces
and the names of the default and legacy schedulers.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from neuron import names

Entry: TypeAlias = Mapping[str, Any]
"""A toleration, a node selector requirement or a preferred scheduling term, as Kubernetes writes it."""

NEURON_TOLERATION: Final[Entry] = {"key": names.NEURON_TAINT_KEY, "operator": "Exists", "effect": "NoSchedule"}
"""The built-in toleration."""

REPLACED_SCHEDULERS: Final = (None, "", names.DEFAULT_SCHEDULER, *names.LEGACY_SCHEDULERS)
"""Scheduler names of pods that get the policy's. Other names stay."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class SchedulingHints:
    """Hints of one policy. Compared by identity, because it is part of the key of cached decisions.

    Attributes:
        toleration: whether pods get the built-in toleration; None: the server's setting.
        affinity: whether pods require instance types that can serve them; None: the server's setting.
        scheduler: whether scheduler names are replaced; None: the server's setting.
        exclusive_topology: whether LeaderWorkerSets get the exclusive topology of their UltraServer mode.
        required: node selector requirements to add to each required term.
        preferred: preferred scheduling terms to add.
        scheduler_name: replaces the names of the default and legacy schedulers.
        priority_class: the PriorityClass of pods; empty: their own.
        replaces_priority_class: whether it takes precedence over the pod's own class.
        replaces_labels: whether `labels` take precedence over the pod's own labels.
    """

    policy: str = ""
    toleration: bool | None = None
    affinity: bool | None = None
    scheduler: bool | None = None
    exclusive_topology: bool = True
    tolerations: tuple[Entry, ...] = ()
    required: tuple[Entry, ...] = ()
    preferred: tuple[Entry, ...] = ()
    scheduler_name: str = names.DEFAULT_SCHEDULER
    priority_class: str = ""
    replaces_priority_class: bool = False
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    replaces_labels: bool = False


NO_HINTS: Final = SchedulingHints()
"""Hints of a pod that no policy matches."""


def covers(one: Entry, other: Entry) -> bool:
    """Whether a toleration tolerates all taints that another one tolerates.

    The rule is `isSuperset` of `k8s.io/kubernetes/pkg/util/tolerations`.
    """
    if one == other:
        return True
    if one.get("key") and one.get("key") != other.get("key"):
        return False
    if one.get("effect") and one.get("effect") != other.get("effect"):
        return False
    seconds, wanted = one.get("tolerationSeconds"), other.get("tolerationSeconds")
    if seconds is not None and (wanted is None or wanted > seconds):
        return False
    if one.get("operator") == "Exists":
        return True
    same_key = one.get("key") == other.get("key")
    return (
        same_key
        and one.get("operator") in (None, "", "Equal")
        and other.get("operator") in (None, "", "Equal")
        and (one.get("value") or "") == (other.get("value") or "")
    )


def tolerates_neuron(tolerations: Sequence[Entry] | None) -> bool:
    """Whether a pod has a toleration for the Neuron taint's key, or one for all taints."""
    for entry in tolerations or ():
        tolerates_all = not entry.get("key") and entry.get("operator") == "Exists"
        effective = entry.get("effect") in (None, "", NEURON_TOLERATION["effect"])
        if entry.get("key") == names.NEURON_TAINT_KEY or (tolerates_all and effective):
            return True
    return False


def missing_tolerations(
    current: Sequence[Entry] | None, hints: SchedulingHints, *, neuron: bool
) -> list[dict[str, object]]:
    """The tolerations that a pod lacks.

    Args:
        neuron: whether to add the built-in one if the policy does not set it.
    """
    wanted = neuron if hints.toleration is None else hints.toleration
    missing = [dict(NEURON_TOLERATION)] if wanted and not tolerates_neuron(current) else []
    for entry in hints.tolerations:
        if not any(covers(each, entry) for each in (*(current or ()), *missing)):
            missing.append(dict(entry))
    return missing


def scheduler_for(current: str | None, hints: SchedulingHints, *, legacy: bool) -> str | None:
    """The scheduler name that a pod gets; None if it keeps its own.

    Args:
        legacy: whether to replace names if the policy does not set it.
    """
    wanted = legacy if hints.scheduler is None else hints.scheduler
    if not wanted or current not in REPLACED_SCHEDULERS:
        return None
    return None if (current or names.DEFAULT_SCHEDULER) == hints.scheduler_name else hints.scheduler_name


def priority_class_for(current: str | None, hints: SchedulingHints) -> str | None:
    """The PriorityClass that a pod gets; None if it keeps its own."""
    wanted = hints.priority_class
    if not wanted or current == wanted or (current and not hints.replaces_priority_class):
        return None
    return wanted


def missing_labels(current: Mapping[str, object], hints: SchedulingHints) -> tuple[tuple[str, str], ...]:
    """Labels that a pod with labels `current` must get."""
    return tuple(
        (key, value)
        for key, value in sorted(hints.labels.items())
        if current.get(key) != value and (hints.replaces_labels or key not in current)
    )


def missing_requirements(term: Entry, required: Sequence[Entry]) -> list[dict[str, object]]:
    """The requirements that a node selector term lacks."""
    has = term.get("matchExpressions") or ()
    return [dict(entry) for entry in required if entry not in has]


def with_required(terms: Sequence[Entry] | None, required: Sequence[Entry]) -> Sequence[Entry] | None:
    """The terms with requirements added to each. A term without expressions matches no node and is not changed."""
    if not required:
        return terms
    if terms is None:
        return [{"matchExpressions": [dict(entry) for entry in required]}]
    return [
        {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), *missing_requirements(term, required)]}
        if term.get("matchExpressions") or term.get("matchFields")
        else term
        for term in terms
    ]
