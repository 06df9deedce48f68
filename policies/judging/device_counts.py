"""How many Neuron devices a pod or claim can hold at once: the maximum over all alternatives and DeviceClasses.

Pods follow the pod resource formula of `k8s.io/component-helpers/resource`: containers and sidecars hold their devices
together; an init container holds its own beside those of the sidecars that started before it. Devices from limits and
devices from claims are added, because the device plugin and the DRA driver do not know of each other's allocations.
"""

import dataclasses
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from conversion.objects.pod_numbers import WorkloadPods, pods_of_workload
from neuron import names
from neuron.api.claim_reader import VERSIONS, read_claim
from neuron.api.fields import mapping, mappings, sequence
from policies.judging.knowledge import DeviceKnowledge
from policies.judging.selectors import DeviceSelectors
from policies.judging.tally import MOST_REASONS, Concurrent, DeviceTally, Holding, PodHoldings, at_most, name_text
from policies.schema.followable import is_of_kubernetes

_UNCOUNTED: Final = ("NEU506", "NEU530")
"""Findings about a claim that may be for more devices than were read: its mode is not known, a list is too long."""


def of_pod(pod: Mapping[str, object], knowledge: DeviceKnowledge, time: DeviceSelectors | None = None) -> Holding:
    """What a pod can hold, by its containers and by its claims; `time` bounds the parsing of selectors."""
    return _of_pod(pod, knowledge, time, None)


def _of_pod(
    pod: Mapping[str, object], knowledge: DeviceKnowledge, time: DeviceSelectors | None, shared: "_Shared | None"
) -> Holding:
    tally = DeviceTally(knowledge, time)
    spec, metadata = mapping(pod.get("spec")), mapping(pod.get("metadata"))
    lnc = mapping(metadata.get("annotations")).get(names.ANNOTATION_LNC)
    if lnc in ("1", "2"):
        tally.sets_lnc(int(lnc))
    first, main = list(mappings(spec.get("initContainers"))), list(mappings(spec.get("containers")))
    for container in (*first, *main, *mappings(spec.get("ephemeralContainers"))):
        if container.get("env"):
            tally.environment(container)
    now, before = Concurrent(), Concurrent()
    for section, containers in (("initContainers", first), ("containers", main)):
        recorded = mapping(knowledge.record.get(section)) if knowledge.record else {}
        for container in containers:
            init = section == "initContainers" and container.get("restartPolicy") != "Always"
            name = str(container.get("name", ""))
            live = tally.container(name, container.get("resources"), init=init)
            if recorded and (amounts := mapping(recorded.get(name))):
                past = tally.container(name, {"limits": amounts}, init=init)
                if knowledge.strips_limits:
                    live, past = (0, 0), (max(live[0], past[0]), max(live[1], past[1]))
                before.add(*past, init=init)
            now.add(*live, init=init)
    return _with_claims(spec, now, before, tally, shared)


def of_claim(
    spec: object, knowledge: DeviceKnowledge, time: DeviceSelectors | None = None, version: str = VERSIONS[0]
) -> Holding:
    """What a claim, or a claim of a template, can hold; `version`: the apiVersion of its spec."""
    tally = DeviceTally(knowledge, time)
    claim, form = read_claim("ResourceClaim", version, spec)
    for finding in form:
        if finding.code in _UNCOUNTED or ".capacity" in finding.path:
            tally.doubt(finding.message.rstrip("."))
    return tally.holding(*tally.claim(claim), converted=False)


def read_record(pod: Mapping[str, object]) -> Mapping[str, object]:
    """The annotation that records a pod's conversion, not verified; empty if it is not a JSON object."""
    annotations = mapping(mapping(pod.get("metadata")).get("annotations"))
    text = annotations.get(names.ANNOTATION_CONVERTED_FROM)
    try:
        return mapping(json.loads(text)) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return {}


class _OfClaims(NamedTuple):
    """What a pod holds by its claims.

    Attributes:
        devices: of all.
        cores: of shares, without those of the claim that conversion added.
        named: ResourceClaims, and the devices of these.
        tally: what their requests say.
    """

    devices: int
    cores: int
    named: tuple[int, int]
    tally: DeviceTally


_Shared: TypeAlias = dict[int, _OfClaims]
"""By identity of a list of claims, which the pods of a Workflow can share. Counted for each pod, it takes a square."""


