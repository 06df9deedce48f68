"""Compiles the expressions of policy files: from models to rules, with every problem and its line."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Final

from conversion.claims import templates
from conversion.claims.mapped_templates import MappedTemplate
from conversion.claims.scheduling import SchedulingHints
from conversion.claims.templates import Template
from conversion.objects.pod_places import path_text
from kubecel.compile import Cel, Program
from kubecel.errors import CelError, CelTypeError
from kubecel.types import BOOL, DYN, JSON_PATCH, NULL, OBJECT, STRING, Type, list_of
from neuron import names
from neuron.api.claim_reader import read_claim
from policies.judging.conditions import CompiledCondition, SharedExpression, Sharing
from policies.judging.rules import (
    Binding,
    Check,
    CompiledMutation,
    Exemption,
    HintRule,
    MutatingRule,
    PlacedCase,
    PodRule,
    ShapeOf,
    TemplateRule,
    ValidatingRule,
)
from policies.judging.subjects import types_with
from policies.judging.type_checks import unknown_fields
from policies.schema import kinds as schema
from policies.schema.documents import Path, PolicyDocument, PolicyProblem
from policies.schema.pods import InlineTemplate, PreferredSchedulingTerm, TemplateMapping, manifest

_AUTHORIZER: Final = "authorizer"
_NO_AUTHORIZER: Final = (
    "'authorizer' is not known here: only conditions, variables, validations, audit annotations and mutations of"
    " policies that validate or change objects have it"
)
_CLOCK: Final = re.compile(r"(?<!variables\.)now\b")
_NO_CLOCK: Final = "CEL has no clock. A policy that holds at some times has spec.schedule; exceptions have schedule too"


_WORD: Final = re.compile(r"\w+", re.ASCII)
BIND: Final = re.compile(r"\bcel\s*\.\s*bind\s*\(")
_NO_BIND: Final = "the API server has cel.bind for device selectors only; declare one of spec.variables"
ONLY_OURS: Final = frozenset({"neuron", "claim", "template"})
"""Variables that expressions of the API server's own kinds do not have."""
_NOT_ASKING: Final = frozenset({_AUTHORIZER})
"""What messages do not have, as in the API server, nor policies for conversion and hints, which cannot wait."""


def _missing(name: str) -> str:
    if name == _AUTHORIZER:
        return _NO_AUTHORIZER
    if name == "params":
        return (
            "'params' is not known, because spec.paramKind is missing: add apiVersion and kind of the parameter objects"
        )
    return f"the API server has no variable '{name}': write this policy as a ValidatingPolicy of {schema.API_VERSION}"


