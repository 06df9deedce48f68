"""Exports policies as ValidatingAdmissionPolicy and bindings, which the API server evaluates itself."""

from collections.abc import Iterator
from typing import Final

from pydantic import BaseModel

from kubecel.engine import Program
from kubecel.types import BOOL, STRING, Type
from policies.judging.inline_params import inlined
from policies.judging.rules import BIND, ONLY_OURS, ValidatingRule
from policies.schema.kinds import VAP_API_VERSION, ValidationSpec

_SPEC_FIELDS: Final = frozenset(info.alias or name for name, info in ValidationSpec.model_fields.items())


class NotExportableError(Exception):
    """The API server cannot run a policy.

    Attributes:
        reasons: all of them, one clause each.
    """

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


def to_vap(rule: ValidatingRule) -> list[dict[str, object]]:
    """A policy as objects of `admissionregistration.k8s.io/v1`: the policy, then its bindings.

    The API server has no inline `params`: their constants are written into the policy.

    Raises:
        NotExportableError: it uses what the API server does not have.
    """
    reasons = list(_reasons(rule))
    if reasons:
        raise NotExportableError(reasons)
    spec = {field: value for field, value in rule.document.data["spec"].items() if field in _SPEC_FIELDS}
    if rule.params is not None:
        spec = inlined(spec, rule.params, rule.programs())
    policy = _object("ValidatingAdmissionPolicy", rule.name, spec)
    bindings = []
    for binding in rule.bindings:
        body: dict[str, object] = {"policyName": rule.name, "validationActions": list(binding.actions)}
        if binding.match is not None:
            body["matchResources"] = _dumped(binding.match)
        if binding.parameters is not None:
            body["paramRef"] = _dumped(binding.parameters.ref)
        bindings.append(_object("ValidatingAdmissionPolicyBinding", binding.name or rule.name, body))
    return [policy, *bindings]


def _dumped(model: BaseModel) -> dict[str, object]:
    return model.model_dump(by_alias=True, exclude_unset=True, mode="json")


def _object(kind: str, name: str, spec: dict[str, object]) -> dict[str, object]:
    return {"apiVersion": VAP_API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _reasons(rule: ValidatingRule) -> Iterator[str]:
    yield from _refused(rule)
    if rule.schedule:
        yield "it has a schedule, which the API server does not support"
    if rule.exemptions:
        yield "it has exceptions, which the API server does not support"
    read = {".".join((name, *path[:1])) for name in ONLY_OURS for path in rule.read(name)}
    for condition in rule.conditions:
        # k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions/matcher.go does not pass it.
        if any(path[0] == "namespaceObject" for path in condition.program.references):
            yield f"match condition '{condition.name}' reads namespaceObject, which the API server leaves empty there"
    for path in sorted(read):
        yield f"it reads {path}, which the API server does not have"


def _refused(rule: ValidatingRule) -> Iterator[str]:
    """What the API server refuses when the policy is created.

    Source: k8s.io/kubernetes/pkg/apis/admissionregistration/validation/validation.go.
    """
    for what, program, wanted in _typed(rule):
        if program.result != wanted:
            yield f"{what} is of type {program.result} for the API server, which needs {wanted}"
    if any(BIND.search(program.source) for program in rule.programs()):
        yield "it calls cel.bind, which the API server has only for device selectors"


def _typed(rule: ValidatingRule) -> Iterator[tuple[str, Program, Type]]:
    """Expressions whose static type the API server checks exactly."""
    for condition in rule.conditions:
        yield f"match condition '{condition.name}'", condition.program, BOOL
    for at, check in enumerate(rule.checks):
        yield f"expression of validations[{at}]", check.program, BOOL
        if check.message_program is not None:
            yield f"messageExpression of validations[{at}]", check.message_program, STRING
