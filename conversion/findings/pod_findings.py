"""Errors and warnings about pods that conversion refuses, leaves alone or changes. Pure."""

import functools
from collections.abc import Iterable, Sequence
from typing import Final

from checks.words import misspelt_keys_of_namespace
from conversion.asks.conversion_context import ConversionContext
from conversion.asks.steering import Steering
from conversion.claims.families import SETTLED_BY
from conversion.facts import LegacyQuota, NamespaceFacts
from conversion.objects import pods
from conversion.objects.pods import Excess
from neuron import names
from neuron.findings import Finding, short, warning

OF_THE_RUN: Final = frozenset({"NEU216"})
"""Findings that say the same about every pod: commands on files show them once."""

_MOST_WARNED: Final = 16
"""The user's own claims that are named in warnings."""


def side_effects(facts: NamespaceFacts, context: ConversionContext, own_claims: Sequence[str]) -> list[Finding]:
    """NEU204 and NEU206: what works differently for a converted pod; NEU222 about its namespace."""
    if not (facts.quotas or own_claims or facts.unread):
        return []
    options = context.options
    found = uncounted(facts.quotas, context)
    found += [
        warning(
            "NEU206",
            "spec.resourceClaims",
            f"claim {short(name)} already requests {options.device_class} devices; the limits add more of them.",
            value=short(name),
        )
        for name in own_claims[:_MOST_WARNED]
    ]
    found += misspelt_keys_of_namespace(facts.unread)
    return found


def limited(facts: NamespaceFacts, device_class: str) -> list[Finding]:
    """NEU205 for each LimitRange that refuses a converted pod.

    The API server would say only that the pod has no limit (`plugin/pkg/admission/limitranger`).
    """
    fix = f"Drop it; bound Neuron devices by quota {device_class}.deviceclass.resource.k8s.io/devices."
    message = "LimitRange {} has a min, max or ratio for a Neuron resource, which refuses this pod."
    return [Finding("NEU205", "metadata.namespace", message.format(each), fix, each) for each in facts.limit_ranges]


@functools.lru_cache(maxsize=64)
def unknown_types(types: tuple[str, ...]) -> Finding:
    """NEU216: nothing says which instance types there are. The message is the same for all pods; the value differs."""
    message = (
        "neither the pod, a policy, ResourceSlices nor Nodes say which Neuron instance types there are: the claim fits"
        " all types that can serve the pod, and no node affinity to instance types is added."
    )
    return warning("NEU216", "spec", message, SETTLED_BY, ", ".join(types))


def has_node_name(node: str) -> Finding:
    """NEU201 as a warning."""
    message = f"nodeName is {short(node)!r}: the pod is not converted, because no scheduler would allocate its claim."
    return warning("NEU201", "spec.nodeName", message, "Use a nodeSelector.", short(node))


def has_node_name_but_locked(pod: pods.Pod, steering: Steering) -> Finding:
    """NEU201 as an error: the policy requires conversion."""
    node = short(pod.spec.nodeName or "")
    message = (
        f"nodeName is {node!r}, and policy {steering.policy('mode')} is locked to mode {steering.mode}: a pod that the"
        " scheduler does not place cannot be converted, because nothing else allocates its claim."
    )
    return Finding("NEU201", "spec.nodeName", message, "Use a nodeSelector.", node)


def is_mirror_but_locked(steering: Steering) -> Finding:
    """NEU201 for a mirror pod that no kubelet creates."""
    annotation = names.ANNOTATION_MIRROR_POD
    message = (
        f"only a kubelet may create mirror pods, and policy {steering.policy('mode')} is locked to mode"
        f" {steering.mode}: a pod with annotation {annotation} would not be converted."
    )
    return Finding("NEU201", f"metadata.annotations[{annotation}]", message, "Remove the annotation.")


def too_large(excess: Excess) -> Finding:
    """NEU114: a part of the pod exceeds its limit."""
    return Finding("NEU114", excess.path, f"the pod is too large: {excess.text}.", "Make it smaller.")


def too_many_terms(count: int, most: int) -> Finding:
    """NEU114: conversion would have to change too many node selector terms."""
    path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    message = f"the pod has too many node selector terms: {count}, at most {most}."
    return Finding("NEU114", path, message, "Write it with fewer terms.", str(count))


def same_name(path: str, name: str) -> Finding:
    """NEU114: the record tells containers apart by name."""
    message = f"two containers of the pod are called {short(name)!r}."
    return Finding("NEU114", path, message, "Give every container a name of its own.", short(name))


def names_taken() -> Finding:
    """NEU113: there is no free name for the claim."""
    return Finding(
        "NEU113",
        "spec.resourceClaims",
        f"the claim names {names.POD_CLAIM} and {names.POD_CLAIM_FALLBACK} are both taken.",
        "Rename one of the pod's own claims.",
    )


def uncounted(quotas: Iterable[LegacyQuota], context: ConversionContext) -> list[Finding]:
    """NEU204 for each quota that does not count a converted pod.

    A quota counts a claim by its DeviceClass and by the extended resource of that class
    (`pkg/quota/v1/evaluator/core/resource_claims.go`). One with scopes counts no claim.
    """
    return [_told(quota, context.options.device_class) for quota in quotas if not _counts_claims(quota, context)]


def _counts_claims(quota: LegacyQuota, context: ConversionContext) -> bool:
    served = (context.extended_resources.get(resource) == context.options.device_class for resource in quota.resources)
    return not quota.scoped and (context.options.device_class in quota.classes or all(served))


def _told(quota: LegacyQuota, device_class: str) -> Finding:
    place = (
        "the spec.hard of a quota without scopes: with scopes it counts no claim" if quota.scoped else "its spec.hard"
    )
    return warning(
        "NEU204",
        "metadata.namespace",
        f"ResourceQuota {quota.name} no longer counts this pod.",
        f"Use {device_class}.deviceclass.resource.k8s.io/devices in {place}.",
        quota.name,
    )
