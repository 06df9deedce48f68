"""Finds the instance types on which a pod may run, by its annotation, nodeSelector and required node affinity.

Node selection follows `k8s.io/component-helpers/scheduling/corev1/nodeaffinity`: `nodeSelector` entries are ANDed with
required node affinity, whose terms are ORed. Labels that an instance type does not determine are assumed to match. A
term without expressions matches no node.
"""

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from neuron import names
from neuron.findings import Finding, did_you_mean, short
from neuron.instances import DEFAULT_FAMILIES, Catalogue, InstanceType

_SAGEMAKER_PREFIX = "ml."
_MOST_SHOWN = 16
"""Entries of a node selector that a message quotes."""
_INSTANCE_LABELS = (names.LABEL_INSTANCE_TYPE, names.LABEL_INSTANCE_TYPE_BETA)
_ACCELERATORS = ("inferentia", "inferentia2", "trainium", "trainium2")
"""Values of Karpenter's accelerator label that belong to known types only."""
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
    """Node selection of a pod.

    Attributes:
        annotated: instance types of the annotation `neuron.aws.com/instance-type`; empty without the annotation.
        node_selector: `spec.nodeSelector`.
        terms: `nodeSelectorTerms` of required node affinity; None without required node affinity.
    """

    annotated: tuple[str, ...] = ()
    node_selector: Mapping[str, str] = dataclasses.field(default_factory=dict)
    terms: Sequence[Mapping[str, Any]] | None = None


def labels_of(entry: InstanceType) -> dict[str, str | None]:
    """The node labels that an instance type determines; the value is None if it is not known."""
    family, _, size = entry.name.partition(".")
    values = (entry.name, entry.name, family, size, entry.accelerator)
    return dict(zip(_DETERMINED_LABELS, values, strict=True))


@dataclasses.dataclass(frozen=True, slots=True)
class _Requirement:
    """One node selector requirement on a label that an instance type determines."""

    key: str
    operator: str
    values: frozenset[str]

    def admits(self, labels: Mapping[str, str | None]) -> bool:
        """Whether a node of the instance type with these labels can match."""
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
    """The part of a node selection that depends on the instance type. Each expression is read once, not once per type.

    Attributes:
        annotated: instance types of the annotation; empty without the annotation.
        selector: `nodeSelector` entries on determined labels, in order, with their values as written.
        terms: distinct terms; None if all types match required node affinity.
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
        """Whether a node of the instance type with these labels can match the whole selection."""
        if self.annotated and labels[names.LABEL_INSTANCE_TYPE] not in self.annotated:
            return False
        return all(requirement.admits(labels) for requirement, _ in self.selector) and self.terms_admit(labels)

    def terms_admit(self, labels: Mapping[str, str | None]) -> bool:
        """Whether it can match required node affinity."""
        return self.terms is None or any(all(requirement.admits(labels) for requirement in term) for term in self.terms)


def _known_values(catalogue: Catalogue) -> frozenset[str]:
    """Label values of all instance types."""
    values = (value for entry in catalogue for value in labels_of(entry).values() if value is not None)
    return frozenset(values).union(_ACCELERATORS)


def _requirement(key: str, operator: str, values: Iterable[Any]) -> _Requirement:
    """Make a requirement. SageMaker HyperPod writes instance types as `ml.<type>`."""
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
    """Terms reduced to requirements on determined labels; None if a term has none, because all types match it."""
    found: dict[frozenset[_Requirement], None] = {}
    for term in terms:
        expressions = term.get("matchExpressions") or ()
        if not expressions and not term.get("matchFields"):
            continue  # it matches no node
        # Values that no type has become one value, so that equivalent terms become equal.
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
    """Whether the pod selects instance types by name, label or family, rather than only excluding some."""
    return bool(selection.annotated) or _selects_on(selection, _DETERMINED_LABELS)


def pins_types(selection: NodeSelection) -> bool:
    """Whether the node selection allows only named instance types, so that a hint would add nothing."""
    return _selects_on(selection, _INSTANCE_LABELS)


def _selects_on(selection: NodeSelection, labels: Collection[str]) -> bool:
    """Whether each way to match the node selection requires a named value of one of the labels."""
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
        catalogue: all instance types.
        selection: node selection of the pod.
        families: used if the pod selects no types: families allowed by policy or seen in ResourceSlices. None: not
            known, use `DEFAULT_FAMILIES`.

    Returns:
        The candidates; without any, a finding with the part of the selection that excludes all of them.
    """
    unknown = [name for name in selection.annotated if name not in catalogue]
    if unknown:
        return (), [_unknown_annotation(name, catalogue) for name in unknown]
    in_use = DEFAULT_FAMILIES if families is None else families
    any_family, requirements = names_types(selection), _Requirements.of(selection, catalogue)
    found = tuple(
        entry for entry in catalogue if (any_family or entry.family in in_use) and requirements.admits(labels_of(entry))
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
    """NEU110 for the first requirement that excludes all types alone, else for the whole selection."""
    types = [labels_of(entry) for entry in catalogue]
    for requirement, value in requirements.selector:
        if not any(requirement.admits(labels) for labels in types):
            return Finding(
                "NEU110",
                f"spec.nodeSelector[{requirement.key}]",
                f"nodeSelector {requirement.key}={short(value)} admits no Neuron instance type."
                f"{did_you_mean(value, catalogue.names())}",
                "Select a Neuron instance type, or drop the selector.",
                short(value),
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
    selected = [f"{short(key)}={short(value)}" for key, value in selectors]
    if len(selection.node_selector) > _MOST_SHOWN:
        selected.append(f"and {len(selection.node_selector) - _MOST_SHOWN} more")
    selected += [f"{names.ANNOTATION_INSTANCE_TYPE}={','.join(selection.annotated)}"] if selection.annotated else []
    return Finding(
        "NEU110",
        "spec",
        f"node selection ({', '.join(selected) or 'required node affinity'}) leaves none of the instance types in use"
        f" (families {', '.join(families)}).",
        "Make nodeSelector, node affinity and annotation agree.",
    )


def is_sagemaker(selection: NodeSelection) -> bool:
    """Whether the pod selects SageMaker HyperPod nodes, whose instance-type labels start with `ml.`."""
    values = [selection.node_selector.get(label, "") for label in _INSTANCE_LABELS]
    for term in selection.terms or ():
        for expression in term.get("matchExpressions") or ():
            if expression.get("key") in _INSTANCE_LABELS:
                values += [str(value) for value in expression.get("values") or ()]
    return any(value.startswith(_SAGEMAKER_PREFIX) for value in values)
