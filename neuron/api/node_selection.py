"""Node selectors and node affinity: the types of their parts, and which labels of a node meet them.

The parts are dictionaries as the API has them, because conversion writes them back whole. Source:
`k8s.io/component-helpers/scheduling/corev1/nodeaffinity`. Terms are ORed, the requirements of a term are ANDed, and a
term without requirements matches no node.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, TypedDict

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_NUMBER: Final = re.compile(r"[-+]?[0-9]{1,18}", re.ASCII)
"""As Go's ParseInt reads it."""


class Requirement(TypedDict, total=False):
    """A node selector requirement, on a label or a field of a node."""

    key: str
    operator: str
    values: list[str] | None


class Term(TypedDict, total=False):
    """A node selector term."""

    matchExpressions: list[Requirement] | None
    matchFields: list[Requirement] | None


class NodeSelector(TypedDict, total=False):
    """A node selector: of required node affinity, or of the allocation of a claim."""

    nodeSelectorTerms: list[Term] | None


class NodeAffinity(TypedDict, total=False):
    """`spec.affinity.nodeAffinity` of a pod."""

    requiredDuringSchedulingIgnoredDuringExecution: NodeSelector | None
    preferredDuringSchedulingIgnoredDuringExecution: list[dict[str, object]] | None


class Affinity(TypedDict, total=False):
    """`spec.affinity` of a pod."""

    nodeAffinity: NodeAffinity | None


def required_terms(affinity: Affinity | None) -> Sequence[Term] | None:
    """`nodeSelectorTerms` of required node affinity; None without required node affinity."""
    required = ((affinity or {}).get("nodeAffinity") or {}).get(REQUIRED)
    return None if required is None else required.get("nodeSelectorTerms") or ()


def matches_nothing(term: Term) -> bool:
    """Whether a term has no requirements."""
    return not term.get("matchExpressions") and not term.get("matchFields")


def unmet_selector(selector: Mapping[str, str], labels: Mapping[str, str]) -> list[Requirement]:
    """The entries of a `nodeSelector` that a node with these labels does not meet, as requirements."""
    return [
        {"key": key, "operator": "In", "values": [value]} for key, value in selector.items() if labels.get(key) != value
    ]


def unmet_terms(terms: Sequence[Term], node: str, labels: Mapping[str, str]) -> list[Requirement]:
    """The requirements of the closest term that a node does not meet; empty if it matches a term.

    Args:
        terms: alternatives.
        node: its name.
        labels: of the node.
    """
    closest: list[Requirement] | None = None
    for term in terms:
        if matches_nothing(term):
            continue
        unmet = [each for each in term.get("matchExpressions") or () if not _meets(each, labels)]
        unmet += [each for each in term.get("matchFields") or () if not _meets(each, {"metadata.name": node})]
        if not unmet:
            return []
        if closest is None or len(unmet) < len(closest):
            closest = unmet
    return closest if closest is not None else [{"key": "nodeSelectorTerms", "operator": "Exists"}]


def _meets(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    key, values = str(requirement.get("key")), requirement.get("values") or ()
    actual = labels.get(key)
    match requirement.get("operator"):
        case "In":
            return actual in values
        case "NotIn":
            return actual not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case "Gt" | "Lt" as operator if actual is not None and len(values) == 1:
            return compares(operator, actual, str(values[0]))
    return False


def compares(operator: str, actual: str, limit: str) -> bool:
    """Whether a label's value is above (`Gt`) or below a limit; both have to be whole numbers."""
    if not (_NUMBER.fullmatch(limit) and _NUMBER.fullmatch(actual)):
        return False
    return int(actual) > int(limit) if operator == "Gt" else int(actual) < int(limit)