class ExpressionCompiler:
    """Compiles the expressions of one document.

    Attributes:
        failed: whether a problem was found. Then the rule must not be used.
        sources: what was compiled, with its path.
    """

    def __init__(self, engine: Cel, document: PolicyDocument, sharing: Sharing, problems: list[PolicyProblem]) -> None:
        """What is wrong, with file and line, is added to `problems`."""
        self._engine = engine
        self._document = document
        self._sharing = sharing
        self._problems = problems
        self.failed = False
        self.sources: list[tuple[Path, str]] = []
        self._variables: dict[str, Type] = {}
        self._is_api_kind = False
        self._later: set[str] = set()
        self._missing: frozenset[str] = frozenset()
        self._params: Mapping[str, object] | None = None
        self._identities: dict[str, SharedExpression | None] = {}

    def validating(
        self, policy: schema.ValidatingAdmissionPolicy | schema.ValidatingPolicy, bindings: tuple[Binding, ...]
    ) -> ValidatingRule:
        """Compile a policy for validation."""
        spec = policy.spec
        if isinstance(spec, schema.ValidatingPolicySpec):
            self._params = spec.params
        else:
            self._is_api_kind = True
            self._missing = ONLY_OURS if spec.param_kind is not None else ONLY_OURS | {"params"}
        conditions = self._conditions(("spec", "matchConditions"), spec.match_conditions)
        variables = self._declare(spec.variables)
        checks = [self._check(at, validation) for at, validation in enumerate(spec.validations)]
        audit = self._audit(spec.audit_annotations)
        ours = spec if isinstance(spec, schema.ValidatingPolicySpec) else schema.ValidatingPolicySpec.model_construct()
        exemptions = tuple(
            Exemption(
                each.name,
                each.owner,
                each.reason,
                each.expires,
                self._conditions(("spec", "exceptions", at, "matchConditions"), each.match_conditions),
                each.schedule,
            )
            for at, each in enumerate(ours.exceptions)
        )
        return ValidatingRule(
            policy.metadata.name,
            policy.kind,
            self._document,
            ours.severity,
            self._sharing.match(spec.match_constraints),
            bindings,
            conditions,
            variables,
            tuple(check for check in checks if check is not None),
            audit,
            spec.failure_policy == "Fail",
            None if spec.param_kind is not None else ours.params,
            exemptions,
            ours.tests,
            self._identities,
            ours.schedule,
        )

    def mutating(
        self,
        policy: schema.MutatingAdmissionPolicy,
        bindings: tuple[Binding, ...],
        shape: ShapeOf,
        tests: tuple[PlacedCase, ...] = (),
    ) -> MutatingRule:
        """Compile a policy that changes objects."""
        spec = policy.spec
        self._is_api_kind = True
        self._missing = ONLY_OURS if spec.param_kind is not None else ONLY_OURS | {"params"}
        conditions = self._conditions(("spec", "matchConditions"), spec.match_conditions)
        variables = self._declare(spec.variables)
        compiled = []
        for at, mutation in enumerate(spec.mutations):
            if mutation.json_patch is not None:
                path: Path = ("spec", "mutations", at, "jsonPatch", "expression")
                program = self._compile(path, mutation.json_patch.expression, list_of(JSON_PATCH), mutates=True)
            elif mutation.apply_configuration is not None:
                path = ("spec", "mutations", at, "applyConfiguration", "expression")
                program = self._compile(path, mutation.apply_configuration.expression, OBJECT, mutates=True)
            if program is not None:
                compiled.append(CompiledMutation(program, mutation.apply_configuration is not None))
        return MutatingRule(
            policy.metadata.name,
            self._document,
            self._sharing.match(spec.match_constraints),
            bindings,
            conditions,
            variables,
            tuple(compiled),
            spec.failure_policy == "Fail",
            spec.reinvocation_policy == "IfNeeded",
            shape,
            tests,
        )

    def _declare(self, declared: tuple[schema.Variable, ...]) -> dict[str, Program]:
        """Compile `spec.variables`; expressions that are compiled later can read them."""
        variables: dict[str, Program] = {}
        self._later = {variable.name for variable in declared}
        for at, variable in enumerate(declared):
            program = self._compile(("spec", "variables", at, "expression"), variable.expression, DYN)
            # The API server accepts it in its own kinds; the last one counts.
            if variable.name in variables and not self._is_api_kind:
                self._say(("spec", "variables", at, "name"), f"the variable '{variable.name}' is declared twice.")
            if program is not None:
                variables[variable.name] = program
                self._identities[variable.name] = self._sharing.identity(program, DYN, self._identities)
            # If it does not compile, the expressions that read it must not be reported as well.
            self._variables[variable.name] = DYN if program is None else program.result
            self._later.discard(variable.name)
        return variables

    def pods(self, policy: schema.ConversionPolicy) -> PodRule:
        """Compile a policy for conversion."""
        conditions = self._pod_conditions(policy.spec)
        name = policy.metadata.name
        mapped = tuple(_mapped(name, each) for each in policy.spec.templates)
        return PodRule(name, self._document, conditions, policy.spec, mapped)

    def hints(self, policy: schema.SchedulingHintPolicy) -> HintRule:
        """Compile a policy for scheduling hints."""
        conditions = self._pod_conditions(policy.spec)
        name = policy.metadata.name
        return HintRule(name, self._document, conditions, policy.spec, scheduling_hints(name, policy.spec))

    def claim_template(self, policy: schema.ClaimTemplate, spec: Mapping[str, object]) -> TemplateRule:
        """Compile a ClaimTemplate.

        Args:
            spec: of its template, with the values of its parameters.
        """
        conditions = self._pod_conditions(policy.spec)
        name, version = policy.metadata.name, policy.spec.version
        made = dataclasses.replace(_inline(policy.spec.template, name, spec), version=version)
        return TemplateRule(name, self._document, conditions, policy.spec, made)

    def _pod_conditions(
        self, spec: schema.ConversionPolicySpec | schema.SchedulingHintPolicySpec | schema.ClaimTemplateSpec
    ) -> tuple[CompiledCondition, ...]:
        """The conditions of a policy that matches pods; conversion cannot wait for answers about permissions."""
        self._missing = _NOT_ASKING
        return self._conditions(("spec", "match", "conditions"), spec.match.conditions)

    def _conditions(self, path: Path, conditions: tuple[schema.MatchCondition, ...]) -> tuple[CompiledCondition, ...]:
        compiled = []
        for at, condition in enumerate(conditions):
            program = self._compile((*path, at, "expression"), condition.expression, BOOL)
            if program is not None:
                shared = self._sharing.identity(program, BOOL, self._identities)
                compiled.append(CompiledCondition(condition.name, program, shared))
        return tuple(compiled)

    def _check(self, at: int, validation: schema.Validation) -> Check | None:
        path: Path = ("spec", "validations", at)
        program = self._compile((*path, "expression"), validation.expression, BOOL)
        wording = validation.message_expression
        wording_program = wording and self._compile((*path, "messageExpression"), wording, STRING, missing=_NOT_ASKING)
        if program is None:
            return None
        message = validation.message or f"failed expression: {validation.expression.strip()}"
        shared = self._sharing.identity(program, BOOL, self._identities)
        return Check(program, message, wording_program or None, validation.reason, shared)

    def _audit(self, annotations: tuple[schema.AuditAnnotation, ...]) -> dict[str, Program]:
        compiled = {}
        for at, annotation in enumerate(annotations):
            path: Path = ("spec", "auditAnnotations", at)
            program = self._compile((*path, "valueExpression"), annotation.value_expression, DYN)
            if program is not None and program.result not in (STRING, NULL):
                where: Path = (*path, "valueExpression")
                message = f"{path_text(where)}: the expression is of type {program.result}, but must return string or"
                self._say(where, f"{message} null: write string(…).")
            if program is not None:
                compiled[annotation.key] = program
        return compiled

    def _compile(
        self,
        path: Path,
        source: str,
        result: Type,
        *,
        mutates: bool = False,
        missing: frozenset[str] = frozenset(),
    ) -> Program | None:
        self.sources.append((path, source))
        absent = self._missing | missing
        known = types_with(self._variables, absent)
        try:
            if mutates:
                program = self._engine.compile(source, known, result=result, mutates=True)
            else:
                program = self._sharing.compiled(
                    source, result, known, lambda: self._engine.compile(source, known, result=result)
                )
            self._check_program(program, result)
        except CelError as caught:
            error = caught
            word = None if error.offset is None else _WORD.match(source, error.offset)
            if word is not None and word[0] in absent:
                error = CelTypeError(_missing(word[0]), error.offset, source)
            if word is not None and word[0] in self._later and source[: error.offset].endswith("variables."):
                said = f"variables.{word[0]} has no value here: a variable reads only those that stand before it"
                error = CelTypeError(said, error.offset, source)
            if error.offset is not None and _CLOCK.match(source, error.offset):
                error = CelTypeError(_NO_CLOCK, error.offset, source)
            line = self._document.text_lines.get(path, self._document.line(path)) + error.line - 1
            where = "" if error.offset is None else f" (column {error.column} of that line of the expression)"
            end = "" if error.message.endswith((".", "?")) else "."
            excerpt = f"\n{error.excerpt}" if error.excerpt else ""
            message = f"{path_text(path)}{where}: {error.message}{end}{excerpt}"
            self._problems.append(PolicyProblem(self._document.file, line, message))
            self.failed = True
            return None
        return program

    def _check_program(self, program: Program, result: Type) -> None:
        """Check what the API server checks of its own kinds, and the fields of inline parameters.

        Raises:
            CelTypeError: with the place.
        """
        source = program.source
        if self._params is not None:
            for offset, wrong in unknown_fields(program.syntax, self._params):
                raise CelTypeError(wrong, offset, source)
        if not self._is_api_kind:
            return
        if program.result != result and result != DYN:
            hint = ": compare it" if result == BOOL else ""
            wrong = f"the expression is of type {program.result}, and the API server needs {result}{hint}"
            raise CelTypeError(wrong, None, source)
        bound = BIND.search(source)
        if bound is not None:
            raise CelTypeError(_NO_BIND, bound.start(), source)

    def _say(self, path: Path, message: str) -> None:
        self._problems.append(self._document.problem(path, message))
        self.failed = True


