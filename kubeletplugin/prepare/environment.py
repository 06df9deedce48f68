"""Environment variables of the Neuron runtime, from a claim's configs and cores and the node's UltraServer files.

Sources: the Neuron runtime's configuration (NEURON_LOGICAL_NC_CONFIG, NEURON_RT_VISIBLE_CORES,
NEURON_RT_ULTRASERVER_*), and for the choice of the mode AWS's published init script for UltraServer jobs.
"""

import re
from collections.abc import Sequence
from typing import Final

from kubeletplugin.discover.sysfs import Membership, UltraServer
from neuron.api.configs import ConfigsInForce

LOGICAL_NC_CONFIG: Final = "NEURON_LOGICAL_NC_CONFIG"
ULTRASERVER_MODE: Final = "NEURON_RT_ULTRASERVER_MODE"
ULTRASERVER_SERVER_ID: Final = "NEURON_RT_ULTRASERVER_SERVER_ID"
ULTRASERVER_NODE_ID: Final = "NEURON_RT_ULTRASERVER_NODE_ID"

_CORES: Final = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", re.ASCII)
_MODES_FOR_NODES: Final = {4: (1,), 2: (3, 2), 1: (4,)}
"""Number of nodes -> values of the kernel driver's mode enum, best first.

The digits differ: 4 is "four nodes" in the config and "one node" in the enum. Two nodes can be on top of each other (3,
preferred) or side by side (2).
"""

_STANDALONE: Final = Membership("0" * 16, -1)


class UltraServerError(Exception):
    """The node cannot be part of the requested UltraServer set; the message has the reason."""


def environment(in_force: ConfigsInForce, ultraserver: UltraServer | None) -> dict[str, str]:
    """Variables for the containers of one request.

    Args:
        in_force: the request's settings. The runtime's defaults apply to missing ones.
        ultraserver: the node's UltraServer, read just before; used only if a mode is set.

    Raises:
        UltraServerError: the node has no such set, or its nodes are still electing.
    """
    variables = {}
    if in_force.logical_neuron_core is not None:
        variables[LOGICAL_NC_CONFIG] = str(in_force.logical_neuron_core)
    if in_force.ultraserver_mode is not None:
        mode, member = _ultraserver(in_force.ultraserver_mode, ultraserver)
        variables[ULTRASERVER_MODE] = str(mode)
        variables[ULTRASERVER_SERVER_ID] = member.server_id
        variables[ULTRASERVER_NODE_ID] = str(member.node_id)
    return variables


def visible_cores(numbers: Sequence[int]) -> str:
    """The value of NEURON_RT_VISIBLE_CORES: a range if the cores are consecutive, else a list.

    Args:
        numbers: logical cores, ascending, with the numbers of the host.
    """
    first, last = numbers[0], numbers[-1]
    if last - first + 1 == len(numbers) and first < last:
        return f"{first}-{last}"
    return ",".join(map(str, numbers))


def read_visible_cores(value: str) -> tuple[int, ...]:
    """The cores of a value that `visible_cores` wrote; none if it is something else."""
    found: list[int] = []
    for part in value.split(","):
        match = _CORES.fullmatch(part)
        if match is None:
            return ()
        first = int(match[1])
        found += range(first, int(match[2] or first) + 1)
    return tuple(found)


def _ultraserver(nodes: int, ultraserver: UltraServer | None) -> tuple[int, Membership]:
    candidates = _MODES_FOR_NODES[nodes]
    if nodes == 1:
        # Every node supports this, also if its list of modes does not have it.
        return candidates[0], _STANDALONE
    if ultraserver is None:
        raise UltraServerError(
            f"ultraserverMode {nodes} needs an UltraServer, but the kernel driver shows none on this node."
        )
    if ultraserver.busy:
        raise UltraServerError(
            "The nodes of the UltraServer are still electing their places; the kubelet tries again by itself."
        )
    mode = next((candidate for candidate in candidates if candidate in ultraserver.modes), None)
    member = ultraserver.members.get(nodes)
    if mode is None or member is None:
        listed = ", ".join(str(value) for value in sorted(ultraserver.modes)) or "none"
        raise UltraServerError(
            f"This node cannot be one of {nodes} UltraServer nodes: the kernel driver lists the modes {listed} "
            f"(it takes {' or '.join(map(str, candidates))}) and "
            f"{'names a' if member else 'names no'} set of {nodes} nodes."
        )
    return mode, member
