"""Checks of workloads that have fields for Neuron devices or claims, and of DeviceTaintRules. Pure."""

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from neuron import names
from neuron.api.claim_reader import describe
from neuron.api.fields import mapping, mappings, text
from neuron.api.slices import NARROWING
from neuron.api.workloads import (
    MOST_CLAIMS,
    ULTRASERVER,
    ULTRASERVERS_API,
    WORKLOAD,
    GroupClaim,
    claim_lists,
)
from neuron.findings import Finding, closest_word, did_you_mean, quoted, warning
from neuron.names import DNS_LABEL

_SHOWN: Final = 60
_MISSING: Final = {"ResourceClaimTemplate": "NEU705", "ResourceClaim": "NEU706"}


def check_claims(kind: str, data: Mapping[str, object]) -> Iterator[Finding]:
    """NEU712: claims that the API server does not accept."""
    # A Workload has at most 8 templates (WorkloadMaxPodGroupTemplates of scheduling.k8s.io).
    for claims in itertools.islice(claim_lists(kind, data), 8 + 1):
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


_SIZES: Final = (1, 2, 4)
_LNC: Final = (1, 2)
_STRATEGIES: Final = ("NoOp", "RestartAll", "MigrateAffected")
_OLDER: Final = {"ReplaceAffected": "MigrateAffected"}
"""A strategy of AWS's documentation that the CustomResourceDefinition calls otherwise."""
_WORKLOAD: Final = (
    "instanceType",
    "topologySize",
    "serverCount",
    "allocationPolicy",
    "resourceClaimTemplate",
    "config",
)
_NODE: Final = ("nodeId", "nodeName", "linkStatusHorizontal", "linkStatusVertical")


# --- AWS's UltraServer operator: its CustomResourceDefinitions admit any `topologySize` from 1 to 4, and any text as
# `failureStrategy`, also what the operator cannot serve.


def check_workload(data: Mapping[str, object]) -> Iterator[Finding]:
    """NEU715 and NEU716 about a NeuronUltraServerWorkload."""
    yield from _check_version(data)
    spec = mapping(data.get("spec"))
    yield from _check_fields(spec, "spec", _WORKLOAD, _WORKLOAD[:3])
    yield from _check_text(spec, "instanceType", "spec")
    yield from _check_number(spec, "topologySize", "spec", _SIZES)
    count = spec.get("serverCount")
    if "serverCount" in spec and (type(count) is not int or count < 1):
        yield _wrong("spec.serverCount", "serverCount", count, "a number from 1 on")
    policy, config = mapping(spec.get("allocationPolicy")), mapping(spec.get("config"))
    template = mapping(spec.get("resourceClaimTemplate"))
    yield from _check_fields(policy, "spec.allocationPolicy", ("failureStrategy",))
    yield from _check_strategy(policy.get("failureStrategy"))
    yield from _check_fields(config, "spec.config", ("logicalNeuronCore",))
    yield from _check_number(config, "logicalNeuronCore", "spec.config", _LNC)
    required = ("name",) if "resourceClaimTemplate" in spec else ()
    yield from _check_fields(template, "spec.resourceClaimTemplate", ("name",), required)
    yield from _check_text(template, "name", "spec.resourceClaimTemplate")


def check_ultraserver(data: Mapping[str, object]) -> Iterator[Finding]:
    """NEU715 and NEU716 about a NeuronUltraServer, which the operator writes."""
    yield from _check_version(data)
    spec = mapping(data.get("spec"))
    yield from _check_fields(spec, "spec", ("instanceType", "topology"), ("instanceType", "topology"))
    yield from _check_text(spec, "instanceType", "spec")
    for index, node in enumerate([*mappings(spec.get("topology"))][:64]):  # an UltraServer has at most 4
        path = f"spec.topology[{index}]"
        yield from _check_fields(node, path, _NODE, _NODE)
        yield from _check_text(node, "nodeName", path)
        if "nodeId" in node and type(node["nodeId"]) is not int:
            yield _wrong(f"{path}.nodeId", "nodeId", node["nodeId"], "a number")


def _check_version(data: Mapping[str, object]) -> Iterator[Finding]:
    """NEU716: AWS's documentation writes v1 in places, and no cluster serves it."""
    version = text(data.get("apiVersion"))
    if version != ULTRASERVERS_API:
        kind = text(data.get("kind")) or ULTRASERVER
        message = f"AWS's UltraServer operator serves {kind} as {ULTRASERVERS_API}, not {quoted(version, _SHOWN)}."
        yield warning("NEU716", "apiVersion", message, f"Write apiVersion: {ULTRASERVERS_API}.", version)


def _check_fields(
    owner: Mapping[str, object], path: str, known: Sequence[str], required: Collection[str] = ()
) -> Iterator[Finding]:
    for key in [each for each in owner if each not in known][:64]:
        shown, field = quoted(key, _SHOWN), path.rpartition(".")[2]
        message = f"{field} has no field {shown}.{did_you_mean(str(key), known)}"
        yield Finding("NEU715", f"{path}.{str(key)[:_SHOWN]}", message, f"Its fields are {', '.join(known)}.", str(key))
    for key in required:
        if key not in owner:
            yield Finding("NEU715", f"{path}.{key}", f"{key} is missing.", f"Set {key}.")


