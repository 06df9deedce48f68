"""Finds the instance types on which a pod may run, by its annotation, nodeSelector and required node affinity.

Node selection follows `k8s.io/component-helpers/scheduling/corev1/nodeaffinity`: `nodeSelector` entries are ANDed with
required node affinity, whose terms are ORed. Labels that an instance type does not determine are assumed to match. A
term without expressions matches no node.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from conversion.claims.families import Families, choose_families, find_hint
from neuron import names
from neuron.api.nodes import Term, compares, matches_nothing
from neuron.findings import Finding, as_warning, did_you_mean, short
from neuron.hardware.instances import Catalogue, InstanceType

_AFFINITY: Final = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
_MOST_NAMED: Final = 64
"""Values of a node selection that are looked up in the catalogue for a message."""
_MOST_SHOWN = 16
"""Entries of a node selector that a message quotes."""
_PROVISIONERS: Final = ("karpenter.k8s.aws", "eks.amazonaws.com")
"""Domains of the labels that Karpenter and EKS Auto Mode give to nodes."""
_INSTANCE_LABELS: Final = (
    names.LABEL_INSTANCE_TYPE,
    names.LABEL_INSTANCE_TYPE_BETA,
    *(f"{domain}/instance-type" for domain in _PROVISIONERS),
)
_FAMILY_LABELS: Final = frozenset(f"{domain}/instance-family" for domain in _PROVISIONERS)
ACCELERATORS: Final = frozenset({"inferentia", "inferentia2", "trainium", "trainium2"})
"""Values of the accelerator labels that belong to known types only."""
_TYPE_NAME: Final = re.compile(r"(?P<family>(?P<category>[a-z]+)(?P<generation>[0-9]+)[^.]*)\.(?P<size>.+)")
"""As Karpenter splits the name of an instance type."""
_NEURON: Final = re.compile(r"(?:inf|trn)[0-9]", re.ASCII)
"""How the names of families with Neuron devices begin."""


class NodeSelection(Struct, frozen=True):
    """Node selection of a pod.

    Attributes:
        annotated: instance types of the annotation `neuron.aws.com/instance-type`; empty without the annotation.
        node_selector: `spec.nodeSelector`.
        terms: `nodeSelectorTerms` of required node affinity; None without required node affinity.
    """

    annotated: tuple[str, ...] = ()
    node_selector: Mapping[str, str] = msgspec.field(default_factory=dict)
    terms: Sequence[Term] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is selected."""
        return not self.annotated and not self.node_selector and self.terms is None


def labels_of(entry: InstanceType) -> dict[str, str | None]:
    """The node labels that an instance type determines; the value is None if it is not known."""
    match = _TYPE_NAME.fullmatch(entry.name)
    parts: Mapping[str, str] = match.groupdict() if match else {}
    labels: dict[str, str | None] = dict.fromkeys(_INSTANCE_LABELS, entry.name)
    for domain in _PROVISIONERS:
        labels |= {
            f"{domain}/instance-{part}": parts.get(part) for part in ("family", "category", "generation", "size")
        }
        labels[f"{domain}/instance-accelerator-name"] = entry.accelerator
        labels[f"{domain}/instance-accelerator-count"] = None if entry.devices is None else str(entry.devices)
    return labels


_DETERMINED: Final = frozenset(labels_of(next(iter(Catalogue()))))


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
            return not (self.operator == "In" and self.values.issubset(ACCELERATORS))
        match self.operator:
            case "In":
                return actual in self.values
            case "NotIn":
                return actual not in self.values
            case "DoesNotExist":
                return False
            case "Gt" | "Lt":
                # They compare whole numbers, and have one value.
                return compares(self.operator, actual, next(iter(self.values), ""))
            case _:
                return True

    def names(self, labels: Mapping[str, str | None]) -> bool:
        """Whether it requires the type of these labels, or its family, by name."""
        by_name = self.key in _INSTANCE_LABELS or self.key in _FAMILY_LABELS
        return by_name and self.operator == "In" and labels[self.key] in self.values


