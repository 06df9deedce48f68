"""What the pods of a workload can hold: of each pod template, and all pods together."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from policies.judging.device_counts import of_pod
from policies.judging.fields import name_text
from policies.judging.knowledge import CountedPods, DeviceKnowledge
from policies.judging.tally import MOST_REASONS, Holding, PodHoldings, at_most
from policies.judging.whole_nodes import ParsingTime
from policies.schema.followable import is_of_kubernetes

_CHANGES_PODS: Final = "Scale"
"""A kind of Kubernetes' own that changes the number of another object's pods."""


def of_workload(
    data: Mapping[str, object], group: str, kind: str, knowledge: DeviceKnowledge, time: ParsingTime | None = None
) -> Holding:
    """What the pods of an object can hold together.

    An object of Kubernetes' own groups that is not in the table of kinds makes no pods; of other kinds it is not known.
    """
    if not data:
        return _together((), (), "")
    pods = knowledge.count_pods(data, group, kind)
    if pods is not None:
        return _together(pods, [of_pod(each.template, knowledge, time) for each in pods], "")
    counted = is_of_kubernetes(group) and kind != _CHANGES_PODS
    return _together((), (), "" if counted else f"how many pods a {name_text(kind)} makes is not known")


def _together(pods: Sequence[CountedPods], holdings: Sequence[Holding], unknown: str) -> Holding:
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
