"""Templates that policies carry: fills the parameters of ClaimTemplates in, and checks all as far as the files show."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from checks.claims.device_index import DeviceIndex
from checks.claims.judging import ClaimContext, for_one_object, validate
from conversion.claims.containers import Ask, Role
from conversion.claims.instance_fit import DeviceConfig
from conversion.claims.mapped_templates import MappedTemplate, Need, differences_by_type
from conversion.claims.templates import API_VERSION, KIND, Template
from neuron import names
from neuron.api.claim_reader import read_claim
from neuron.findings import Severity, did_you_mean
from neuron.hardware.device_shapes import catalogue_shapes
from neuron.hardware.instances import Catalogue
from policies.judging.rules import PodRule, TemplateRule
from policies.judging.selectors import DeviceSelectors
from policies.schema import kinds as schema
from policies.schema.documents import Path, PolicyDocument, PolicyProblem

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


def check(
    named: Sequence[TemplateRule], conversions: Sequence[PodRule], catalogue: Catalogue
) -> Iterator[PolicyProblem]:
    """What is wrong with the templates of ConversionPolicies and of ClaimTemplates."""
    if not named and not any(rule.templates for rule in conversions):
        return
    context = ClaimContext(catalogue, DeviceIndex(catalogue_shapes(catalogue)), DeviceSelectors())
    digests: dict[str, tuple[str, str]] = {}
    for rule in conversions:
        yield from _check_mapped(rule, digests, context)
    taken = {each.name: rule.name for rule in conversions for each in rule.templates if each.inline is not None}
    for named_rule in named:
        name, problem = named_rule.template.name, named_rule.document.problem
        owner = taken.setdefault(name, named_rule.name)
        if owner is not named_rule.name:
            message = f"template {name} is already in policy '{owner}'; give one of them another name."
            yield problem(("spec", "template", "metadata", "name"), message)
        faults = list(_errors_of(named_rule.template, _for_one(context)))
        if not faults and not read_claim(KIND, API_VERSION, named_rule.template.spec)[0].requests:
            faults.append("requests no devices")
        yield from (problem(_SPEC, f"template {name} {fault}.") for fault in faults)


def _for_one(context: ClaimContext) -> ClaimContext:
    """The context for one template: its selectors have a second of CPU time, however busy the machine is."""
    return for_one_object(context, time.thread_time)


def _check_mapped(rule: PodRule, digests: dict[str, tuple[str, str]], context: ClaimContext) -> Iterator[PolicyProblem]:
    """What is wrong with the templates that a ConversionPolicy maps to demands.

    `digests`: of the templates that the policies before carry, and the names of these policies.
    """
    problem = rule.document.problem
    seen: dict[object, int] = {}
    for at, mapped in enumerate(rule.templates):
        path: Path = ("spec", "templates", at)
        first = seen.setdefault((mapped.resources, mapped.amount, mapped.lnc, mapped.ultraserver_mode), at)
        if first != at:
            message = f"spec.templates[{at}] is for the same demand as spec.templates[{first}]; keep one."
            yield problem((*path, "demand"), message)
        if mapped.inline is None:
            continue
        digest, where = digests.setdefault(mapped.name, (mapped.inline.digest, rule.name))
        if digest != mapped.inline.digest:
            message = f"template {mapped.name} has another spec in policy '{where}'; give one of them another name."
            yield problem((*path, "template", "metadata", "name"), message)
        for fault in _faults(rule.spec, mapped, mapped.inline, _for_one(context)):
            yield problem((*path, "template", "spec"), f"template {mapped.name} {fault}.")


def _faults(
    spec: schema.ConversionPolicySpec, mapped: MappedTemplate, inline: Template, context: ClaimContext
) -> Iterator[str]:
    """What is wrong with a template that a policy carries, as clauses."""
    errors = [*_errors_of(inline, context)]
    yield from errors
    if errors or mapped.spec is None:
        return
    types = tuple(entry for entry in context.catalogue if not spec.families or entry.family in spec.families)
    ask = Ask("main", Role.APP, "spec.containers[0]", mapped.resources[0], mapped.amount)
    config = DeviceConfig(mapped.lnc or spec.logical_neuron_core, mapped.ultraserver_mode)
    unconnected = spec.unconnected == "Allow"
    need = Need(mapped, (ask,), types, config, spec.device_class or "", unconnected)
    differences = differences_by_type(need, mapped.spec, context)
    if differences and all(differences):
        unit = "cores" if names.RESOURCE_NEURONCORE in mapped.resources else "devices"
        # The difference on the first type that the template selects.
        closest = next((why for why in differences if not why.startswith("it selects")), differences[0])
        yield f"does not serve a pod that asks for {mapped.amount} {unit}: {closest}"


def _errors_of(template: Template, context: ClaimContext) -> Iterator[str]:
    """The errors of a template that a policy carries, as clauses."""
    for finding in validate(KIND, API_VERSION, template.spec, context, accepted=False):
        if finding.severity is Severity.ERROR:
            yield f"has an error at {finding.path}: {str(finding).rstrip('.')}"
