"""The attributes by which a claim requests connected devices, for every instance type.

Types whose devices form a ring or a chain have windows (`windows`). Other types have groups: with AWS's ids where AWS
publishes a map (`device_groups`), and with ids of our own for the groups that an InstanceTypeCatalog adds.
"""

from collections.abc import Collection
from typing import Final

from neuron import names
from neuron.hardware import device_groups, windows
from neuron.hardware.instances import InstanceType, Topology
from neuron.hardware.windows import Line

MOST_GROUPS: Final = 12
"""Sizes of groups that an instance type can have: a device has at most 32 attributes and capacities."""


def attributes(
    entry: InstanceType, device_id: int, devices: int, links: Collection[tuple[int, int]] | None = None
) -> dict[str, str]:
    """The connection attributes of one device, by qualified name.

    Args:
        devices: how many devices the node has, for a type that does not say it.
        links: pairs of connected devices; None where the node does not tell.
    """
    if entry.consecutive:
        line = Line(entry.devices or devices, wraps=entry.topology is Topology.RING)
        return windows.attributes(line, device_id, links) if line.devices > 1 else {}
    own = {names.device_group_attribute(size): _group_id(entry, device_id, size) for size in entry.groups if size > 1}
    return own | device_groups.group_attributes(entry.name, device_id)


def _group_id(entry: InstanceType, device_id: int, size: int) -> str:
    """As AWS's ids: equal on all nodes of a type, different for each group."""
    return device_groups.hashed(f"{entry.name}/{size}/{device_id // size}")
