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
"""The rules in `deploy/manifests/validating.yaml`, in its order; a test holds them together."""

_ANY: Final = "*"


def notes(rules: Iterable[ValidatingRule]) -> Iterator[str]:
    """A line for every policy about something that the shipped configuration does not send, and one about pods."""
    about_pods = []
    for rule in rules:
        missing = [text for each in rule.match.resource_rules for text in _missing(each)]
        if missing:
            told = ", ".join(dict.fromkeys(missing))
            yield (
                f"policy '{rule.name}' is about {told}, which the shipped ValidatingWebhookConfiguration does not "
                "send: add its resourceRules to the rules there."
            )
        if any(_is_about_pods(each) for each in rule.match.resource_rules):
            about_pods.append(f"'{rule.name}'")
    if about_pods:
        yield (
            "of pods, the shipped ValidatingWebhookConfiguration sends those that claim devices or were converted; "
            f"widen its matchCondition 'claims' where {', '.join(about_pods)} must see others."
        )


def _missing(rule: ResourceRule) -> Iterator[str]:
    """What a rule is about and nobody sends; of what is about everything, nothing is said."""
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


def _is_about_pods(rule: ResourceRule) -> bool:
    return bool({"", _ANY} & set(rule.api_groups)) and bool({"pods", _ANY} & set(rule.resources))
