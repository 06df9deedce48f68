"""Checks the claims that PodGroups and Workloads declare for their pods, and what a pod makes of them. Pure."""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from neuron.api.pod_groups import MOST_CLAIMS, WORKLOAD, GroupClaim, claim_lists
from neuron.findings import Finding, quoted, warning
from neuron.names import DNS_LABEL

_SHOWN: Final = 60
_MOST_TEMPLATES: Final = 8
"""PodGroup templates of a Workload (WorkloadMaxPodGroupTemplates of scheduling.k8s.io)."""
_MISSING: Final = {"ResourceClaimTemplate": "NEU705", "ResourceClaim": "NEU706"}


def check_claims(kind: str, data: Mapping[str, object]) -> Iterator[Finding]:
    """NEU712: claims that the API server does not accept."""
    for claims in itertools.islice(claim_lists(kind, data), _MOST_TEMPLATES + 1):
        if len(claims) > MOST_CLAIMS:
            path = claims[0].path.rpartition("[")[0]
            message = f"the PodGroup has {len(claims)} claims, and Kubernetes allows {MOST_CLAIMS}."
            yield Finding("NEU712", path, message, f"Keep {MOST_CLAIMS} or fewer.", str(len(claims)))
        seen: set[str] = set()
        for claim in claims[: MOST_CLAIMS + 1]:
            yield from _check_form(claim, seen)
            seen.add(claim.name)


def _check_form(claim: GroupClaim, seen: Collection[str]) -> Iterator[Finding]:
    shown = quoted(claim.name, _SHOWN)
    if not DNS_LABEL.fullmatch(claim.name):
        message = f"name {shown} of a claim of a PodGroup is no DNS label."
        yield Finding("NEU712", f"{claim.path}.name", message, "Use lower-case letters, digits and dashes.", claim.name)
    elif claim.name in seen:
        message = f"the PodGroup has two claims with the name {shown}."
        yield Finding("NEU712", f"{claim.path}.name", message, "Give each claim its own name.", claim.name)
    if len(claim.objects) != 1:
        what = "both a template and a claim" if claim.objects else "neither a template nor a claim"
        message = f"claim {shown} of the PodGroup names {what}."
        fix = "Set resourceClaimTemplateName or resourceClaimName, and not both."
        yield Finding("NEU712", claim.path, message, fix, claim.name)


def check_missing(kind: str, data: Mapping[str, object], missing: Collection[tuple[str, str]]) -> Iterator[Finding]:
    """NEU705 and NEU706: objects that do not exist.

    Args:
        missing: kind and name of claims and templates that do not exist in its namespace.
    """
    for claim in itertools.chain.from_iterable(claim_lists(kind, data)) if missing else ():
        for of, name in claim.objects:
            if (of, name) in missing:
                field = f"{of[0].lower()}{of[1:]}Name"
                message = f"{of} {name[:_SHOWN]} does not exist in this namespace."
                groups = "PodGroups of this Workload wait" if kind == WORKLOAD else "The pods of the PodGroup wait"
                yield warning(
                    _MISSING[of], f"{claim.path}.{field}", message, f"{groups} until it does: create it.", name
                )


def check_member(
    group: str, shared: Sequence[GroupClaim], own: Sequence[GroupClaim], made: Collection[GroupClaim] = ()
) -> Iterator[Finding]:
    """Findings about a pod of a PodGroup: it shares a claim only if both entries are equal.

    Args:
        group: name of the PodGroup.
        shared: the claims of the group.
        own: the claims of the pod.
        made: those that conversion adds.

    Yields:
        NEU713 for an entry that has the name of a shared claim and refers to another object; NEU714 for the claim of
        a converted pod that is shared.
    """
    by_name = {each.name: each for each in shared if each.name}
    for entry in (*own, *made):
        claim = by_name.get(entry.name)
        if claim is None or not claim.objects or not entry.objects:
            continue
        shown = quoted(entry.name, _SHOWN)
        (theirs, their_name), (kind, name) = claim.objects[0], entry.objects[0]
        equal, added = (theirs, their_name) == (kind, name), entry in made
        if not equal and not added:
            message = (
                f"claim {shown} of the pod is {kind} {name[:_SHOWN]}, and claim {shown} of PodGroup {group[:_SHOWN]} is"
                f" {theirs} {their_name[:_SHOWN]}: the pod does not share the claim of its group."
            )
            fix = "Refer to the same object to share it, or give the claim another name."
            yield warning("NEU713", entry.path, message, fix, entry.name)
        elif equal and added:
            message = (
                f"PodGroup {group[:_SHOWN]} shares claim {shown} of {kind} {name[:_SHOWN]} among its pods: conversion"
                " makes an equal entry for this pod, so that it gets no devices of its own."
            )
            fix = "Keep it if the pods are to share the devices; else give the claim of the PodGroup another name."
            yield warning("NEU714", entry.path, message, fix, entry.name)
