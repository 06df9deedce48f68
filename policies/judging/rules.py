"""Policies with compiled expressions, and the set in force. `compiler` makes rules, `evaluate` evaluates them."""

import dataclasses
import datetime as dt
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import ClassVar, Final, Generic, TypeAlias, TypeVar

from conversion.claims.mapped_templates import MappedTemplate
from conversion.claims.scheduling import SchedulingHints
from conversion.claims.templates import Template
from conversion.findings.verification import Sources
from kubecel.compile import Program
from neuron import names
from neuron.hardware.instances import Catalogue
from policies.judging.conditions import CompiledCondition, SharedExpression
from policies.patching.structured_merge import Shape
from policies.schema import kinds as schema
from policies.schema.base import MatchResources, Window
from policies.schema.documents import PolicyDocument

_AUTHORIZER: Final = "authorizer"
_ALWAYS_KNOWN: Final = (("metadata", "name"), ("metadata", "labels"))
"""Fields that the webhook knows of every Namespace, also of one that is new."""


SETTINGS: Final = {
    "mode": "mode",
    "families": "families",
    "deviceClass": "device_class",
    "logicalNeuronCore": "logical_neuron_core",
    "unconnected": "unconnected",
    "roundsCores": "rounds_cores",
    "efa": "efa",
    "templates": "templates",
    "enrichesClaims": "enriches_claims",
}
"""Fields of ConversionPolicies that are combined one by one, as in the file and as attribute. `locked`, `queued` and
`bindsClaims` belong to `mode`."""