def _with_claims(
    spec: Mapping[str, object], now: Concurrent, before: Concurrent, tally: DeviceTally, shared: _Shared | None
) -> Holding:
    """What a pod holds by its containers, as they are and as they were before conversion, and by its claims."""
    entries = spec.get("resourceClaims")
    if shared is None:
        found = _of_claims(entries, before, tally)
    else:
        if id(entries) not in shared:
            shared[id(entries)] = _of_claims(entries, before, DeviceTally(tally.knowledge, tally.time))
        found = shared[id(entries)]
        tally.add(found.tally)
    holding = tally.holding(
        at_most(now.devices + found.devices),
        at_most(now.cores + before.cores + found.cores),
        converted=tally.knowledge.record is not None,
    )
    return dataclasses.replace(holding, named_claims=found.named[0], named_devices=found.named[1])


def _of_claims(entries: object, before: Concurrent, tally: DeviceTally) -> _OfClaims:
    """What a pod holds by its claims.

    A ResourceClaim that several entries name is allocated once. The record of a converted pod has the cores of the
    claim that conversion added.
    """
    knowledge = tally.knowledge
    held = cores = of_named = 0
    seen: set[str] = set()
    for entry in sequence(entries):
        if not isinstance(entry, dict):
            continue
        template, claim = entry.get("resourceClaimTemplateName"), entry.get("resourceClaimName")
        ours = knowledge.record is not None and entry.get("name") == knowledge.recorded_claim
        added = (0, 0)
        if isinstance(template, str) and template:
            known = knowledge.templates.get(template)
            if known is None and ours:
                added = (before.devices, 0)
            else:
                added = tally.claim(known, f"ResourceClaimTemplate {name_text(template)}")
        elif isinstance(claim, str) and claim:
            if claim not in seen:
                seen.add(claim)
                added = tally.claim(knowledge.claims.get(claim), f"ResourceClaim {name_text(claim)}")
                of_named = at_most(of_named + added[0])
        elif tally.may_doubt:
            tally.doubt(
                f"the claim {name_text(str(entry.get('name', ''))[:60])} names no ResourceClaim and no template"
            )
        if added != (0, 0):
            held = at_most(held + added[0])
            cores = cores if ours else at_most(cores + added[1])
    return _OfClaims(held, cores, (len(seen), of_named), tally)


_CHANGES_PODS: Final = "Scale"
"""A kind of Kubernetes' own that changes the number of another object's pods."""


def of_workload(
    data: Mapping[str, object], group: str, kind: str, knowledge: DeviceKnowledge, time: DeviceSelectors | None = None
) -> Holding:
    """What the pods of an object can hold together.

    An object of Kubernetes' own groups that is not in the table of kinds makes no pods; of other kinds it is not known.
    """
    if not data:
        return _together((), (), "")
    pods = pods_of_workload(data, group, kind)
    if pods is not None:
        shared: _Shared | None = {} if len(pods) > 1 else None
        return _together(pods, [_of_pod(each.template, knowledge, time, shared) for each in pods], "")
    counted = is_of_kubernetes(group) and kind != _CHANGES_PODS
    return _together((), (), "" if counted else f"how many pods a {name_text(kind)} makes is not known")


def _together(pods: Sequence[WorkloadPods], holdings: Sequence[Holding], unknown: str) -> Holding:
    """What all pods hold. `unknown`: why there may be others."""
    devices = cores = number = 0
    doubts: list[str] = [unknown]
    templates = []
    for each, held in zip(pods, holdings, strict=True):
        times = each.number or 0
        devices, cores = at_most(devices + times * held.devices), at_most(cores + times * held.cores)
        number = at_most(number + times)
        if each.number != 0:
            doubts.append(held.unknown)
        if each.number is None and (held.devices or held.unknown or not each.template):
            doubts.append(each.why)
        templates.append(
            {
                "path": each.path,
                "devices": held.devices,
                "cores": held.cores,
                "devicesKnown": not held.unknown,
                "pods": times,
                "podsKnown": each.number is not None,
            }
        )
    counted = not unknown and all(each.number is not None for each in pods)
    of_pods = PodHoldings(
        max((held.devices for held in holdings), default=0),
        max((held.cores for held in holdings), default=0),
        _reasons([unknown, *(held.unknown for held in holdings), *(each.why for each in pods if not each.template)]),
        number if counted else None,
        tuple(templates),
    )
    return Holding(
        tuple(itertools.chain.from_iterable(held.requests for held in holdings)),
        devices,
        cores,
        tuple(dict.fromkeys(itertools.chain.from_iterable(held.lncs for held in holdings))),
        tuple(dict.fromkeys(itertools.chain.from_iterable(held.classes for held in holdings))),
        converted=False,
        unknown=_reasons(doubts),
        named_claims=sum(held.named_claims for held in holdings),
        named_devices=at_most(sum(held.named_devices for held in holdings)),
        pods=of_pods,
    )


def _reasons(found: Iterable[str]) -> str:
    return "; ".join(list(dict.fromkeys(filter(None, found)))[:MOST_REASONS])
