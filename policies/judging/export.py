"""Exports policies as ValidatingAdmissionPolicy and bindings, which the API server evaluates itself."""

import copy
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

from kubecel.compile import Program
from kubecel.syntax import nodes as syntax
from kubecel.syntax.nodes import Node, bound_names
from kubecel.types import BOOL, STRING, Type
from policies.judging.compiler import BIND, ONLY_OURS
from policies.judging.rules import ValidatingRule
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


# --- inline parameters ------------------------------------------------------------------------------------------------
#
# The API server has none: expressions read a variable with the constants. Match conditions come before variables, so
# they get the constants themselves.

_PARAMS: Final = "params"


def inlined(spec: Mapping[str, object], params: Mapping[str, object], programs: Iterable[Program]) -> dict[str, object]:
    """A copy of a policy's spec whose expressions do not read `params`.

    Args:
        params: its constants.
    """
    places = {program.source: sorted(set(_places(program.syntax))) for program in programs}
    made: dict[str, Any] = copy.deepcopy(dict(spec))
    if not any(places.values()):
        return made
    constants = f"dyn({literal(params)})"
    name = _unused(_PARAMS, {each["name"] for each in made.get("variables") or ()})
    for condition in made.get("matchConditions") or ():
        condition["expression"] = _replaced(condition["expression"], places, constants)
    read = False
    for field, keys in _EXPRESSIONS.items():
        for entry in made.get(field) or ():
            for key in keys:
                source = entry.get(key) or ""
                if not places.get(source):
                    continue
                read = True
                entry[key] = _replaced(source, places, f"variables.{name}")
                if (field, key) == ("validations", "expression") and "\n" not in source.strip():
                    # The default message quotes the expression: as its author wrote it.
                    entry.setdefault("message", f"failed expression: {source.strip()}")
    if read:
        made["variables"] = [{"name": name, "expression": constants}, *(made.get("variables") or ())]
    return made


_EXPRESSIONS: Final = {
    "variables": ("expression",),
    "validations": ("expression", "messageExpression"),
    "auditAnnotations": ("valueExpression",),
}
"""Fields of a policy whose expressions can read variables."""


def literal(value: object) -> str:
    """A JSON value as CEL.

    Values of a map or list become `dyn`: the API server refuses literals whose values have several types.
    """
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value) if math.isfinite(value) else f"double('{value}')"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case Mapping():
            return "{" + ", ".join(f"{literal(str(key))}: dyn({literal(each)})" for key, each in value.items()) + "}"
        case list():
            return "[" + ", ".join(_members(value)) + "]"
        case _:
            raise TypeError(f"no JSON value: {value!r}")


def _members(values: list[object]) -> Iterator[str]:
    mixed = len({type(each) for each in values}) > 1 or any(isinstance(each, list) for each in values)
    for each in values:
        yield f"dyn({literal(each)})" if mixed else literal(each)


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _replaced(source: str, places: Mapping[str, list[tuple[int, int]]], by: str) -> str:
    for start, end in reversed(places[source]):
        source = source[:start] + by + source[end:]
    return source


def _places(tree: Node) -> Iterator[tuple[int, int]]:
    """Where an expression names `params`, and no macro has a variable of this name."""
    waiting: list[tuple[Node, bool]] = [(tree, False)]
    while waiting:
        node, hidden = waiting.pop()
        if isinstance(node, syntax.Ident) and node.name == _PARAMS and (not hidden or node.rooted):
            yield node.start - node.rooted, node.end
        names, bodies = bound_names(node)
        for child in syntax.children(node):
            yet = hidden or (_PARAMS in names and any(child is body for body in bodies))
            waiting.append((child, yet))