class Compiled:
    """A policy with compiled expressions."""

    __slots__ = ()

    def programs(self) -> Iterator[Program]:
        """Every expression of the policy."""
        raise NotImplementedError

    def read(self, variable: str) -> Iterator[tuple[str, ...]]:
        """The paths of the fields of a variable that expressions read, below the variable."""
        paths = (path for program in self.programs() for path in program.references)
        return (path[1:] for path in paths if path[0] == variable)

    @property
    def asks(self) -> bool:
        """Whether an expression reads `authorizer`."""
        return any(True for _ in self.read(_AUTHORIZER))

    def reads_whole_namespace(self) -> bool:
        """Whether an expression reads more of `namespaceObject` than its name and labels."""
        return any(path[:2] not in _ALWAYS_KNOWN for path in self.read("namespaceObject"))


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """A validation: the expression that must be true, and the message if it is not."""

    program: Program
    message: str
    message_program: Program | None
    reason: str
    shared: SharedExpression | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Exemption:
    """An exception: the requests that it admits, when, and until when."""

    name: str
    owner: str
    reason: str
    expires: dt.datetime
    conditions: tuple[CompiledCondition, ...]
    schedule: tuple[Window, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Parameters:
    """The parameter objects of a binding (`paramRef`).

    Attributes:
        ref: name or selector, and what happens without a parameter object.
        objects: all objects of the policy's `paramKind`.
    """

    ref: schema.ParamRef
    objects: tuple[Mapping[str, object], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Binding:
    """Where a policy applies, and its actions there. `name` is empty for a policy without binding object.

    `parameters` is None for a binding without parameters.
    """

    name: str
    match: MatchResources | None
    actions: tuple[str, ...]
    parameters: Parameters | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ValidatingRule(Compiled):
    """A compiled policy for validation.

    Attributes:
        name: `metadata.name`.
        kind: ValidatingPolicy or ValidatingAdmissionPolicy.
        bindings: where it applies.
        variables: `variables.*` in order.
        audit: audit annotations by key.
        fails_closed: whether an expression that cannot be evaluated counts as a violation.
        params: the value of `params`, unless bindings name parameter objects; None with `paramKind`.
        shared: identities of the variables, by name.
        schedule: when it is in force; empty: always.
        actions: of all bindings, sorted and separated by commas: a label of metrics.
        narrows: whether a binding matches fewer requests than the policy.
        parametrised: whether a binding has parameters.
        reads_namespace: whether an expression reads more of the Namespace than its name and labels.
    """

    name: str
    kind: str
    document: PolicyDocument
    severity: str
    match: MatchResources
    bindings: tuple[Binding, ...]
    conditions: tuple[CompiledCondition, ...]
    variables: Mapping[str, Program]
    checks: tuple[Check, ...]
    audit: Mapping[str, Program]
    fails_closed: bool
    params: Mapping[str, object] | None
    exemptions: tuple[Exemption, ...]
    tests: tuple[schema.Case, ...]
    shared: Mapping[str, SharedExpression | None] = dataclasses.field(default_factory=dict)
    schedule: tuple[Window, ...] = ()
    actions: str = dataclasses.field(init=False, default="")
    narrows: bool = dataclasses.field(init=False, default=False)
    parametrised: bool = dataclasses.field(init=False, default=False)
    reads_namespace: bool = dataclasses.field(init=False, default=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads_namespace", self.reads_whole_namespace())
        actions = {action for binding in self.bindings for action in binding.actions}
        object.__setattr__(self, "actions", ",".join(sorted(actions)))
        object.__setattr__(self, "narrows", any(each.match is not None for each in self.bindings))
        object.__setattr__(self, "parametrised", any(each.parameters is not None for each in self.bindings))

    def programs(self) -> Iterator[Program]:
        yield from self.variables.values()
        yield from self.audit.values()
        conditions = (self.conditions, *(each.conditions for each in self.exemptions))
        yield from (condition.program for each in conditions for condition in each)
        for check in self.checks:
            yield check.program
            if check.message_program is not None:
                yield check.message_program


@dataclasses.dataclass(frozen=True, slots=True)
class CompiledMutation:
    """An expression that changes objects; `applies`: it returns an apply configuration, and else a JSON patch."""

    program: Program
    applies: bool


@dataclasses.dataclass(frozen=True, slots=True)
class PlacedCase:
    """A case of a mutating policy, and where it is: the document, and the position in its `spec.tests`."""

    document: PolicyDocument
    at: int
    case: schema.MutationCase


_Spec = TypeVar("_Spec", bound=schema.ConversionPolicySpec | schema.SchedulingHintPolicySpec | schema.ClaimTemplateSpec)
ShapeOf: TypeAlias = Callable[[str, str], Shape]
"""apiVersion and kind -> how objects of the kind are merged."""


@dataclasses.dataclass(frozen=True, slots=True)
class MutatingRule(Compiled):
    """A compiled policy that changes objects.

    Attributes:
        name: `metadata.name`.
        bindings: where it applies.
        variables: `variables.*` in order.
        fails_closed: whether a request is denied if an expression or a patch fails.
        reinvoked: whether it runs a second time, after conversion.
        shape: how objects of a kind are merged.
        reads_namespace: whether an expression reads more of the Namespace than its name and labels.
    """

    name: str
    document: PolicyDocument
    match: MatchResources
    bindings: tuple[Binding, ...]
    conditions: tuple[CompiledCondition, ...]
    variables: Mapping[str, Program]
    mutations: tuple[CompiledMutation, ...]
    fails_closed: bool
    reinvoked: bool
    shape: ShapeOf
    tests: tuple[PlacedCase, ...] = ()
    reads_namespace: bool = dataclasses.field(init=False, default=False)

    kind: ClassVar[str] = "MutatingAdmissionPolicy"

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads_namespace", self.reads_whole_namespace())

    def programs(self) -> Iterator[Program]:
        yield from self.variables.values()
        yield from (condition.program for condition in self.conditions)
        yield from (mutation.program for mutation in self.mutations)


@dataclasses.dataclass(frozen=True, slots=True)
class _ForPods(Compiled, Generic[_Spec]):
    """A compiled policy that matches pods by conditions."""

    name: str
    document: PolicyDocument
    conditions: tuple[CompiledCondition, ...]
    spec: _Spec

    def programs(self) -> Iterator[Program]:
        return (condition.program for condition in self.conditions)

    @property
    def reads_namespace(self) -> bool:
        """Whether a condition reads more of the Namespace than its name and labels."""
        return self.reads_whole_namespace()

    @property
    def fails_closed(self) -> bool:
        """Whether a pod for which the policy is, is denied if the conditions cannot be evaluated."""
        return self.spec.failure_policy == "Fail"


@dataclasses.dataclass(frozen=True, slots=True)
class PodRule(_ForPods[schema.ConversionPolicySpec]):
    """A compiled policy for conversion.

    Attributes:
        templates: its mappings as conversion reads them.
        settings: those of `SETTINGS` that the file has. A setting of a pod is that of the first matching policy that
            has it.
    """

    templates: tuple[MappedTemplate, ...] = ()
    settings: frozenset[str] = dataclasses.field(init=False, default=frozenset())

    def __post_init__(self) -> None:
        written = self.spec.model_fields_set
        found = {setting for setting, attribute in SETTINGS.items() if attribute in written}
        object.__setattr__(self, "settings", frozenset(found | {"mode"} if "queued" in written else found))

    def further(self, decided: Collection[str]) -> list[str]:
        """Its settings that earlier policies have not decided, in the order of `SETTINGS`."""
        return [setting for setting in SETTINGS if setting in self.settings and setting not in decided]

    @property
    def fails_closed(self) -> bool:
        """Whether a pod is denied if the conditions cannot be evaluated.

        The default is true for a locked policy only: the others set defaults, which annotations can change.
        """
        return self.spec.locked if self.spec.failure_policy is None else self.spec.failure_policy == "Fail"


@dataclasses.dataclass(frozen=True, slots=True)
class HintRule(_ForPods[schema.SchedulingHintPolicySpec]):
    """A compiled policy for scheduling hints; `hints` are its settings as conversion reads them."""

    hints: SchedulingHints


@dataclasses.dataclass(frozen=True, slots=True)
class TemplateRule(_ForPods[schema.ClaimTemplateSpec]):
    """A compiled ClaimTemplate; `template` is what the webhook creates."""

    template: Template


AnyPodRule: TypeAlias = PodRule | HintRule | TemplateRule
"""Policies that match pods."""


@dataclasses.dataclass(frozen=True, slots=True)
class PolicySet:
    """All policies in force.

    Attributes:
        validating: for validation, in the order of files.
        conversions: for conversion, by `spec.order`.
        hints: for scheduling hints, by `spec.order`.
        catalogue: instance types, with those that policies add or change.
        digest: of all files; empty if there are none.
        notes: about files that are read in another way than they are written.
        mutating: for changes of objects, in the order of files.
        templates: named templates, in the order of files; their names differ.
    """

    validating: tuple[ValidatingRule, ...] = ()
    conversions: tuple[PodRule, ...] = ()
    catalogue: Catalogue = dataclasses.field(default_factory=Catalogue)
    digest: str = ""
    files: int = 0
    hints: tuple[HintRule, ...] = ()
    notes: tuple[str, ...] = ()
    mutating: tuple[MutatingRule, ...] = ()
    templates: tuple[TemplateRule, ...] = ()

    @property
    def rules(self) -> tuple[ValidatingRule | MutatingRule | AnyPodRule, ...]:
        return (*self.validating, *self.mutating, *self.conversions, *self.hints, *self.templates)

    @property
    def asks(self) -> bool:
        """Whether a policy reads `authorizer`."""
        return any(rule.asks for rule in (*self.validating, *self.mutating))

    @property
    def unconnected(self) -> bool:
        """Whether a policy allows devices that are not connected."""
        return any(rule.spec.unconnected == "Allow" for rule in self.conversions)

    @property
    def network_classes(self) -> frozenset[str]:
        """DeviceClasses of EFA interfaces: that of AWS's network driver, and those that policies name."""
        return self.efa_classes | {names.EFA_DEVICE_CLASS}

    @property
    def efa_classes(self) -> frozenset[str]:
        """DeviceClasses from which ConversionPolicies request EFA interfaces."""
        return frozenset(rule.spec.efa.device_class for rule in self.conversions if rule.spec.efa is not None)

    def sources(self, device_class: str) -> Sources:
        """From what conversion requests devices. `device_class`: the server's."""
        classes = {rule.spec.device_class for rule in self.conversions if rule.spec.device_class}
        templates = frozenset(template.name for rule in self.conversions for template in rule.templates)
        return Sources(frozenset(classes | {device_class}), self.efa_classes, templates)