class _Requirements(Struct, frozen=True):
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
        known = _known_values(catalogue)
        return cls(
            frozenset(selection.annotated),
            tuple((_reduced(_requirement(key, "In", (value,)), known), value) for key, value in selector),
            None if selection.terms is None else _alternatives(selection.terms, known),
        )

    def admits(self, labels: Mapping[str, str | None]) -> bool:
        """Whether a node of the instance type with these labels can match the whole selection."""
        if self.annotated and labels[names.LABEL_INSTANCE_TYPE] not in self.annotated:
            return False
        return all(requirement.admits(labels) for requirement, _ in self.selector) and self.terms_admit(labels)

    def name(self, labels: Mapping[str, str | None]) -> bool:
        """Whether the selection has the name of the type with these labels, or of its family."""
        by_term = (requirement for term in self.terms or () for requirement in term)
        return labels[names.LABEL_INSTANCE_TYPE] in self.annotated or any(
            requirement.names(labels) for requirement in (*(each for each, _ in self.selector), *by_term)
        )

    def terms_admit(self, labels: Mapping[str, str | None]) -> bool:
        """Whether it can match required node affinity."""
        return self.terms is None or any(all(requirement.admits(labels) for requirement in term) for term in self.terms)


@functools.lru_cache(maxsize=4)
def _labelled(catalogue: Catalogue) -> tuple[tuple[InstanceType, Mapping[str, str | None]], ...]:
    """The types of a catalogue with their labels."""
    return tuple((entry, labels_of(entry)) for entry in catalogue)


@functools.lru_cache(maxsize=4)
def _known_values(catalogue: Catalogue) -> frozenset[str]:
    """Label values of all instance types."""
    values = (value for _, labels in _labelled(catalogue) for value in labels.values() if value is not None)
    return frozenset(values).union(ACCELERATORS)


def _requirement(key: str, operator: str, values: Iterable[object]) -> _Requirement:
    """Make a requirement. SageMaker HyperPod writes instance types as `ml.<type>`."""
    texts = frozenset(map(str, values))
    if key in _INSTANCE_LABELS:
        texts = frozenset(text.removeprefix(names.SAGEMAKER_PREFIX) for text in texts)
    return _Requirement(key, operator, texts)


def _reduced(requirement: _Requirement, known: frozenset[str]) -> _Requirement:
    if requirement.operator in ("Gt", "Lt"):
        return requirement
    values = requirement.values & known
    return (
        requirement
        if len(values) == len(requirement.values)
        else _Requirement(requirement.key, requirement.operator, values | {""})
    )


def _alternatives(terms: Iterable[Term], known: frozenset[str]) -> Collection[frozenset[_Requirement]] | None:
    """Terms reduced to requirements on determined labels; None if a term has none, because all types match it."""
    found: dict[frozenset[_Requirement], None] = {}
    for term in terms:
        if matches_nothing(term):
            continue
        # Values that no type has become one value, so that equivalent terms become equal.
        requirements = frozenset(
            _reduced(_requirement(each["key"], str(each.get("operator")), each.get("values") or ()), known)
            for each in term.get("matchExpressions") or ()
            if each.get("key") in _DETERMINED
        )
        if not requirements:
            return None
        found[requirements] = None
    return found


def names_types(selection: NodeSelection) -> bool:
    """Whether the pod selects instance types by name, label or family, rather than only excluding some."""
    return bool(selection.annotated) or _selects_on(selection, _DETERMINED)


def pins_types(selection: NodeSelection) -> bool:
    """Whether the node selection allows only named instance types, so that a hint would add nothing."""
    return _selects_on(selection, _INSTANCE_LABELS)


def _selects_on(selection: NodeSelection, labels: Collection[str]) -> bool:
    """Whether each way to match the node selection requires a named value of one of the labels."""
    if any(label in labels for label in selection.node_selector):
        return True
    return bool(selection.terms) and all(
        any(
            expression.get("key") in labels and expression.get("operator") == "In"
            for expression in term.get("matchExpressions") or ()
        )
        for term in selection.terms or ()
    )


