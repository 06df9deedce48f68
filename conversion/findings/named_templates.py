"""Findings about templates of ClaimTemplate policies, and how a pod names them. Pure."""

from collections.abc import Mapping

from conversion.claims.templates import Template
from neuron import names
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
