"""Checks the templates that ConversionPolicies map to demands, as far as the files show it."""

from collections.abc import Iterator, Sequence

from checks.claims.device_index import DeviceIndex
from checks.claims.judging import ClaimContext, validate
from conversion.claims import templates
from conversion.claims.containers import Ask, Role
from conversion.claims.instance_fit import DeviceConfig
from conversion.claims.mapped_templates import MappedTemplate, Need, differences_by_type
from neuron import names
from neuron.findings import Severity
from neuron.hardware.device_shapes import catalogue_shapes
from neuron.hardware.instances import Catalogue
from policies.judging.rules import PodRule
from policies.schema import kinds as schema
from policies.schema.documents import Path, PolicyProblem
from policies.selectors.engine import DeviceSelectors


def check(rules: Sequence[PodRule], catalogue: Catalogue) -> list[PolicyProblem]:
    """What is wrong with the templates of all ConversionPolicies, in the order of files."""
    digests: dict[str, tuple[str, str]] = {}
    problems: list[PolicyProblem] = []
    if not any(rule.templates for rule in rules):
        return problems
    index = DeviceIndex(catalogue_shapes(catalogue))
    for rule in rules:
        document = rule.document
        seen: dict[object, int] = {}
        for at, mapped in enumerate(rule.templates):
            path: Path = ("spec", "templates", at)
            first = seen.setdefault((mapped.resources, mapped.amount, mapped.lnc, mapped.ultraserver_mode), at)
            if first != at:
                message = f"spec.templates[{at}] is for the same demand as spec.templates[{first}]; keep one."
                problems.append(document.problem((*path, "demand"), message))
            if mapped.inline is None:
                continue
            digest, where = digests.setdefault(mapped.name, (mapped.inline.digest, rule.name))
            if digest != mapped.inline.digest:
                message = f"template {mapped.name} has another spec in policy '{where}'; give one of them another name."
                problems.append(document.problem((*path, "template", "metadata", "name"), message))
            context = ClaimContext(catalogue, index, DeviceSelectors())
            for fault in _faults(rule.spec, mapped, context):
                message = f"template {mapped.name} {fault}."
                problems.append(document.problem((*path, "template", "spec"), message))
    return problems


def _faults(spec: schema.ConversionPolicySpec, mapped: MappedTemplate, context: ClaimContext) -> Iterator[str]:
    """What is wrong with a template that a policy carries, as clauses."""
    inline = mapped.inline
    if inline is None:
        return
    errors = [*errors_of(inline, context)]
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
        yield f"does not serve a pod that asks for {mapped.amount} {unit}: {_closest(differences)}"


def errors_of(template: templates.Template, context: ClaimContext) -> Iterator[str]:
    """The errors of a template that a policy carries, as clauses."""
    for finding in validate(templates.KIND, templates.API_VERSION, template.spec, context, accepted=False):
        if finding.severity is Severity.ERROR:
            yield f"has an error at {finding.path}: {str(finding).rstrip('.')}"


def _closest(differences: Sequence[str]) -> str:
    """The difference on the first type that the template selects."""
    return next((why for why in differences if not why.startswith("it selects")), differences[0])
