"""Exports policies as ValidatingAdmissionPolicy and bindings, which the API server evaluates itself."""

import itertools
from collections.abc import Iterator
from typing import Any, Final

from kubecel.engine import Program
from policies.judging.rules import ValidatingRule
from policies.schema.kinds import VAP_API_VERSION, ValidationSpec

_ONLY_OURS: Final = ("neuron", "claim", "template", "params")
_SPEC_FIELDS: Final = frozenset(info.alias or name for name, info in ValidationSpec.model_fields.items())


class NotExportableError(Exception):
    """The API server cannot run a policy.

    Attributes:
        reasons: all of them, one clause each.
    """

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


def to_vap(rule: ValidatingRule) -> list[dict[str, Any]]:
    """A policy as objects of `admissionregistration.k8s.io/v1`: the policy, then its bindings.

    Raises:
        NotExportableError: it uses what the API server does not have.
    """
    reasons = list(_reasons(rule))
    if reasons:
        raise NotExportableError(reasons)
    spec = {field: value for field, value in rule.document.data["spec"].items() if field in _SPEC_FIELDS}
    policy = _object("ValidatingAdmissionPolicy", rule.name, spec)
    bindings = []
    for binding in rule.bindings:
        body: dict[str, Any] = {"policyName": rule.name, "validationActions": list(binding.actions)}
        if binding.match is not None:
            body["matchResources"] = binding.match.model_dump(by_alias=True, exclude_unset=True, mode="json")
        bindings.append(_object("ValidatingAdmissionPolicyBinding", binding.name or rule.name, body))
    return [policy, *bindings]


def _object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": VAP_API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _reasons(rule: ValidatingRule) -> Iterator[str]:
    if rule.exemptions:
        yield "it has exceptions, which the API server does not support"
    read = {".".join(path[:2]) for program in _programs(rule) for path in program.references if path[0] in _ONLY_OURS}
    for condition in rule.conditions:
        # k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions/matcher.go does not pass it.
        if any(path[0] == "namespaceObject" for path in condition.program.references):
            yield f"match condition '{condition.name}' reads namespaceObject, which the API server leaves empty there"
    for path in sorted(read):
        yield f"it reads {path}, which the API server does not have"


def _programs(rule: ValidatingRule) -> Iterator[Program]:
    wordings = (check.message_program for check in rule.checks)
    return itertools.chain(
        (condition.program for condition in rule.conditions),
        rule.variables.values(),
        (check.program for check in rule.checks),
        (wording for wording in wordings if wording is not None),
        rule.audit.values(),
    )
