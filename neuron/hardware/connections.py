"""Which devices of a node are connected, and the attributes by which a claim requests them, by instance type.

Types whose devices form a ring or a chain have windows (`windows`). Other types have groups: with AWS's ids where AWS
publishes a map (`device_groups`), and with ids of our own for the groups that an InstanceTypeCatalog adds. Which
devices are connected: the AWS Neuron documentation (neuron-ls, CONNECTED DEVICES).
"""

import functools
from collections.abc import Mapping
from typing import Final

from neuron import names
from neuron.hardware import device_groups, windows
from neuron.hardware.instances import InstanceType, Topology
from neuron.hardware.windows import Line

MOST_GROUPS: Final = 12
"""Sizes of groups that an instance type can have: a device has at most 32 attributes and capacities."""


def attributes(
    entry: InstanceType, device_id: int, devices: int, links: frozenset[tuple[int, int]] | None = None
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


PCI_ADDRESSES: Final[Mapping[str, tuple[str, ...]]] = {
    "trn1.32xlarge": (
        *("0000:10:1c.0", "0000:10:1d.0", "0000:a0:1c.0", "0000:a0:1d.0"),
        *("0000:20:1b.0", "0000:20:1c.0", "0000:90:1b.0", "0000:90:1c.0"),
        *("0000:20:1d.0", "0000:20:1e.0", "0000:90:1d.0", "0000:90:1e.0"),
        *("0000:10:1e.0", "0000:10:1b.0", "0000:a0:1e.0", "0000:a0:1b.0"),
    ),
    "trn2.48xlarge": (
        *("0000:cc:00.0", "0000:b5:00.0", "0000:b6:00.0", "0000:cb:00.0"),
        *("0000:6f:00.0", "0000:58:00.0", "0000:59:00.0", "0000:6e:00.0"),
        *("0000:9b:00.0", "0000:84:00.0", "0000:85:00.0", "0000:9a:00.0"),
        *("0000:f8:00.0", "0000:e1:00.0", "0000:e2:00.0", "0000:f7:00.0"),
    ),
}
"""PCI addresses of the devices of an instance type, by device index. Only these types have a documented list, in the
samples of `neuron-ls` in the AWS Neuron documentation."""

TORUS_WIDTH: Final = 4


def neighbours(topology: Topology, index: int, devices: int) -> tuple[int, ...]:
    """Devices that are connected with a device. On a switch all are, which no list of links says: the result is empty.

    Args:
        index: of the device, from 0.
    """
    if topology is Topology.TORUS:
        row, column = divmod(index, TORUS_WIDTH)
        rows = devices // TORUS_WIDTH
        around = (
            ((row - 1) % rows, column),
            ((row + 1) % rows, column),
            (row, (column - 1) % TORUS_WIDTH),
            (row, (column + 1) % TORUS_WIDTH),
        )
        return tuple(r * TORUS_WIDTH + c for r, c in around)
    if topology is Topology.RING:
        return tuple(dict.fromkeys(((index - 1) % devices, (index + 1) % devices)))
    if topology is Topology.CHAIN:
        return tuple(each for each in (index - 1, index + 1) if 0 <= each < devices)
    return ()


@functools.lru_cache(maxsize=64)
def links(topology: Topology, devices: int) -> tuple[tuple[int, int], ...]:
    """Pairs of connected devices of a node, each once and the smaller index first."""
    if topology is Topology.TORUS and devices % TORUS_WIDTH:
        return ()
    pairs = {
        (min(index, other), max(index, other))
        for index in range(devices)
        for other in neighbours(topology, index, devices)
        if other != index
    }
    return tuple(sorted(pairs))