class Candidates(Struct, frozen=True):
    """The instance types on which a pod may run.

    Attributes:
        types: in catalogue order.
        errors: why there are none.
        unknown: NEU218, if there are none because the pod selects types that look like Neuron types and are not in the
            catalogue: nothing can be said about them.
        warnings: NEU217.
        known: whether the pod, a policy, the cluster or a setting determines them. If not, nothing may exclude nodes
            of other types: no node affinity is added.
        all_known_types: whether nothing at all says which types there are: all released types are candidates.
    """

    types: tuple[InstanceType, ...]
    errors: tuple[Finding, ...] = ()
    unknown: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()
    known: bool = True
    all_known_types: bool = False


def find(catalogue: Catalogue, selection: NodeSelection, families: Families) -> Candidates:
    """The candidate instance types, in catalogue order.

    Args:
        catalogue: all instance types.
        families: used if the pod selects no types.

    Returns:
        The candidates; without any, a finding with the part of the selection that excludes all of them.
    """
    if selection.is_empty:
        return _found_without_selection(catalogue, families)
    return _find(catalogue, selection, families)


@functools.lru_cache(maxsize=16)
def _found_without_selection(catalogue: Catalogue, families: Families) -> Candidates:
    return _find(catalogue, NodeSelection(), families)


def _find(catalogue: Catalogue, selection: NodeSelection, families: Families) -> Candidates:
    wrong = [name for name in selection.annotated if name not in catalogue and not _NEURON.match(name)]
    if wrong:
        return Candidates((), tuple(_wrong_annotation(name, catalogue) for name in wrong))
    requirements = _Requirements.of(selection, catalogue)
    if names_types(selection):
        found = _admitted(catalogue, requirements, catalogue.families())
        if found:
            left_out = _unknown(NodeSelection(selection.annotated), catalogue, left=False)
            return Candidates(found, warnings=tuple(map(as_warning, left_out)))
        if unknown := tuple(_unknown(selection, catalogue, left=True)):
            return Candidates((), unknown=unknown)
        return Candidates((), (_nothing_left(selection, requirements, catalogue, ()),))
    everything = catalogue.families()
    choice = choose_families(families, find_hint(selection.node_selector, selection.terms, everything), everything)
    found = _admitted(catalogue, requirements, choice.families)
    if not found:
        nothing = _nothing_left(selection, requirements, catalogue, choice.families)
        return Candidates((), (nothing,), warnings=choice.warnings)
    return Candidates(found, warnings=choice.warnings, known=choice.known, all_known_types=choice.everything)


def _admitted(catalogue: Catalogue, requirements: _Requirements, families: Collection[str]) -> tuple[InstanceType, ...]:
    if requirements.terms is not None:
        return _evaluated(catalogue, requirements, families)
    # Without affinity there are few different selections: values that no type has are one value.
    selector = tuple((requirement, "") for requirement, _ in requirements.selector)
    return _remembered(catalogue, _Requirements(requirements.annotated, selector, None), tuple(families))


def _evaluated(
    catalogue: Catalogue, requirements: _Requirements, families: Collection[str]
) -> tuple[InstanceType, ...]:
    return tuple(
        entry
        for entry, labels in _labelled(catalogue)
        if entry.family in families and requirements.admits(labels) and (entry.released or requirements.name(labels))
    )


_remembered = functools.lru_cache(maxsize=64)(_evaluated)


def _unknown(selection: NodeSelection, catalogue: Catalogue, *, left: bool) -> Iterator[Finding]:
    """NEU218 for each instance type or family that a pod selects and that is not in the catalogue.

    Only names that look like those with Neuron devices. `left`: whether the pod is left as it is.
    """
    families = catalogue.families()
    by_annotation = f"metadata.annotations[{names.ANNOTATION_INSTANCE_TYPE}]"
    named = [(by_annotation, names.ANNOTATION_INSTANCE_TYPE, name) for name in selection.annotated]
    named += [(f"spec.nodeSelector[{key}]", key, value) for key, value in selection.node_selector.items()]
    for term in selection.terms or ():
        for each in term.get("matchExpressions") or ():
            if each.get("operator") == "In":
                key = str(each.get("key"))
                named += [(_AFFINITY, key, str(value)) for value in (each.get("values") or ())[:_MOST_SHOWN]]
    told: set[str] = set()
    for path, key, value in named[:_MOST_NAMED]:
        name = value.removeprefix(names.SAGEMAKER_PREFIX)
        is_family = key in _FAMILY_LABELS
        if not (is_family or key in _INSTANCE_LABELS or path == by_annotation) or name in told:
            continue
        if len(told) == _MOST_SHOWN:
            return
        if _NEURON.match(name) and (name not in families if is_family else name not in catalogue):
            told.add(name)
            family = name.partition(".")[0]
            alike = [each for each in catalogue.suggestions(name) if each.partition(".")[0] == family]
            then = "the pod is left as it is" if left else "the claim is made for the other types"
            message = f"{short(name)} is not in the catalogue of instance types: {then}.{did_you_mean(name, alike)}"
            fix = in_catalogue(name)
            if name in families:
                first = next(each.name for each in catalogue if each.family == name)
                fix = f"{name} is a family: name its types, such as {first}."
            yield Finding("NEU218", path, message, fix, short(name))


