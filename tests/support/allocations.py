"""Generated claims on the model of the allocator: nodes as the driver publishes them, and claims as objects."""

import functools
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from conversion.claims import selectors
from conversion.claims.making import Claim
from neuron.allocator.search import (
    AllocatorAlternative,
    AllocatorCapacity,
    AllocatorClaim,
    AllocatorConstraint,
    AllocatorDevice,
    AllocatorNode,
    AllocatorRequest,
)
from neuron.api.taints import Taint
from neuron.hardware import device_groups, windows
from neuron.hardware.instances import InstanceType

CORES = "neuroncores"
_TYPES = re.compile(r'\.instanceType (?:== |in \[)("[^]&]*")')
_IDS = re.compile(r"\.deviceId in \[([0-9, ]+)\]")
_SEVERAL = re.compile(r"&& \((device\.attributes.* \|\| .*)\) && \(!")


def node_of(entry: InstanceType, *, busy: Collection[int] = ()) -> AllocatorNode:
    """A node of a type with shared cores and windows as the type says. `busy`: ids of devices that others have."""
    count, cores = entry.devices or 1, entry.cores_per_device or 1
    valid = (0, *(1 << power for power in range(cores.bit_length())))
    capacity = {CORES: AllocatorCapacity(cores, valid)} if entry.shares_cores else {}
    taint = (Taint("busy"),)
    return AllocatorNode(
        [
            AllocatorDevice(
                f"d{index}",
                _attributes(entry, index),
                entry.shares_cores,
                capacity,
                taints=taint if index in busy else (),
            )
            for index in range(count)
        ]
    )


@functools.cache
def _attributes(entry: InstanceType, index: int) -> Mapping[str, Any]:
    shifts = windows.attributes(entry.line, index) if entry.line and entry.windows else {}
    return {
        **shifts,
        **device_groups.group_attributes(entry.name, index),
        "neuron.aws.com/deviceId": index,
        "neuron.aws.com/instanceType": entry.name,
        "neuron.aws.com/resourceType": "neuron_device",
    }


def devices_of(claim: Claim) -> Any:
    """The section `devices` of the claim that a conversion makes."""
    return claim.template.spec["spec"]["devices"]


def claim_of(spec: Mapping[str, Any]) -> AllocatorClaim:
    """The claim of a ResourceClaimTemplateSpec. Raises ValueError for a selector that conversion does not generate."""
    devices = spec["spec"]["devices"]
    requests = []
    for request in devices["requests"]:
        alternatives = (
            [_alternative("", request["exactly"])]
            if "exactly" in request
            else [_alternative(each["name"], each) for each in request["firstAvailable"]]
        )
        requests.append(AllocatorRequest(request["name"], tuple(alternatives)))
    constraints = [
        AllocatorConstraint(each["matchAttribute"], frozenset(each["requests"]))
        for each in devices.get("constraints", ())
    ]
    return AllocatorClaim(tuple(requests), tuple(constraints))


def _alternative(name: str, devices: Mapping[str, Any]) -> AllocatorAlternative:
    tests = [_test(each["cel"]["expression"]) for each in devices.get("selectors", ())]
    capacity = {key: int(value) for key, value in devices.get("capacity", {}).get("requests", {}).items()}
    return AllocatorAlternative(name, lambda device: all(test(device) for test in tests), devices["count"], capacity)


def _test(expression: str) -> Callable[[AllocatorDevice], bool]:
    if not selectors.selects_single_devices(expression):
        raise ValueError(expression)
    several = _SEVERAL.search(expression)
    places = [_place(each) for each in (several[1].split(" || ") if several else [expression])]

    def selects(device: AllocatorDevice) -> bool:
        attributes = device.attributes
        return attributes.get("neuron.aws.com/resourceType") in (None, "neuron_device") and any(
            (types is None or attributes.get("neuron.aws.com/instanceType") in types)
            and (ids is None or attributes.get("neuron.aws.com/deviceId") in ids)
            for types, ids in places
        )

    return selects


def _place(expression: str) -> tuple[set[str] | None, set[int] | None]:
    """The types and device ids of a selector, or of one of its alternatives; None: any."""
    types, ids = _TYPES.search(expression), _IDS.search(expression)
    return (
        {each.strip('" ') for each in types[1].split(",")} if types else None,
        {int(each) for each in ids[1].split(",")} if ids else None,
    )
