"""Which instance types a pod may land on, as far as the pod itself says so.

Node selection follows `k8s.io/component-helpers/scheduling/corev1/nodeaffinity`: `nodeSelector` entries are ANDed
with required node affinity, whose terms are ORed. Labels that an instance type does not determine are taken as
satisfiable; a term without expressions matches nothing.
"""

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from neuron import names
from neuron.findings import Finding, did_you_mean
from neuron.instances import DEFAULT_FAMILIES, Catalogue, InstanceType

_SAGEMAKER_PREFIX = "ml."
_LONGEST_SHOWN = 100
"""Characters of a label that a message quotes."""
_MOST_SHOWN = 16
"""Entries of a node selector that a message quotes."""
_INSTANCE_LABELS = (names.LABEL_INSTANCE_TYPE, names.LABEL_INSTANCE_TYPE_BETA)
_ACCELERATORS = ("inferentia", "inferentia2", "trainium", "trainium2")
"""Values of Karpenter's accelerator label that belong to known types, and so to no other."""
_DETERMINED_LABELS = (
    *_INSTANCE_LABELS,
    # Karpenter's well-known labels for AWS.
    "karpenter.k8s.aws/instance-family",
    "karpenter.k8s.aws/instance-size",
    "karpenter.k8s.aws/instance-accelerator-name",
)
_DETERMINED = frozenset(_DETERMINED_LABELS)


@dataclasses.dataclass(frozen=True, slots=True)
class NodeSelection:
    """What a pod says about its nodes.

    Attributes:
        annotated: instance types of the annotation `neuron.aws.com/instance-type`; empty without one.
        node_selector: `spec.nodeSelector`.
        terms: `nodeSelectorTerms` of required node affinity; None without required node affinity.
    """

    annotated: tuple[str, ...] = ()
    node_selector: Mapping[str, str] = dataclasses.field(default_factory=dict)
    terms: Sequence[Mapping[str, Any]] | None = None


def labels_of(entry: InstanceType) -> dict[str, str | None]:
    """The node labels that an instance type determines; None where their value is not known."""
    family, _, size = entry.name.partition(".")
    values = (entry.name, entry.name, family, size, entry.accelerator)
    return dict(zip(_DETERMINED_LABELS, values, strict=True))


@dataclasses.dataclass(frozen=True, slots=True)
class _Requirement:
    """One requirement on a label that an instance type determines: an expression, read once."""

    key: str
    operator: str
    values: frozenset[str]

    def admits(self, labels: Mapping[str, str | None]) -> bool:
        """Whether a node of the type with these labels can meet it."""
        actual = labels[self.key]
        if actual is None:
            return not (self.operator == "In" and self.values.issubset(_ACCELERATORS))
        match self.operator:
            case "In":
                return actual in self.values
            case "NotIn":
                return actual not in self.values
            case "DoesNotExist":
                return False
            case _:
                return True


@dataclasses.dataclass(frozen=True, slots=True)
class _Requirements:
    """A node selection as far as instance types decide about it: every expression is read once, not once per type.

    Attributes:
        annotated: instance types of the annotation; empty without one.
        selector: entries of `nodeSelector` on determined labels, in order, with their values as written.
        terms: alternatives, equal ones once; None where every type meets required node affinity.
    """

    annotated: frozenset[str]
    selector: tuple[tuple[_Requirement, str], ...]
    terms: Collection[frozenset[_Requirement]] | None

    @classmethod
    def of(cls, selection: NodeSelection, catalogue: Catalogue) -> "_Requirements":
        selector = [(key, selection.node_selector[key]) for key in selection.node_selector if key in _DETERMINED]
        return cls(
            frozenset(selection.annotated),
            tuple((_requirement(key, "In", (value,)), value) for key, value in selector),
            None if selection.terms is None else _alternatives(selection.terms, _known_values(catalogue)),
        )

    def admits(self, labels: Mapping[str, str | None]) -> bool:
        """Whether a node of the type with these labels can satisfy all of it."""
        if self.annotated and labels[names.LABEL_INSTANCE_TYPE] not in self.annotated:
            return False
        return all(requirement.admits(labels) for requirement, _ in self.selector) and self.terms_admit(labels)

    def terms_admit(self, labels: Mapping[str, str | None]) -> bool:
        """Whether it can satisfy required node affinity."""
        return self.terms is None or any(all(requirement.admits(labels) for requirement in term) for term in self.terms)


def _known_values(catalogue: Catalogue) -> frozenset[str]:
    """Values that the labels of some instance type have."""
    values = (value for entry in catalogue for value in labels_of(entry).values() if value is not None)
    return frozenset(values).union(_ACCELERATORS)


def _requirement(key: str, operator: str, values: Iterable[Any]) -> _Requirement:
    """A requirement; SageMaker HyperPod writes instance types as `ml.<type>`."""
    texts = frozenset(map(str, values))
    if key in _INSTANCE_LABELS:
        texts = frozenset(text.removeprefix(_SAGEMAKER_PREFIX) for text in texts)
    return _Requirement(key, operator, texts)


def _reduced(requirement: _Requirement, known: frozenset[str]) -> _Requirement:
    values = requirement.values & known
    return (
        requirement
        if len(values) == len(requirement.values)
        else _Requirement(requirement.key, requirement.operator, values | {""})
    )


