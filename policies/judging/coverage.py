"""Compares policies with the requests that the shipped ValidatingWebhookConfiguration sends to the webhook.

A policy for other requests is valid but never evaluated. This is not a fault of the file, so it becomes a note.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Final

from policies.judging.rules import ValidatingRule
from policies.schema.kinds import ResourceRule


@dataclasses.dataclass(frozen=True, slots=True)
class Sent:
    """One rule of the configuration."""

    groups: tuple[str, ...]
    operations: tuple[str, ...]
    resources: tuple[str, ...]


_WRITES: Final = ("CREATE", "UPDATE")

SENT: Final = (
    Sent(("resource.k8s.io",), _WRITES, ("resourceclaims", "resourceclaimtemplates")),
    Sent(("resource.k8s.io",), _WRITES, ("deviceclasses",)),
    Sent(("",), ("CREATE",), ("pods",)),
    Sent(("",), _WRITES, ("podtemplates", "replicationcontrollers")),
    Sent(("apps",), _WRITES, ("deployments", "statefulsets", "daemonsets", "replicasets")),
    Sent(("batch",), _WRITES, ("jobs", "cronjobs")),
    Sent(
        ("jobset.x-k8s.io", "leaderworkerset.x-k8s.io", "kubeflow.org", "ray.io", "batch.volcano.sh", "argoproj.io"),
        _WRITES,
        (
            *(
                "jobsets",
                "leaderworkersets",
                "mpijobs",
                "pytorchjobs",
                "tfjobs",
                "xgboostjobs",
                "paddlejobs",
                "jaxjobs",
            ),
            *("rayclusters", "rayjobs", "rayservices", "jobs", "rollouts"),
        ),
    ),
    Sent(
        ("trainer.kubeflow.org", "sagemaker.amazonaws.com"),
        _WRITES,
        ("trainingruntimes", "clustertrainingruntimes", "hyperpodpytorchjobs"),
    ),
)
"""The rules in `deploy/manifests/validating.yaml`, in its order; a test compares them. For claims, templates, classes
and pods, matchConditions there select only objects that name Neuron."""

_ANY: Final = "*"
_OF_PODS: Final = (
    "the shipped ValidatingWebhookConfiguration sends only pods that request Neuron's extended resources, were "
    "converted, or have claims and name Neuron"
)
_DEVICES: Final = "resource.k8s.io"
_CLAIMS: Final = ("resourceclaims", "resourceclaimtemplates", "deviceclasses")


def notes(rules: Iterable[ValidatingRule]) -> Iterator[str]:
    """One line for each policy that matches requests that the shipped configuration does not send.

    One more line for pods, and one for claims, because the configuration sends only a part of them.
    """
    about_pods: list[str] = []
    about_claims: list[str] = []
    counting: list[str] = []
    for rule in rules:
        missing = [text for each in rule.match.resource_rules for text in _missing(each)]
        if missing:
            kinds = ", ".join(dict.fromkeys(missing))
            yield (
                f"policy '{rule.name}' matches {kinds}, which the shipped ValidatingWebhookConfiguration does not "
                "send: add its resourceRules to the rules there."
            )
        reads = _reads_neuron(rule)
        if any(_is_about(each, "", ("pods",)) for each in rule.match.resource_rules):
            (counting if reads else about_pods).append(f"'{rule.name}'")
        if not reads and any(_is_about(each, _DEVICES, _CLAIMS) for each in rule.match.resource_rules):
            about_claims.append(f"'{rule.name}'")
    if counting:
        yield (
            f"{_OF_PODS} (in names of claims, node selectors, images, variables); pods whose claims have other names do"
            f" not reach {', '.join(counting)}, which read 'neuron': install with Helm and policies"
            " (admission.workloads.scope All), or begin its matchCondition 'claims' with (request.kind.kind == 'Pod'"
            " && object.spec.?resourceClaims.orValue([]).size() > 0) ||"
        )
    if about_pods:
        yield f"{_OF_PODS}; widen its matchCondition 'claims' where {', '.join(about_pods)} must match others."
    if about_claims:
        yield (
            "the shipped ValidatingWebhookConfiguration sends only claims, templates and DeviceClasses that name"
            f" Neuron; widen its matchCondition 'neuron' where {', '.join(about_claims)} must match those of other"
            " drivers."
        )


def _missing(rule: ResourceRule) -> Iterator[str]:
    """Kinds that a rule matches and the configuration does not send; rules with wildcards are skipped."""
    for group in rule.api_groups:
        for resource in rule.resources:
            if _ANY in (group, resource.partition("/")[0]):
                continue
            shown = f"{resource} of {group}" if group else resource
            sent = {
                each
                for known in SENT
                if group in known.groups and resource in known.resources
                for each in known.operations
            }
            if not sent:
                yield shown
            elif _ANY not in rule.operations:
                yield from (f"{operation} of {shown}" for operation in rule.operations if operation not in sent)


def _is_about(rule: ResourceRule, group: str, resources: Iterable[str]) -> bool:
    return bool({group, _ANY} & set(rule.api_groups)) and bool({*resources, _ANY} & set(rule.resources))


def _reads_neuron(rule: ValidatingRule) -> bool:
    """Whether a policy reads the variable `neuron`: then it is not for other drivers."""
    programs = [
        *rule.variables.values(),
        *[condition.program for condition in rule.conditions],
        *[check.program for check in rule.checks],
    ]
    return any(path[0] == "neuron" for program in programs for path in program.references)
