"""Which free, connected devices of a node a claim does not try. Pure.

A request has at most 8 alternatives, so a claim does not name every run of devices (NEU219). The claim is asked again
with every connected set of the node: if it then fits, the devices that it gets are free and not tried.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from commands.cluster.reader import Object
from commands.devices import connected
from commands.devices.allocator_inputs import JOINT, ClaimDemand
from commands.devices.devices import NodeMap
from neuron.allocator.search import (
    AllocatorAlternative,
    AllocatorClaim,
    AllocatorConstraint,
    AllocatorDevice,
    AllocatorNode,
    AllocatorRequest,
    AllocatorResult,
    SearchTooLongError,
)
from neuron.api.fields import mapping, mappings, text
from neuron.hardware.device_shapes import DEVICE_ID

_USERS: Final = ("initContainers", "containers")


def untried(
    pod: Object, demand: ClaimDemand, node: AllocatorNode, mapped: NodeMap
) -> tuple[AllocatorResult, ...] | None:
    """The devices that the claims of a pod would get if they tried every connected set of a node; None: not known.

    Args:
        pod: after conversion: its containers say which requests they use together.
        node: with what other claims hold.
    """
    if demand.elsewhere or not all(map(_connects, demand.claim.constraints)):
        return None
    asked = [_admitting(each, node.devices) for each in demand.claim.requests]
    parts = [part for each in asked for part in each.alternatives]

    def admits(device: AllocatorDevice) -> bool:
        return any(part.selects(device) for part in parts)

    found = [_everywhere(each, admits, mapped) for each in _used_together(pod, asked)]
    # The largest first, as in claims: they have the fewest places.
    requests = sorted((each for each in found if each is not None), key=lambda each: -(each.alternatives[0].count or 0))
    if len(requests) < len(found):
        return None
    try:
        return node.allocate(AllocatorClaim(tuple(requests)))
    except SearchTooLongError:
        return None


def _connects(constraint: AllocatorConstraint) -> bool:
    return not constraint.distinct and connected.connects(constraint.attribute)


def _admitting(request: AllocatorRequest, devices: Sequence[AllocatorDevice]) -> AllocatorRequest:
    """The request with the alternatives that admit a device of the node."""
    parts = tuple(part for part in request.alternatives if any(map(part.selects, devices)))
    return AllocatorRequest(request.name, parts)


def _used_together(pod: Object, requests: Sequence[AllocatorRequest]) -> Iterator[list[AllocatorRequest]]:
    """The requests by what one container uses."""
    sets = [{place} for place in range(len(requests))]
    spec = mapping(pod.get("spec"))
    for container in (each for field in _USERS for each in mappings(spec.get(field))):
        used: set[int] = set()
        for entry in mappings(mapping(container.get("resources")).get("claims")):
            claim, request = text(entry.get("name")), text(entry.get("request"))
            used |= {place for place, each in enumerate(requests) if _names(claim, request, each.name)}
        if used:
            joined = used.union(*(each for each in sets if each & used))
            sets = [*(each for each in sets if not each & used), joined]
    return ([requests[place] for place in sorted(each)] for each in sorted(sets, key=min))


def _names(claim: str, request: str, name: str) -> bool:
    """Whether an entry of a container is for a request of the joint claim."""
    own, joint, bare = name.rpartition(JOINT)
    return (not joint or own == claim) and request in ("", bare)


def _everywhere(
    requests: Sequence[AllocatorRequest], admits: Callable[[AllocatorDevice], bool], mapped: NodeMap
) -> AllocatorRequest | None:
    """One request for what one container uses, with every connected set of a node as an alternative.

    A share of one device is as it is. None where a share is beside devices, or a count is not known.

    Args:
        admits: whether a request of the claim admits a device.
    """
    parts = [part for each in requests for part in each.alternatives]
    counts = [{part.count for part in each.alternatives} for each in requests]
    if any(part.capacity or part.admin_access for part in parts):
        return requests[0] if len(requests) == 1 and counts[0] == {1} else None
    known = [count for each in counts if len(each) == 1 for count in each if count is not None]
    if len(known) < len(requests):
        return None
    alternatives = tuple(
        AllocatorAlternative(str(number), _among(ids, admits), sum(known), tolerations=parts[0].tolerations)
        for number, ids in enumerate(connected.sets_for(mapped, sum(known)))
    )
    return AllocatorRequest(requests[0].name, alternatives) if alternatives else None


def _among(ids: Collection[int], admits: Callable[[AllocatorDevice], bool]) -> Callable[[AllocatorDevice], bool]:
    return lambda device: device.attributes.get(DEVICE_ID) in ids and admits(device)
