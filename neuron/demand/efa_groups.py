"""Which device group ties the Neuron devices of a pod to EFA interfaces, and whether that many are in the group.

Both drivers publish `resource.aws.com/devicegroup<size>_id`. A constraint on it connects the interfaces of a group with
the Neuron devices of the same group, so only whole groups are served, and only if one container uses all of them.
"""

from collections.abc import Sequence
from typing import Final

from neuron import names
from neuron.demand.containers import Ask
from neuron.demand.instance_fit import DeviceConfig, Serving, TypeRefusal
from neuron.demand.interfaces import refused
from neuron.hardware import device_groups
from neuron.hardware.instances import InstanceType

_SHOWN: Final = 63
"""Characters of a container's name in messages."""


def group_of(serving: Serving) -> int:
    """Size of the device group that ties the devices of a pod to interfaces; 0 if there is none."""
    size = sum(serving.layout.counts.values())
    whole = not serving.layout.shares and (size == 1 or size in serving.entry.groups)
    return size if whole and device_groups.interfaces(serving.entry.name, size) else 0


def most_interfaces(entry: InstanceType) -> int:
    """EFA interfaces of a node; 0 if AWS publishes no map."""
    return device_groups.interfaces(entry.name, entry.devices or 0)


def tied(serving: Serving, asks: Sequence[Ask], config: DeviceConfig) -> Serving | TypeRefusal:
    """The serving if the interfaces of `config` fit into the group of its devices; else NEU125."""
    wanted = config.efa
    if wanted is None:
        return serving
    size = group_of(serving)
    name, devices = serving.entry.name, sum(serving.layout.counts.values())
    most = device_groups.interfaces(name, size)
    if size and wanted.count <= most and config.ultraserver_mode is None:
        return serving
    if config.ultraserver_mode is not None:
        why, fix = "a whole UltraServer node has no device group", "Drop the annotation, or the EFA limit."
    elif serving.layout.shares:
        why, fix = f"a share of a device of {name} has no device group", "Request whole devices."
    elif size:
        why = device_groups.described(name, size)
        fix = f"Request at most {most}."
    elif most_interfaces(serving.entry):
        why = f"{devices} devices of {name} are no connected group"
        fix = f"Request {', '.join(map(str, sorted({1, *serving.entry.groups})))} devices."
    else:
        why = f"{name} has no device groups that tie EFA interfaces to Neuron devices"
        fix = "Select an instance type of trn1, trn1n, trn2 or trn3 with 16 devices, or drop the EFA limit."
    path = next(each.path for each in asks if each.amount)
    asked = f"container {wanted.container[:_SHOWN]} asks for {names.RESOURCE_EFA}: {wanted.count}"
    beside = "one device" if devices == 1 else f"{devices} devices"
    return TypeRefusal((refused(path, f"{asked} with {beside}, and {why}.", fix, wanted.count),))
