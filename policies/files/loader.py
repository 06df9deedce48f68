"""Loads a folder of policy files as one `PolicySet`, or reports every problem in it."""

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from conversion.claims.instance_fit import most_interfaces
from kubecel.budget import DEFAULT_LIMITS, Clock
from kubecel.compile import Cel
from neuron import names
from neuron.findings import did_you_mean, few
from neuron.hardware.instances import Topology
from policies.files import claim_templates, reading
from policies.files.api_types import DEFINITION, ApiTypes, Served, nothing_served
from policies.files.cases import CaseTime
from policies.files.folders import PolicyError, digest, read_folder
from policies.judging import matching, type_checks
from policies.judging.compiler import ExpressionCompiler
from policies.judging.conditions import Sharing
from policies.judging.rules import (
    Binding,
    HintRule,
    MutatingRule,
    Parameters,
    PlacedCase,
    PodRule,
    PolicySet,
    TemplateRule,
    ValidatingRule,
)
from policies.judging.subjects import SAME_FOR_ALL
from policies.schema import documents
from policies.schema import kinds as schema
from policies.schema.documents import PolicyDocument, PolicyProblem

_EXPRESSION_LIMITS: Final = dataclasses.replace(
    DEFAULT_LIMITS, expression_bytes=100_000, comprehension_nesting=30, seconds=10.0
)
"""Of expressions that admins write: those of the API server, whose parser has the limit of 100,000 characters.

Costs and work bound the constants that are computed at load; the time is long, so that a busy machine refuses no file.
"""
_CONNECTED_OTHERWISE: Final = {Topology.TORUS, Topology.SWITCH}
_AnyBinding: TypeAlias = schema.ValidatingAdmissionPolicyBinding | schema.MutatingAdmissionPolicyBinding
_BoundPolicy: TypeAlias = schema.ValidatingAdmissionPolicy | schema.MutatingAdmissionPolicy
_BOUND: Final[tuple[tuple[type[_BoundPolicy], type[_AnyBinding]], ...]] = (
    (schema.ValidatingAdmissionPolicy, schema.ValidatingAdmissionPolicyBinding),
    (schema.MutatingAdmissionPolicy, schema.MutatingAdmissionPolicyBinding),
)
"""The kinds of policies that bindings put in force, and of the bindings."""


def load_folder(folder: Path, *, run_tests: bool = True) -> PolicySet:
    """Read, check, compile and test all policy files in a folder.

    Raises:
        PolicyError: a file has a problem.
    """
    return load(read_folder(folder), run_tests=run_tests)


def load(
    files: Mapping[str, bytes],
    *,
    engine: Cel | None = None,
    clock: Clock = time.monotonic,
    run_tests: bool = True,
    case_time: CaseTime | None = None,
    served: Served = nothing_served,
) -> PolicySet:
    """Load files as one set of policies.

    Args:
        files: content by name.
        clock: bounds the evaluation of embedded cases.
        run_tests: whether to run the embedded cases; the load fails if a case fails.
        case_time: bounds the time of all cases; None: `CASE_SECONDS` for this load.
        served: the schemas of kinds that the API server has and Kubernetes does not, for type checks.

    Raises:
        PolicyError: a file has a problem.
        SupersededError: `case_time` is cancelled.
    """
    reader = _PolicyReader(files)
    loaded = _Assembly(engine or Cel(_EXPRESSION_LIMITS, hint=did_you_mean, shared=SAME_FOR_ALL), reader, served)
    if reader.problems:
        raise PolicyError(reader.problems)
    found = PolicySet(
        loaded.validating,
        loaded.conversions,
        loaded.catalogue,
        digest(files),
        len(files),
        loaded.hints,
        tuple(reader.notes),
        loaded.mutating,
        loaded.templates,
    )
    if run_tests:
        (case_time or CaseTime(clock)).run(found.rules, files)
    return found


Kind = TypeVar("Kind", bound=schema.AnyPolicy)


