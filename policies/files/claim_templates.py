"""ClaimTemplates: fills their parameters in, and checks the templates as far as the files show it."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from checks.claims.device_index import DeviceIndex
from checks.claims.judging import ClaimContext
from conversion.claims.templates import API_VERSION, KIND
from neuron.api.claim_reader import read_claim
from neuron.findings import did_you_mean
from neuron.hardware.device_shapes import catalogue_shapes
from neuron.hardware.instances import Catalogue
from policies.files.mapped_templates import errors_of
from policies.judging.rules import PodRule, TemplateRule
from policies.schema import kinds as schema
from policies.schema.documents import Path, PolicyDocument, PolicyProblem
from policies.selectors.engine import DeviceSelectors

_REFERENCE: Final = re.compile(r"\$?\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
_SPEC: Final[Path] = ("spec", "template", "spec")


def filled(
    document: PolicyDocument, spec: schema.ClaimTemplateSpec
) -> tuple[Mapping[str, object], list[PolicyProblem]]:
    """The spec of the template, as in `resource.k8s.io/v1`, with the values of its parameters, and what is wrong."""
    filling = _Filling(spec.parameters)
    made = filling.value(spec.template.current_spec)
    problems = []
    for name in filling.unknown:
        message = f"spec.template.spec reads $({name}), but spec.parameters has no {name}."
        message += did_you_mean(name, spec.parameters) or f" Write $$({name}) for the text itself."
        problems.append(document.problem(_SPEC, message))
    for name in spec.parameters.keys() - filling.read:
        message = f"spec.parameters.{name} is not read: write $({name}) in the template, or remove it."
        problems.append(document.problem(("spec", "parameters", name), message))
    return made if isinstance(made, dict) else {}, problems


class _Filling:
    """Puts values of parameters in the place of references.

    Attributes:
        read: names of the parameters that are read.
        unknown: names that are no parameters.
    """

    def __init__(self, parameters: Mapping[str, schema.Parameter]) -> None:
        self._parameters = parameters
        self.read: set[str] = set()
        self.unknown: dict[str, None] = {}

    def value(self, value: object) -> object:
        """A value of the spec, with its references replaced. Keys have none."""
        if isinstance(value, dict):
            return {key: self.value(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self.value(each) for each in value]
        if not isinstance(value, str) or "$(" not in value:
            return value
        whole = _REFERENCE.fullmatch(value)
        if whole is not None and not value.startswith("$$"):
            return self._of(whole)
        return _REFERENCE.sub(self._text, value)

    def _of(self, reference: re.Match[str]) -> object:
        name = reference[1]
        if name in self._parameters:
            self.read.add(name)
            return self._parameters[name]
        self.unknown[name] = None
        return reference[0]

    def _text(self, reference: re.Match[str]) -> str:
        if reference[0].startswith("$$"):
            return reference[0][1:]
        value = self._of(reference)
        return str(value).lower() if isinstance(value, bool) else str(value)


def check(rules: Sequence[TemplateRule], conversions: Sequence[PodRule], catalogue: Catalogue) -> list[PolicyProblem]:
    """What is wrong with the templates of all ClaimTemplates, in the order of files."""
    problems: list[PolicyProblem] = []
    if not rules:
        return problems
    context = ClaimContext(catalogue, DeviceIndex(catalogue_shapes(catalogue)), DeviceSelectors())
    taken = {each.name: rule.name for rule in conversions for each in rule.templates if each.inline is not None}
    for rule in rules:
        name = rule.template.name
        owner = taken.setdefault(name, rule.name)
        if owner is not rule.name:
            message = f"template {name} is already in policy '{owner}'; give one of them another name."
            problems.append(rule.document.problem(("spec", "template", "metadata", "name"), message))
        faults = list(errors_of(rule.template, context))
        if not faults and not read_claim(KIND, API_VERSION, rule.template.spec)[0].requests:
            faults.append("requests no devices")
        problems += [rule.document.problem(_SPEC, f"template {name} {fault}.") for fault in faults]
    return problems
