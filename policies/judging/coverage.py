"""Which requests reach us in a cluster: what the shipped ValidatingWebhookConfiguration sends, and what policies miss.

A policy about anything else is right, and never asked. That is no fault of its file, hence a note.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Final

from policies.judging.rules import ValidatingRule
from policies.schema.kinds import ResourceRule


@dataclasses.dataclass(frozen=True, slots=True)
class Sent:
    """One rule of the configuration, as far as a policy has to fit it."""

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
"""The rules in `deploy/manifests/validating.yaml`, in its order; a test holds them together. Of claims, templates,
classes and pods, matchConditions there let only those pass that name Neuron."""

_ANY: Final = "*"
_OF_PODS: Final = (
    "of pods, the shipped ValidatingWebhookConfiguration sends those that ask for Neuron's extended resources, were "
    "converted, or claim devices and speak of Neuron"
)
_DEVICES: Final = "resource.k8s.io"
_CLAIMS: Final = ("resourceclaims", "resourceclaimtemplates", "deviceclasses")


def notes(rules: Iterable[ValidatingRule]) -> Iterator[str]:
    """A line for every policy about something that the shipped configuration does not send.

    One more for each kind of object of which it sends a part.
    """
    about_pods: list[str] = []
    about_claims: list[str] = []
    counting: list[str] = []
    for rule in rules:
        missing = [text for each in rule.match.resource_rules for text in _missing(each)]
        if missing:
            told = ", ".join(dict.fromkeys(missing))
            yield (
                f"policy '{rule.name}' is about {told}, which the shipped ValidatingWebhookConfiguration does not "
                "send: add its resourceRules to the rules there."
            )
        reads = _reads_neuron(rule)
        if any(_is_about(each, "", ("pods",)) for each in rule.match.resource_rules):
            (counting if reads else about_pods).append(f"'{rule.name}'")
        if not reads and any(_is_about(each, _DEVICES, _CLAIMS) for each in rule.match.resource_rules):
            about_claims.append(f"'{rule.name}'")
    if counting:
        yield (
            f"{_OF_PODS} (in names of claims, node selectors, images, variables); a claim with another name is not seen"
            f" by {', '.join(counting)}, which read 'neuron': install with Helm and policies (admission.workloads.scope"
            " All), or begin its matchCondition 'claims' with (request.kind.kind == 'Pod' && "
            "object.spec.?resourceClaims.orValue([]).size() > 0) ||"
        )
    if about_pods:
        yield f"{_OF_PODS}; widen its matchCondition 'claims' where {', '.join(about_pods)} must see others."
    if about_claims:
        yield (
            "of claims, templates and DeviceClasses, the shipped ValidatingWebhookConfiguration sends those that name"
            f" Neuron; widen its matchCondition 'neuron' where {', '.join(about_claims)} must see those of other"
            " drivers."
        )


def _missing(rule: ResourceRule) -> Iterator[str]:
    """Kinds that a rule matches and that no configuration sends; not for rules that match everything."""
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
    """Whether a policy reads what is known of Neuron devices: then it is about them, and not about other drivers."""
    programs = [
        *rule.variables.values(),
        *[condition.program for condition in rule.conditions],
        *[check.program for check in rule.checks],
    ]
    return any(path[0] == "neuron" for program in programs for path in program.references)
