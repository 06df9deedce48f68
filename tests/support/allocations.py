"""Generated claims on the model of the allocator: nodes as the driver publishes them, and claims as objects."""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from neuron import device_groups, windows
from neuron.allocator import Alternative, Capacity, Claim, Constraint, Device, Node, Request
from neuron.device_taints import DeviceTaint
from neuron.instances import InstanceType

CORES = "neuroncores"
_SINGLE = re.compile(r'!\("resourceType" in .*\) \|\| .*\.resourceType == "neuron_device"')
_TYPE = re.compile(r'"instanceType" in .* && .*\.instanceType == "([^"]+)"')
_TYPES = re.compile(r'"instanceType" in .* && .*\.instanceType in \[([^]]+)\]')
_IDS = re.compile(r'"deviceId" in .* && .*\.deviceId in \[([0-9, ]+)\]')


def node_of(entry: InstanceType, *, busy: Collection[int] = ()) -> Node:
    """A node of a type with shared cores and windows as the type says. `busy`: ids of devices that others have."""
    count, cores = entry.devices or 1, entry.cores_per_device or 1
    line = entry.line
    valid = (0, *(1 << power for power in range(cores.bit_length())))
    devices = []
    for index in range(count):
        attributes: dict[str, Any] = dict(windows.attributes(line, index)) if line and entry.windows else {}
        attributes |= device_groups.group_attributes(entry.name, index)
        attributes |= {
            "neuron.aws.com/deviceId": index,
            "neuron.aws.com/instanceType": entry.name,
            "neuron.aws.com/resourceType": "neuron_device",
        }
        capacity = {CORES: Capacity(cores, valid)} if entry.shares_cores else {}
        taints = (DeviceTaint("busy"),) if index in busy else ()
        devices.append(Device(f"d{index}", attributes, entry.shares_cores, capacity, taints=taints))
    return Node(devices)


def claim_of(spec: Mapping[str, Any]) -> Claim:
    """The claim of a ResourceClaimTemplateSpec. Raises ValueError for a selector that conversion does not generate."""
    devices = spec["spec"]["devices"]
    requests = []
    for request in devices["requests"]:
        alternatives = (
            [_alternative("", request["exactly"])]
            if "exactly" in request
            else [_alternative(each["name"], each) for each in request["firstAvailable"]]
        )
        requests.append(Request(request["name"], tuple(alternatives)))
    constraints = [
        Constraint(each["matchAttribute"], frozenset(each["requests"])) for each in devices.get("constraints", ())
    ]
    return Claim(tuple(requests), tuple(constraints))


def _alternative(name: str, devices: Mapping[str, Any]) -> Alternative:
    tests = [_test(each["cel"]["expression"]) for each in devices["selectors"]]
    capacity = {key: int(value) for key, value in devices.get("capacity", {}).get("requests", {}).items()}
    return Alternative(name, lambda device: all(test(device) for test in tests), devices["count"], capacity)


def _test(expression: str) -> Callable[[Device], bool]:
    if _SINGLE.fullmatch(expression):
        return lambda device: device.attributes.get("neuron.aws.com/resourceType") in (None, "neuron_device")
    if found := _TYPE.fullmatch(expression):
        return lambda device, name=found[1]: device.attributes.get("neuron.aws.com/instanceType") == name  # type: ignore[misc]
    if found := _TYPES.fullmatch(expression):
        types = {each.strip('" ') for each in found[1].split(",")}
        return lambda device: device.attributes.get("neuron.aws.com/instanceType") in types
    if found := _IDS.fullmatch(expression):
        ids = {int(each) for each in found[1].split(",")}
        return lambda device: device.attributes.get("neuron.aws.com/deviceId") in ids
    raise ValueError(expression)
