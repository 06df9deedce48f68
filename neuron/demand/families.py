"""Chooses the families of a pod that selects no instance types, from what is known of the cluster.

A family is never guessed. If nothing says which families there are, all are candidates, and the answer says so.
"""

import dataclasses
from collections.abc import Iterable, Sequence

from msgspec import Struct

from neuron import names
from neuron.demand.family_hints import FamilyHint
from neuron.findings import Finding, warning

SETTLED_BY = (
    "Name the families with --families or in a ConversionPolicy, or set the annotation"
    f" {names.ANNOTATION_INSTANCE_TYPE} or the label {names.LABEL_INSTANCE_TYPE} in the pod."
)
"""The fix of the warnings about unknown types."""


@dataclasses.dataclass(frozen=True, slots=True)
class Families:
    """What is known of the families in use. Empty: nothing.

    Attributes:
        allowed: by policy; no others.
        seen: in ResourceSlices or on Nodes.
        declared: by the setting `families`.
    """

    allowed: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()


UNKNOWN = Families()


class FamilyChoice(Struct, frozen=True):
    """The families of one pod.

    Attributes:
        families: in catalogue order.
        known: whether policy, cluster or setting determine them alone.
        everything: whether nothing says which families there are.
        warnings: NEU217 if a value of the node selection was used, or contradicts the policy.
    """

    families: tuple[str, ...]
    known: bool = True
    everything: bool = False
    warnings: tuple[Finding, ...] = ()


def choose_families(families: Families, hint: FamilyHint | None, everything: Sequence[str]) -> FamilyChoice:
    """Choose the families: those of the policy, else those seen, else the declared ones, else all.

    A hint decides between them. If it names none of them, the policy's families stay, the families seen are extended
    (either may be right), and declared families are replaced.

    Args:
        everything: all families of the catalogue.
    """
    declared = tuple(family for family in families.declared if family in everything)
    base = families.allowed or families.seen or declared
    if hint is None:
        return FamilyChoice(base) if base else FamilyChoice(tuple(everything), known=False, everything=True)
    if base and hint.families.issuperset(base):
        return FamilyChoice(base)
    both = _ordered(everything, hint.families.intersection(base or everything))
    if both:
        return FamilyChoice(both, known=False, warnings=(_decides(hint, both),))
    if families.allowed:
        return FamilyChoice(base, warnings=(_contradicts(hint, base),))
    chosen = _ordered(everything, hint.families.union(families.seen))
    return FamilyChoice(chosen, known=False, warnings=(_decides(hint, chosen),))


def _ordered(everything: Sequence[str], chosen: Iterable[str]) -> tuple[str, ...]:
    members = frozenset(chosen)
    return tuple(family for family in everything if family in members)


def _decides(hint: FamilyHint, chosen: Sequence[str]) -> Finding:
    return warning(
        "NEU217",
        hint.path,
        f"{hint.text} is taken as a hint to {_listed(hint.families)}: the claim is made for {_listed(chosen)}, and no"
        " node affinity to instance types is added.",
        SETTLED_BY,
        hint.text,
    )


def _contradicts(hint: FamilyHint, allowed: Sequence[str]) -> Finding:
    return warning(
        "NEU217",
        hint.path,
        f"{hint.text} looks like {_listed(hint.families)}, and policy allows only {_listed(allowed)}.",
        "Select nodes of these families, or ask the cluster's admins.",
        hint.text,
    )


def _listed(families: Iterable[str]) -> str:
    return ", ".join(sorted(families))
