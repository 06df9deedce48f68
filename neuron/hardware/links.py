"""Which devices of a node are connected with each other, by its instance type.

Source: the AWS Neuron documentation (neuron-ls, CONNECTED DEVICES).
"""

import functools
from typing import Final

from neuron.hardware.instances import Topology

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
