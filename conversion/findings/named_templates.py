"""Findings about the templates that policies carry or name, and how a pod names them. Pure."""

import dataclasses
from collections.abc import Mapping
from typing import Final

from checks.claims.judging import ClaimContext, for_one_object
from conversion.claims.mapped_templates import Need, difference
from conversion.claims.templates import Template
from kubecel.budget import Clock
from neuron import names
from neuron.api.claim_specs import ClaimSpec
from neuron.api.fields import mapping, mappings
from neuron.findings import Finding, did_you_mean, quoted, warning

_ANNOTATION = f"metadata.annotations[{names.ANNOTATION_TEMPLATE}]"


def wanted(value: str) -> tuple[str, str]:
    """Container and template that a value of `neuron.aws.com/template` names; no container: empty."""
    container, _, template = value.strip().rpartition("=")
    return container.strip(), template.strip()


def names_in(pod: Mapping[str, object]) -> frozenset[str]:
    """Names of the templates that a pod, or pod template, names: in its claims, and by its annotation."""
    found = {each.get("resourceClaimTemplateName") for each in mappings(mapping(pod.get("spec")).get("resourceClaims"))}
    value = mapping(mapping(pod.get("metadata")).get("annotations")).get(names.ANNOTATION_TEMPLATE)
    if isinstance(value, str):
        found.add(wanted(value)[1])
    return frozenset(each for each in found if isinstance(each, str))


def other(namespace: str, template: Template, version: int) -> Finding:
    """NEU721: another template stands in the place of one of a ClaimTemplate policy. `version`: its; 0: not ours."""
    what = f"{namespace}/{template.name}" if namespace else template.name
    if version == template.version:
        message = (
            f"ResourceClaimTemplate {what} has another spec than policy '{template.policy}' gives version {version}"
        )
        message += " now: the pod uses that of the namespace."
        fix = "Give the policy a higher version with each change: templates cannot change."
    elif version:
        message = f"ResourceClaimTemplate {what} has version {version}, and policy '{template.policy}' has only"
        message += f" {template.version}: the pod uses version {version}."
        fix = "Give the policy a higher version if its template is to be used."
    else:
        message = (
            f"namespace {namespace} has a ResourceClaimTemplate {template.name} of its own: the pod uses that, and"
        )
        message += f" not version {template.version} of policy '{template.policy}'."
        fix = "Delete or rename it if the policy's template is to be used."
    return warning("NEU721", "spec.resourceClaims", message, fix, template.name)


def not_made(annotation: str) -> Finding:
    """NEU722: no ClaimTemplate policy that matches the pod has the template that its annotation names."""
    name = wanted(annotation)[1]
    return Finding(
        "NEU722",
        _ANNOTATION,
        f"the pod asks for template {quoted(name)}, which no ClaimTemplate policy that matches it has, so it would run"
        " without devices.",
        "Name a template of a policy for this namespace, or ask the cluster's admins.",
        name,
    )


def limits_too(annotation: str, container: str, resource: str) -> Finding:
    """NEU723: a pod has limits and the annotation."""
    return Finding(
        "NEU723",
        _ANNOTATION,
        f"the pod asks for template {quoted(wanted(annotation)[1])}, and container {container} for {resource}: it would"
        " get both.",
        f"Remove {resource}, or the annotation.",
        annotation,
    )


def no_container(annotation: str, known: tuple[str, ...]) -> Finding:
    """NEU723: the container that the annotation names does not exist."""
    container = wanted(annotation)[0]
    return Finding(
        "NEU723",
        _ANNOTATION,
        f"the annotation gives the devices to container {quoted(container)}, which the pod does not have."
        f"{did_you_mean(container, known)}",
        "Write CONTAINER=TEMPLATE, or TEMPLATE for the first container.",
        annotation,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class KnownTemplates:
    """The templates of a namespace that policies may name.

    Attributes:
        specs: by name; None or no entry: not known.
        complete: whether a template that is not known does not exist.
    """

    namespace: str = ""
    specs: Mapping[str, ClaimSpec | None] = dataclasses.field(default_factory=dict)
    complete: bool = False

    def find(self, need: Need, context: ClaimContext) -> Finding | None:
        """NEU120, NEU121 or NEU230 about the template that a pod needs; None if it serves the pod."""
        spec = need.mapped.spec or self.specs.get(need.mapped.name)
        if spec is not None:
            return judged(need, self.namespace, spec, context)
        if self.complete:
            return missing(need, self.namespace, elsewhere=False)
        return unchecked(need, self.namespace, "it is not among the files")


NO_TEMPLATES: Final = KnownTemplates()


def missing(need: Need, namespace: str, *, elsewhere: bool) -> Finding:
    """NEU120: the template does not exist in the pod's namespace."""
    other = " Another namespace has one of this name, which these pods cannot use." if elsewhere else ""
    return Finding(
        "NEU120",
        _path(need),
        f"ResourceClaimTemplate {need.mapped.name}, which policy '{need.mapped.policy}' names for {_asked(need)}, does"
        f" not exist in namespace {namespace}.{other}",
        f"Create it in namespace {namespace}, or ask the cluster's admins.",
        need.mapped.name,
    )


def differs(need: Need, namespace: str, why: str) -> Finding:
    """NEU121: the template does not serve the pod."""
    return Finding(
        "NEU121",
        _path(need),
        f"ResourceClaimTemplate {namespace}/{need.mapped.name}, which policy '{need.mapped.policy}' names for"
        f" {_asked(need)}, does not serve this pod: {why}.",
        "Ask the cluster's admins to change the template or the policy.",
        need.mapped.name,
    )


def unchecked(need: Need, namespace: str, why: str) -> Finding:
    """NEU230: nothing is known of the template."""
    return warning(
        "NEU230",
        _path(need),
        f"ResourceClaimTemplate {need.mapped.name}, which policy '{need.mapped.policy}' names for {_asked(need)}, was"
        f" not checked: {why}.",
        f"Pods wait until it exists in {f'namespace {namespace}' if namespace else 'their namespace'}.",
        need.mapped.name,
    )


def _path(need: Need) -> str:
    return next((ask.resource_path for ask in need.asks if ask.amount), "spec")


def _asked(need: Need) -> str:
    amount, in_cores = next(((ask.amount, ask.in_cores) for ask in need.asks if ask.amount), (0, False))
    return f"{amount} {'core' if in_cores else 'device'}{'' if amount == 1 else 's'}"


def judged(
    need: Need, namespace: str, spec: ClaimSpec, context: ClaimContext, clock: Clock | None = None
) -> Finding | None:
    """NEU121 if a template does not serve a pod. Pure; `clock` is as for `for_one_object`."""
    why = difference(need, spec, for_one_object(context, clock))
    return differs(need, namespace, why) if why else None