def _mapped(policy: str, mapping: TemplateMapping) -> MappedTemplate:
    demand, inline = mapping.demand, mapping.template
    made = spec = None
    if inline is not None:
        made = _inline(inline, policy, inline.current_spec)
        spec = read_claim(templates.KIND, templates.API_VERSION, made.spec)[0]
    return MappedTemplate(
        policy,
        mapping.template_name,
        (names.RESOURCE_NEURONCORE,) if demand.cores else (names.RESOURCE_NEURON, names.RESOURCE_NEURONDEVICE),
        demand.cores or demand.devices or 0,
        demand.logical_neuron_core,
        demand.ultraserver_mode,
        made,
        spec,
    )


def _inline(inline: InlineTemplate, policy: str, spec: Mapping[str, object]) -> Template:
    """The template that a policy carries; `spec` as in `resource.k8s.io/v1`."""
    metadata = inline.metadata
    return Template(metadata.name, spec, templates.digest(spec), policy, metadata.labels, metadata.annotations)


def scheduling_hints(name: str, spec: schema.SchedulingHintPolicySpec) -> SchedulingHints:
    """The hints that a policy sets; None for those that it leaves to the server's settings."""
    tolerations, affinity, scheduler = spec.tolerations, spec.node_affinity, spec.scheduler_name
    labels, sets = spec.labels, spec.leader_worker_set
    return SchedulingHints(
        policy=name,
        toleration=None if tolerations is None else tolerations.action == "Add",
        affinity=None if affinity is None else affinity.action == "Add",
        scheduler=None if scheduler is None else scheduler.action == "Replace",
        exclusive_topology=sets is None or sets.exclusive_topology == "On",
        tolerations=tuple(manifest(each) for each in (tolerations.items if tolerations else ())),
        required=tuple(manifest(each) for each in (affinity.required if affinity else ())),
        preferred=tuple(_preferred(each) for each in (affinity.preferred if affinity else ())),
        scheduler_name=(scheduler.name if scheduler else None) or names.DEFAULT_SCHEDULER,
        priority_class=spec.priority_class_name.name if spec.priority_class_name else "",
        replaces_priority_class=spec.priority_class_name is not None and spec.priority_class_name.action == "Replace",
        labels=dict(labels.items) if labels else {},
        replaces_labels=labels is not None and labels.action == "Replace",
    )


def _preferred(term: PreferredSchedulingTerm) -> dict[str, object]:
    expressions = [manifest(each) for each in term.preference.match_expressions]
    return {"weight": term.weight, "preference": {"matchExpressions": expressions}}
