"""Templates of ClaimTemplate policies in the decision about a new pod: which must exist, and what the pod says of them.

A pod names a template in `resourceClaimTemplateName`, or asks for it by the annotation `neuron.aws.com/template`. Then
it gets a claim, for the container that the annotation names or else the first one, and the hints of a converted pod.
Every such pod gets the versions of its templates as an annotation. Pure.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final

from conversion.asks.conversion_context import ConversionOptions
from conversion.asks.pod_demand import ContainerDemand, PodDemand
from conversion.asks.steering import Steering
from conversion.claims.candidates import NodeSelection
from conversion.claims.templates import Template
from conversion.findings import named_templates, pod_findings
from conversion.objects import pods
from conversion.objects.pod_places import pointer
from conversion.patches import hints
from conversion.patches.claim_patches import free_name, refer
from conversion.patches.decision import Decision, Operation, Outcome, add, append, denied
from neuron import names
from neuron.findings import Finding, quoted

_ANNOTATIONS: Final = "/metadata/annotations"
_VERSIONS: Final = _ANNOTATIONS + pointer(names.ANNOTATION_TEMPLATE_VERSION)
_OWN: Final = "own"
"""The version of a template that is none of a ClaimTemplate policy."""


def with_named(decision: Decision, pod: pods.Pod, options: ConversionOptions, steering: Steering) -> Decision:
    """The decision with the templates that the pod names.

    Args:
        decision: of conversion.
        steering: has the templates.

    Raises:
        conversion.objects.pods.UnreadableError: a field has the wrong type.
    """
    if decision.errors or pod.annotations.mirror is not None or pod.excess() is not None:
        return decision
    annotation = pod.annotations.template
    declared = {entry.get("resourceClaimTemplateName") for entry in pod.decode_claims() or ()}
    if annotation is not None and named_templates.wanted(annotation)[1] in declared:
        annotation = None  # The pod has the claim.
    if annotation is not None:
        decision = _with_claim(decision, pod, annotation, options, steering)
    if decision.errors or not steering.named:
        return decision
    decision = dataclasses.replace(decision, templates=(*decision.templates, *steering.named))
    if decision.shadowed is not None and annotation is None:
        return decision
    versions = ",".join(f"{each.name}={each.version}" for each in steering.named)
    unchanged = decision.outcome is Outcome.UNCHANGED
    return dataclasses.replace(
        decision,
        outcome=Outcome.MUTATED if unchanged else decision.outcome,
        reason="claim-template" if unchanged else decision.reason,
        patch=(*decision.patch, *_annotated(pod, decision, versions)),
        patch_size=0,
        audit={**decision.audit, "claim-templates": versions},
    )


def _with_claim(
    decision: Decision, pod: pods.Pod, annotation: str, options: ConversionOptions, steering: Steering
) -> Decision:
    """The decision with the claim for which the pod asks by annotation."""
    asked = named_templates.wanted(annotation)[1]
    if asked not in {each.name for each in steering.named}:
        return denied("claim-template", named_templates.not_made(annotation))
    demand = PodDemand.of(pod, ())
    container = _container(demand, annotation)
    if isinstance(container, Finding):
        return denied("claim-template", container, warnings=decision.warnings)
    claim = free_name(demand)
    if claim is None:
        return denied("claim-names-taken", pod_findings.names_taken())
    hint = hints.hint_patch(pod, pod.decode_affinity(), NodeSelection(), None, options, steering)
    patch = (
        *append("/spec/resourceClaims", pod.decode_claims(), [{"name": claim, "resourceClaimTemplateName": asked}]),
        *refer(container, [{"name": claim}]),
        *_labelled(pod, hint.labels),
        *hint.patch,
    )
    return dataclasses.replace(
        decision,
        patch=(*decision.patch, *patch),
        warnings=(*decision.warnings, *hint.warnings),
        locked=True,  # Without the template, the pod would run without devices.
    )


def with_other(decision: Decision, namespace: str, template: Template, version: int) -> Decision:
    """The decision where another template stands in the place of one: pods use that, and say so.

    Args:
        version: of the other template; 0: it is none of a ClaimTemplate policy.
    """
    text = f"{template.name}={template.version}"
    other = f"{template.name}={version or _OWN}"

    def renamed(value: object) -> object:
        return ",".join(other if each == text else each for each in str(value).split(","))

    patch = tuple(_with_versions(each, renamed) for each in decision.patch)
    finding = named_templates.other(namespace, template, version)
    return dataclasses.replace(decision, patch=patch, patch_size=0, warnings=(*decision.warnings, finding))


def _with_versions(operation: Operation, change: Callable[[object], object]) -> Operation:
    key = names.ANNOTATION_TEMPLATE_VERSION
    if operation["path"] == _VERSIONS:
        return {**operation, "value": change(operation["value"])}
    if operation["path"] == _ANNOTATIONS and key in operation["value"]:
        return {**operation, "value": {**operation["value"], key: change(operation["value"][key])}}
    return operation


def _container(demand: PodDemand, annotation: str) -> ContainerDemand | Finding:
    """The container that gets the claim: the one that is named, or the first one."""
    for each in demand.containers:
        if each.amounts:
            return named_templates.limits_too(annotation, quoted(each.container.name), next(iter(each.amounts)))
    name = named_templates.wanted(annotation)[0]
    apps = [each for each in demand.containers if each.section == "containers"]
    found = next((each for each in (*apps, *demand.containers) if name in ("", each.container.name)), None)
    return found or named_templates.no_container(annotation, demand.pod.container_names)


def _labelled(pod: pods.Pod, labels: Sequence[Operation]) -> list[Operation]:
    """Labels of policies, for a pod that may have none."""
    has_labels = pod.metadata is not None and pod.metadata.labels is not None
    return [*labels] if has_labels or not labels else [add("/metadata/labels", {}), *labels]


def _annotated(pod: pods.Pod, decision: Decision, versions: str) -> list[Operation]:
    """Set the annotation with the versions, also if the pod has it: its author may have written it."""
    paths = {each["path"] for each in decision.patch}
    operations: list[Operation] = []
    if pod.metadata is None and "/metadata" not in paths:
        operations.append(add("/metadata", {}))
    annotated = pod.metadata is not None and pod.metadata.annotations is not None
    if annotated or any(path.startswith(_ANNOTATIONS) for path in paths):
        return [*operations, add(_VERSIONS, versions)]
    return [*operations, add(_ANNOTATIONS, {names.ANNOTATION_TEMPLATE_VERSION: versions})]