def _check_text(owner: Mapping[str, object], key: str, path: str) -> Iterator[Finding]:
    if key in owner and not (isinstance(owner[key], str) and owner[key]):
        yield _wrong(f"{path}.{key}", key, owner[key], "a name")


def _check_number(owner: Mapping[str, object], key: str, path: str, allowed: Sequence[int]) -> Iterator[Finding]:
    value = owner.get(key)
    if key in owner and (type(value) is not int or value not in allowed):
        *first, last = map(str, allowed)
        yield _wrong(f"{path}.{key}", key, value, f"{', '.join(first)} or {last}")


def _check_strategy(value: object) -> Iterator[Finding]:
    if value is None or value in _STRATEGIES:
        return
    path = "spec.allocationPolicy.failureStrategy"
    if isinstance(value, str) and value in _OLDER:
        message = f"failureStrategy {value} is of AWS's documentation; the operator calls it {_OLDER[value]}."
        yield warning("NEU715", path, message, f"Write {_OLDER[value]}.", value)
        return
    hint = did_you_mean(value, _STRATEGIES) if isinstance(value, str) else ""
    yield _wrong(path, "failureStrategy", value, f"{', '.join(_STRATEGIES[:-1])} or {_STRATEGIES[-1]}", hint)


def _wrong(path: str, field: str, value: object, wanted: str, hint: str = "") -> Finding:
    message = f"{field} is {describe(value)}, not {wanted}.{hint}"
    return Finding("NEU715", path, message, f"Write {wanted}.", quoted(value, _SHOWN))


EFFECTS: Final = ("None", "NoSchedule", "NoExecute")
_DEVICE: Final = re.compile(r"neuron-?device-?[0-9]{1,3}", re.ASCII)
"""Device names in both spellings of AWS."""
_FIELDS: Final = ("driver", "pool", "device")
_SPEC: Final = "spec.deviceSelector"
_NIL_ISSUE: Final = "kubernetes/kubernetes#141620"


# --- DeviceTaintRules: what they select, and their taint


def check_taint_rule(item: Mapping[str, object]) -> Iterator[Finding]:
    """The findings about one rule, in the order of its fields."""
    spec = item.get("spec")
    if not isinstance(spec, Mapping):
        yield Finding("NEU546", "spec", "the DeviceTaintRule has no spec.", "Give it a selector and a taint.")
        return
    yield from _selector(spec.get("deviceSelector"))
    taint = spec.get("taint")
    effect = taint.get("effect") if isinstance(taint, Mapping) else None
    if effect not in EFFECTS:
        close = closest_word(effect, EFFECTS) if isinstance(effect, str) else ""
        hint = f" Did you mean '{close}'?" if close else ""
        message = f"the effect {quoted(effect)} of a device taint does not exist.{hint}"
        yield Finding("NEU546", "spec.taint.effect", message, f"Use one of {', '.join(EFFECTS)}.", str(effect))


def _selector(selector: object) -> Iterator[Finding]:
    if selector is None:
        message = (
            "the DeviceTaintRule has no deviceSelector: by its documentation it taints nothing, and schedulers of"
            f" Kubernetes 1.37 taint every device of every driver by it ({_NIL_ISSUE})."
        )
        yield warning("NEU545", _SPEC, message, "Name driver, pool and device.")
        return
    if not isinstance(selector, Mapping):
        yield Finding(
            "NEU546", _SPEC, f"the deviceSelector is {quoted(selector)}, not an object.", "Name driver and pool."
        )
        return
    for field in selector:
        if field in NARROWING:
            message = (
                f"the field {field} of a deviceSelector exists up to Kubernetes 1.34 only, and later versions drop it."
            )
            yield warning("NEU545", f"{_SPEC}.{field}", message, "Select by driver, pool and device.", field)
        elif field not in _FIELDS:
            close = closest_word(str(field), _FIELDS)
            hint = f" Did you mean '{close}'?" if close else ""
            message = f"a deviceSelector has no field {quoted(field)}.{hint}"
            yield Finding("NEU546", f"{_SPEC}.{field}", message, f"Its fields are {', '.join(_FIELDS)}.", str(field))
    if not any(selector.get(field) for field in (*_FIELDS, *NARROWING)):
        message = "the DeviceTaintRule selects every device of every driver in the cluster."
        yield warning("NEU545", _SPEC, message, f"Set driver: {names.DRIVER}, and a pool or device.")
    driver = selector.get("driver")
    if isinstance(driver, str) and driver != names.DRIVER and closest_word(driver, [names.DRIVER]):
        message = f"the driver {quoted(driver)} publishes no devices. Did you mean '{names.DRIVER}'?"
        yield Finding("NEU546", f"{_SPEC}.driver", message, f"Write driver: {names.DRIVER}.", driver)
    device = selector.get("device")
    published = isinstance(device, str) and (device == names.NODE_DEVICE or _DEVICE.fullmatch(device) is not None)
    if driver == names.DRIVER and isinstance(device, str) and not published:
        message = f"the device {quoted(device)} is no name that the Neuron driver publishes."
        fix = f"Its devices are neuron-device-0, neuron-device-1 and so on, and {names.NODE_DEVICE}."
        yield warning("NEU545", f"{_SPEC}.device", message, fix, device)
