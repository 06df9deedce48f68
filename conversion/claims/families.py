"""Chooses the families of a pod that selects no instance types, from what is known of the cluster.

A family is never guessed. If nothing says which families there are, all are candidates, and the answer says so.

People write `instanceType: inferentia-inf2` or `karpenter.sh/nodepool: amd-neuron-trn1`: words such as `inf2` in the
values of node selectors whose keys no instance type determines. Such a value does not prove which nodes match. It is
used where nothing else decides between families, and the answer says so.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from neuron import names
from neuron.api.nodes import Requirement, Term, matches_nothing
from neuron.findings import Finding, short, warning

SETTLED_BY: Final = (
    "Name the families with --families or in a ConversionPolicy, or set the annotation"
    f" {names.ANNOTATION_INSTANCE_TYPE} or the label {names.LABEL_INSTANCE_TYPE} in the pod."
)
"""The fix of the warnings about unknown types."""

_WORD: Final = re.compile(r"[a-z0-9]+")
_FAMILY: Final = re.compile(r"(?P<category>inf|trn)(?P<generation>[0-9]+)")
_PRODUCTS: Final = {"inf": "inferentia", "trn": "trainium"}
"""Category of the family names -> name of the product."""
_LONGEST_VALUE: Final = 63
"""Characters of a label's value (Kubernetes, "Labels and Selectors")."""
_MOST_VALUES: Final = 64
"""Values of one node selector requirement that are read."""


@dataclasses.dataclass(frozen=True, slots=True)
class FamilyHint:
    """Families that a node selection names in values of other keys.

    Attributes:
        families: not empty.
        path: field path of the first such value.
        text: key and value, for messages.
    """

    families: frozenset[str]
    path: str
    text: str


def find_hint(
    node_selector: Mapping[str, str], terms: Sequence[Term] | None, families: tuple[str, ...]
) -> FamilyHint | None:
    """The families that the values of a node selection name; None if they name none, or name all of them.

    Args:
        node_selector: `spec.nodeSelector`. Entries are ANDed.
        terms: of required node affinity. They are ORed, so each must name a family.
        families: of the catalogue.
    """
    found = [_of_entry(key, value, families) for key, value in node_selector.items()]
    by_term = [_of_term(index, term, families) for index, term in enumerate(terms or ()) if not matches_nothing(term)]
    if by_term and all(by_term):
        found.append(_merged(by_term, frozenset.union))
    hint = _merged(found, _narrowed)
    return None if hint is None or hint.families.issuperset(families) else hint


def named_families(value: str, families: tuple[str, ...]) -> frozenset[str]:
    """The families that the words of a value name: `inferentia-inf2` names inf2, `trainium` all trn families."""
    found: frozenset[str] = frozenset()
    index = _by_word(families)
    for named in map(index.get, _WORD.findall(value[:_LONGEST_VALUE].lower())):
        if named:
            found = _narrowed(found, named)
    return found


@functools.lru_cache(maxsize=8)
def _by_word(families: tuple[str, ...]) -> Mapping[str, frozenset[str]]:
    """The families by the words that name them: category or product name, with or without a generation.

    A family's own name names only this one. A look-up for each word: a pod can have a thousand.
    """
    found: dict[str, frozenset[str]] = {}
    for family in families:
        match = _FAMILY.match(family)
        if match is None:
            continue
        for category in (match["category"], _PRODUCTS[match["category"]]):
            for word in (category, category + match["generation"]):
                found[word] = found.get(word, frozenset()) | {family}
    return found | {family: frozenset((family,)) for family in families}


def _narrowed(one: frozenset[str], other: frozenset[str]) -> frozenset[str]:
    """Both if they agree; all families that are named if they contradict each other."""
    return one & other or one | other


def _of_entry(key: str, value: object, families: tuple[str, ...]) -> FamilyHint | None:
    named = named_families(str(value), families)
    if not named:
        return None
    text = f"nodeSelector {short(key)}={short(str(value))}"
    return FamilyHint(named, f"spec.nodeSelector[{short(key)}]", text)


def _of_term(index: int, term: Term, families: tuple[str, ...]) -> FamilyHint | None:
    return _merged(
        (_of_expression(index, expression, families) for expression in term.get("matchExpressions") or ()), _narrowed
    )


def _of_expression(index: int, expression: Requirement, families: tuple[str, ...]) -> FamilyHint | None:
    if expression.get("operator") != "In":
        return None
    values = [str(value) for value in itertools.islice(expression.get("values") or (), _MOST_VALUES)]
    named = [named_families(value, families) for value in values]
    if not named or not all(named):
        return None
    path = f"spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[{index}]"
    return FamilyHint(
        frozenset().union(*named), path, f"node affinity {short(str(expression.get('key')))}={short(values[0])}"
    )


def _merged(
    hints: Iterable[FamilyHint | None], merge: Callable[[frozenset[str], frozenset[str]], frozenset[str]]
) -> FamilyHint | None:
    """One hint, with the place of the first."""
    found = [hint for hint in hints if hint is not None]
    if not found:
        return None
    families = found[0].families
    for hint in found[1:]:
        families = merge(families, hint.families)
    return dataclasses.replace(found[0], families=families)


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