def _alternatives(
    terms: Iterable[Mapping[str, Any]], known: frozenset[str]
) -> Collection[frozenset[_Requirement]] | None:
    """Terms without expressions on labels of others; None where a term is then left without any."""
    found: dict[frozenset[_Requirement], None] = {}
    for term in terms:
        expressions = term.get("matchExpressions") or ()
        if not expressions and not term.get("matchFields"):
            continue  # it matches nothing
        # Values that no type has are one value, so that terms that say the same are one term.
        requirements = frozenset(
            _reduced(_requirement(each["key"], str(each.get("operator")), each.get("values") or ()), known)
            for each in expressions
            if each.get("key") in _DETERMINED
        )
        if not requirements:
            return None
        found[requirements] = None
    return found


def names_types(selection: NodeSelection) -> bool:
    """Whether the pod itself says which types it wants, rather than only which it does not want."""
    return bool(selection.annotated) or _selects_on(selection, _DETERMINED_LABELS)


def pins_types(selection: NodeSelection) -> bool:
    """Whether node selection already keeps the pod to named instance types, so that a hint adds nothing."""
    return _selects_on(selection, _INSTANCE_LABELS)


def _selects_on(selection: NodeSelection, labels: Collection[str]) -> bool:
    """Whether every way to satisfy the node selection goes through a named value of one of the labels."""
    if any(label in selection.node_selector for label in labels):
        return True
    return bool(selection.terms) and all(
        any(
            expression.get("key") in labels and expression.get("operator") == "In"
            for expression in term.get("matchExpressions") or ()
        )
        for term in selection.terms or ()
    )


def find(
    catalogue: Catalogue, selection: NodeSelection, families: Sequence[str] | None
) -> tuple[tuple[InstanceType, ...], list[Finding]]:
    """The candidate instance types, in catalogue order.

    Args:
        catalogue: every type that exists.
        selection: what the pod says.
        families: families in use where the pod names none: allowed by policy or seen in ResourceSlices.
            None: nothing is known, take `DEFAULT_FAMILIES`.

    Returns:
        The candidates; without any, a finding that says which part of the selection excludes them all.
    """
    unknown = [name for name in selection.annotated if name not in catalogue]
    if unknown:
        return (), [_unknown_annotation(name, catalogue) for name in unknown]
    in_use = DEFAULT_FAMILIES if families is None else families
    anywhere, requirements = names_types(selection), _Requirements.of(selection, catalogue)
    found = tuple(
        entry for entry in catalogue if (anywhere or entry.family in in_use) and requirements.admits(labels_of(entry))
    )
    return found, [] if found else [_nothing_left(selection, requirements, catalogue, in_use)]


def _unknown_annotation(name: str, catalogue: Catalogue) -> Finding:
    return Finding(
        "NEU109",
        f"metadata.annotations[{names.ANNOTATION_INSTANCE_TYPE}]",
        f"annotation {names.ANNOTATION_INSTANCE_TYPE} names {name!r}, which is no known Neuron instance type."
        f"{did_you_mean(name, catalogue.names())}",
        "Use a type such as trn2.48xlarge.",
        name,
    )


def _nothing_left(
    selection: NodeSelection, requirements: _Requirements, catalogue: Catalogue, families: Sequence[str]
) -> Finding:
    """Say which requirement excludes every type, looking at them one by one before at all together."""
    types = [labels_of(entry) for entry in catalogue]
    for requirement, value in requirements.selector:
        if not any(requirement.admits(labels) for labels in types):
            return Finding(
                "NEU110",
                f"spec.nodeSelector[{requirement.key}]",
                f"nodeSelector {requirement.key}={_cut(value)} admits no Neuron instance type."
                f"{did_you_mean(value, catalogue.names())}",
                "Select a Neuron instance type, or drop the selector.",
                _cut(value),
            )
    if not any(requirements.terms_admit(labels) for labels in types):
        path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
        return Finding(
            "NEU110",
            path,
            "required node affinity admits no Neuron instance type.",
            "Allow a Neuron instance type in one of its terms.",
        )
    selectors = itertools.islice(selection.node_selector.items(), _MOST_SHOWN)
    said = [f"{_cut(key)}={_cut(value)}" for key, value in selectors]
    if len(selection.node_selector) > _MOST_SHOWN:
        said.append(f"and {len(selection.node_selector) - _MOST_SHOWN} more")
    said += [f"{names.ANNOTATION_INSTANCE_TYPE}={','.join(selection.annotated)}"] if selection.annotated else []
    return Finding(
        "NEU110",
        "spec",
        f"node selection ({', '.join(said) or 'required node affinity'}) leaves none of the instance types in use"
        f" (families {', '.join(families)}).",
        "Make nodeSelector, node affinity and annotation agree.",
    )


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"


def is_sagemaker(selection: NodeSelection) -> bool:
    """Whether the pod selects SageMaker HyperPod nodes, whose instance-type labels have another form."""
    values = [selection.node_selector.get(label, "") for label in _INSTANCE_LABELS]
    for term in selection.terms or ():
        for expression in term.get("matchExpressions") or ():
            if expression.get("key") in _INSTANCE_LABELS:
                values += [str(value) for value in expression.get("values") or ()]
    return any(value.startswith(_SAGEMAKER_PREFIX) for value in values)