class _PolicyReader:
    """Parses files to models, and collects the problems."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._seen: dict[tuple[str, str], str] = {}
        self.problems: list[PolicyProblem] = []
        self.found: list[tuple[PolicyDocument, schema.AnyPolicy]] = []
        documents_read = list(reading.read_documents(files, self.problems))
        parameter_kinds = reading.param_kinds(documents_read)
        older = list(dict.fromkeys(document.file for document in documents_read if reading.is_older(document)))
        note = f"read as {schema.VAP_API_VERSION}; the API server no longer serves older versions by default."
        self.notes = [f"{few(older, 3)}: {note}"] if older else []
        self.parameters: dict[reading.Kind, list[Mapping[str, object]]] = {}
        self.definitions: list[object] = []
        others: list[PolicyDocument] = []
        for document in documents_read:
            kind = reading.kind_of(document)
            if kind in parameter_kinds and kind not in schema.KINDS:
                self.parameters.setdefault(kind, []).append(document.data)
            elif kind == DEFINITION:
                self.definitions.append(document.data)
            else:
                others.append(document)
        refused: list[PolicyDocument] = []
        for document, policy in reading.policies(others, self.problems, refused):
            self._take(document, policy)
        self.refused = frozenset(name for name in map(reading.name_of, refused) if name)
        """Names of documents that are not valid, which other documents may refer to."""
        self._say_missing_kinds(refused)

    def _say_missing_kinds(self, refused: Sequence[PolicyDocument]) -> None:
        """Say that a binding names parameter objects, and its policy not their kind."""
        kinds = {kind for kind in map(reading.kind_of, refused) if kind is not None and kind not in schema.KINDS}
        for document, binding, spec in self._bound():
            if binding.param_ref is None or spec.param_kind is not None:
                continue
            message = f"spec.paramRef is set, but policy '{binding.policy_name}' has no spec.paramKind"
            if len(kinds) == 1:
                version, kind = next(iter(kinds))
                message += f": add paramKind: {{apiVersion: {version}, kind: {kind}}} to its spec."
                self.problems.append(document.problem(("spec", "paramRef"), message))
                unknown = f"kind {kind!r} is unknown"
                self.problems = [each for each in self.problems if not each.message.startswith(unknown)]
            else:
                self.notes.append(str(document.problem(("spec", "paramRef"), f"{message}: no expression gets params.")))

    def _bound(
        self,
    ) -> Iterator[tuple[PolicyDocument, schema.BindingSpec | schema.MutatingBindingSpec, schema.PolicySpec]]:
        """Every binding of a policy in these files, with the spec of the policy."""
        for policies, bindings in _BOUND:
            known = self.specs(policies)
            for document, binding in self.of(bindings):
                if binding.spec.policy_name in known:
                    yield document, binding.spec, known[binding.spec.policy_name]

    def specs(self, kind: type[_BoundPolicy]) -> dict[str, schema.PolicySpec]:
        """The specs of the policies of a kind that has bindings, by name."""
        return {policy.metadata.name: policy.spec for _, policy in self.of(kind)}

    def _take(self, document: PolicyDocument, policy: schema.AnyPolicy) -> None:
        path: documents.Path = ("metadata", "name")
        key = (policy.kind, policy.metadata.name)
        if key in self._seen:
            message = f"{key[0]} '{key[1]}' is already in {self._seen[key]}; rename one."
            self.problems.append(document.problem(path, message))
        else:
            self._seen[key] = f"{document.file}:{document.line(path)}"
            self.found.append((document, policy))

    def of(self, kind: type[Kind]) -> list[tuple[PolicyDocument, Kind]]:
        """The documents of one kind, in the order of files."""
        return [(document, policy) for document, policy in self.found if isinstance(policy, kind)]


class _Assembly:
    """Compiles models, and makes the checks that need several fields or files. Adds problems to the reader's."""

    def __init__(self, engine: Cel, reader: _PolicyReader, served: Served) -> None:
        self._engine = engine
        self._sharing = Sharing()
        self._types = ApiTypes(served, reader.definitions)
        self._problems = reader.problems
        self._notes = reader.notes
        bindings, changing = self._bindings(reader)
        tests = self._mutation_tests(reader)
        self.mutating = tuple(
            self._mutating(document, policy, changing, tests)
            for document, policy in reader.of(schema.MutatingAdmissionPolicy)
        )
        self.validating = tuple(
            self._validating(document, policy, bindings)
            for document, policy in reader.found
            if isinstance(policy, schema.ValidatingAdmissionPolicy | schema.ValidatingPolicy)
        )
        conversions = self._conversions(reader.of(schema.ConversionPolicy))
        self.conversions = tuple(sorted(conversions, key=lambda rule: rule.spec.order))
        self.hints = self._ordered_hints(reader.of(schema.SchedulingHintPolicy))
        self.catalogue, problems = reading.catalogue_of(reader.of(schema.InstanceTypeCatalog))
        self._problems += problems
        self._families(reader.of(schema.ConversionPolicy))
        self.templates = tuple(self._claim_template(*each) for each in reader.of(schema.ClaimTemplate))
        self._problems += claim_templates.check(self.templates, conversions, self.catalogue)
        self._notes += filter(None, (self._types.note,))

    def _say(self, document: PolicyDocument, path: documents.Path, message: str) -> None:
        self._problems.append(document.problem(path, message))

    # --- validation -----------------------------------------------------------------------------------------

    def _bindings(self, reader: _PolicyReader) -> Iterator[dict[str, list[Binding]]]:
        """The bindings by the name of the policy, for each pair of `_BOUND`."""
        for policies, bindings in _BOUND:
            known, found = reader.specs(policies), dict[str, list[Binding]]()
            for document, binding in reader.of(bindings):
                spec = binding.spec
                parameters = self._parameters(
                    document, spec.param_ref, self._bound(document, spec.policy_name, known, reader), reader
                )
                actions = spec.validation_actions if isinstance(spec, schema.BindingSpec) else ()
                made = Binding(binding.metadata.name, spec.match_resources, actions, parameters)
                found.setdefault(spec.policy_name, []).append(made)
            yield found

    def _bound(
        self, document: PolicyDocument, name: str, known: Mapping[str, schema.PolicySpec], reader: _PolicyReader
    ) -> schema.PolicySpec | None:
        """The policy of a binding or of cases."""
        if name not in known and name not in reader.refused:
            message = f"spec.policyName is '{name}', but no file has a policy of that name."
            self._say(document, ("spec", "policyName"), message + did_you_mean(name, known))
        return known.get(name)

    def _parameters(
        self,
        document: PolicyDocument,
        ref: schema.ParamRef | None,
        bound: schema.PolicySpec | None,
        reader: _PolicyReader,
    ) -> Parameters | None:
        """The parameter objects of a binding, from the same files; as in the API server, `paramRef` needs a kind."""
        kind = bound.param_kind if bound is not None else None
        if ref is None or kind is None:
            return None
        objects = tuple(reader.parameters.get((kind.api_version, kind.kind), ()))
        exists = ref.name is None or any(matching.name_of(each) == ref.name for each in objects)
        if not exists and ref.parameter_not_found_action == "Deny":
            known = [matching.name_of(each) for each in objects]
            message = f"spec.paramRef.name is '{ref.name}', but no file has a {kind.kind} of that name."
            message += did_you_mean(ref.name or "", known) or " Every request would be denied."
            self._say(document, ("spec", "paramRef", "name"), message)
        return Parameters(ref, objects)

    # --- mutation -------------------------------------------------------------------------------------------

    def _mutation_tests(self, reader: _PolicyReader) -> dict[str, list[PlacedCase]]:
        """The cases of mutating policies, by the name of the policy."""
        known = reader.specs(schema.MutatingAdmissionPolicy)
        tests: dict[str, list[PlacedCase]] = {}
        for document, found in reader.of(schema.MutatingPolicyTest):
            self._bound(document, found.spec.policy_name, known, reader)
            cases = (PlacedCase(document, at, case) for at, case in enumerate(found.spec.tests))
            tests.setdefault(found.spec.policy_name, []).extend(cases)
        return tests

    def _mutating(
        self,
        document: PolicyDocument,
        policy: schema.MutatingAdmissionPolicy,
        bindings: Mapping[str, list[Binding]],
        tests: Mapping[str, list[PlacedCase]],
    ) -> MutatingRule:
        name = policy.metadata.name
        bound = tuple(bindings.get(name, ())) or (Binding("", None, ()),)
        compiler = self._compiler(document)
        rule = compiler.mutating(policy, bound, self._types.shape, tuple(tests.get(name, ())))
        self._note(document, policy, compiler)
        return rule

    def _validating(
        self,
        document: PolicyDocument,
        policy: schema.ValidatingAdmissionPolicy | schema.ValidatingPolicy,
        bindings: Mapping[str, list[Binding]],
    ) -> ValidatingRule:
        spec = policy.spec
        if spec.param_kind is not None and isinstance(policy, schema.ValidatingPolicy):
            message = "spec.paramKind needs a binding; use params of the ValidatingPolicy."
            self._say(document, ("spec", "paramKind"), message)
        if isinstance(policy, schema.ValidatingPolicy):
            bound: tuple[Binding, ...] = (Binding("", None, policy.spec.validation_actions),)
        else:
            bound = tuple(bindings.get(policy.metadata.name, ())) or (Binding("", None, ("Deny",)),)
        compiler = self._compiler(document)
        rule = compiler.validating(policy, bound)
        self._note(document, policy, compiler)
        return rule

    def _compiler(self, document: PolicyDocument) -> ExpressionCompiler:
        return ExpressionCompiler(self._engine, document, self._sharing, self._problems)

    def _note(
        self,
        document: PolicyDocument,
        policy: schema.ValidatingAdmissionPolicy | schema.ValidatingPolicy | schema.MutatingAdmissionPolicy,
        compiler: ExpressionCompiler,
    ) -> None:
        """Note rules that match nothing, and fields that the matched kinds do not have."""
        if compiler.failed:
            return
        spec: schema.PolicySpec = policy.spec
        self._notes += matching.names_notes(policy.metadata.name, spec.match_constraints.resource_rules)
        kinds, of = self._types.matched(spec.match_constraints), spec.param_kind
        params = None if of is None else self._types.named(of.api_version, of.kind)
        self._notes += type_checks.warnings(self._engine, document, compiler.sources, kinds, params)

    # --- pods -----------------------------------------------------------------------------------------------

    def _conversions(self, found: Sequence[tuple[PolicyDocument, schema.ConversionPolicy]]) -> list[PodRule]:
        rules = []
        self._check_orders(found)
        for document, policy in found:
            if policy.spec.locked and policy.spec.mode is None:
                self._say(document, ("spec", "locked"), "spec.locked locks spec.mode, but spec.mode is missing.")
            binds = policy.spec.families or policy.spec.logical_neuron_core is not None
            if policy.spec.binds_claims and not (policy.spec.locked and binds):
                message = "spec.bindsClaims needs locked, and families or logicalNeuronCore."
                self._say(document, ("spec", "bindsClaims"), message)
            rules.append(self._compiler(document).pods(policy))
            if not rules[-1].settings:
                self._notes.append(str(document.problem(("spec",), "spec has no setting: the policy does nothing.")))
        return rules

    def _ordered_hints(
        self, found: Sequence[tuple[PolicyDocument, schema.SchedulingHintPolicy]]
    ) -> tuple[HintRule, ...]:
        rules = []
        self._check_orders(found)
        for document, policy in found:
            spec = policy.spec
            others = (spec.priority_class_name, spec.labels, spec.leader_worker_set)
            if not any((spec.tolerations, spec.node_affinity, spec.scheduler_name, *others)):
                self._say(document, ("spec",), "spec sets no hint: the policy would do nothing.")
            rules.append(self._compiler(document).hints(policy))
        return tuple(sorted(rules, key=lambda rule: rule.spec.order))

    def _claim_template(self, document: PolicyDocument, policy: schema.ClaimTemplate) -> TemplateRule:
        spec, problems = claim_templates.filled(document, policy.spec)
        self._problems += problems
        return self._compiler(document).claim_template(policy, spec)

    def _check_orders(
        self, found: Sequence[tuple[PolicyDocument, schema.ConversionPolicy | schema.SchedulingHintPolicy]]
    ) -> None:
        """Each order must be unique among the policies of one kind."""
        orders: dict[int, str] = {}
        for document, policy in found:
            order = policy.spec.order
            if order in orders:
                message = f"spec.order {order} is also the order of '{orders[order]}'; the order must be unique."
                self._say(document, ("spec", "order"), message)
            orders[order] = policy.metadata.name

    def _families(self, found: Sequence[tuple[PolicyDocument, schema.ConversionPolicy]]) -> None:
        known = self.catalogue.families()
        for document, policy in found:
            spec, listed = policy.spec, ", ".join(policy.spec.families)
            for at, family in enumerate(spec.families):
                if family not in known:
                    message = f"spec.families[{at}] is '{family}', but no instance type has this family."
                    hint = did_you_mean(family, known) or f" Known are {', '.join(known)}."
                    self._say(document, ("spec", "families", at), message + hint)
            if spec.efa is not None and spec.efa.device_class == names.DEVICE_CLASS:
                message = (
                    f"spec.efa.deviceClass is {names.DEVICE_CLASS}, which has Neuron devices and no EFA interfaces."
                )
                self._say(document, ("spec", "efa", "deviceClass"), message)
            types = [entry for entry in self.catalogue if entry.family in spec.families]
            if not types:
                continue
            if spec.efa is not None and not any(map(most_interfaces, types)):
                message = f"spec.efa needs device groups with EFA interfaces; instance types of {listed} have none."
                self._say(document, ("spec", "efa"), message)
            lnc = spec.logical_neuron_core
            if lnc is not None and not any(lnc in entry.logical_neuron_cores for entry in types):
                message = f"spec.logicalNeuronCore is {lnc}; no instance type of {listed} supports it."
                self._say(document, ("spec", "logicalNeuronCore"), message)
            if spec.unconnected == "Allow" and not {each.topology for each in types} & _CONNECTED_OTHERWISE:
                message = (
                    f"spec.unconnected is for Trn; {listed} are rings or chains, which always get consecutive devices."
                )
                self._say(document, ("spec", "unconnected"), message)