def in_catalogue(name: str) -> str:
    """The fix of NEU218. `name`: of the instance type."""
    entry = f"{{name: {short(name)}, devices: <number>, coresPerDevice: <number>}}"
    return f"Correct the name, or add {entry} to the types of an InstanceTypeCatalog (docs/policies.md)."


def _wrong_annotation(name: str, catalogue: Catalogue) -> Finding:
    return Finding(
        "NEU109",
        f"metadata.annotations[{names.ANNOTATION_INSTANCE_TYPE}]",
        f"annotation {names.ANNOTATION_INSTANCE_TYPE} names {name!r}, which is no known Neuron instance type."
        f"{did_you_mean(name, catalogue.suggestions(name))}",
        "Use a type such as trn2.48xlarge.",
        name,
    )


_FILL_IN: Final = "It looks like a placeholder: fill it in first, for example with envsubst."


def _nothing_left(
    selection: NodeSelection, requirements: _Requirements, catalogue: Catalogue, families: Sequence[str]
) -> Finding:
    """NEU110 for the first requirement that excludes all types alone, else for the whole selection.

    Args:
        catalogue: all instance types.
        families: the families in use; empty if the selection names types itself.
    """
    types = [labels for _, labels in _labelled(catalogue)]
    for requirement, value in requirements.selector:
        if not any(requirement.admits(labels) for labels in types):
            return Finding(
                "NEU110",
                f"spec.nodeSelector[{requirement.key}]",
                f"nodeSelector {requirement.key}={short(value)} admits no Neuron instance type."
                f"{did_you_mean(value, catalogue.suggestions(value))}",
                _FILL_IN if "${" in value or "{{" in value else "Select a Neuron instance type, or drop the selector.",
                short(value),
            )
    if not any(requirements.terms_admit(labels) for labels in types):
        return Finding(
            "NEU110",
            _AFFINITY,
            "required node affinity admits no Neuron instance type.",
            "Allow a Neuron instance type in one of its terms.",
        )
    in_use = f" in use (families {', '.join(families)})" if families else ""
    selectors = itertools.islice(selection.node_selector.items(), _MOST_SHOWN)
    selected = [f"{short(key)}={short(value)}" for key, value in selectors]
    if len(selection.node_selector) > _MOST_SHOWN:
        selected.append(f"and {len(selection.node_selector) - _MOST_SHOWN} more")
    selected += [f"{names.ANNOTATION_INSTANCE_TYPE}={','.join(selection.annotated)}"] if selection.annotated else []
    return Finding(
        "NEU110",
        "spec",
        f"node selection ({', '.join(selected) or 'required node affinity'}) leaves none of the instance types"
        f"{in_use}.",
        "Make nodeSelector, node affinity and annotation agree.",
    )


def is_sagemaker(selection: NodeSelection) -> bool:
    """Whether the pod selects SageMaker HyperPod nodes, whose instance-type labels start with `ml.`."""
    values = [selection.node_selector.get(label, "") for label in _INSTANCE_LABELS]
    for term in selection.terms or ():
        for expression in term.get("matchExpressions") or ():
            if expression.get("key") in _INSTANCE_LABELS:
                values += [str(value) for value in expression.get("values") or ()]
    return any(value.startswith(names.SAGEMAKER_PREFIX) for value in values)
