"""Keeps labels of the driver's own Node: those of its UltraServer, and the one by which AWS's agents find Neuron nodes.

Pods of a group find nodes of one UltraServer by the former.

Keys and values: the Neuron documentation of UltraServers. `ultraserver-mode` has values of the kernel driver's mode
enum, joined by `_`; `-server-id-N` and `-node-id-N` are the node's place in its set of N nodes.
"""

import asyncio
import logging
import re
from collections.abc import Mapping
from typing import Final

from kubeletplugin.changes import Clock, WritePause, waking
from kubeletplugin.discover.health import HealthMonitor
from kubeletplugin.discover.own_node import OwnNode
from kubeletplugin.discover.sysfs import UltraServer
from kubeletplugin.metrics import PluginMetrics
from kubeletplugin.ports import WAITS, KubeError
from neuron import names

LABEL_MODE: Final = f"{names.ULTRASERVER_LABELS}mode"
LABEL_NODE_ID: Final = f"{names.ULTRASERVER_LABELS}node-id-{{}}"
SIZES: Final = (2, 4)
KEYS: Final = (
    LABEL_MODE,
    *(names.ultraserver_topology_label(nodes) for nodes in SIZES),
    *(LABEL_NODE_ID.format(nodes) for nodes in SIZES),
)
"""The labels that the driver sets and removes."""
PRESENT: Final = "true"
"""Value of `names.LABEL_PRESENT`. The driver sets this label where it is missing, and never removes it: without a
device, an agent that runs there can say why. It changes no other label."""

_VALUE: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)

_log = logging.getLogger(__name__)


def ultraserver_labels(ultraserver: UltraServer | None) -> Mapping[str, str] | None:
    """The labels of a node; None while its UltraServer elects, when nothing is known."""
    if ultraserver is None:
        return {}
    if ultraserver.busy:
        return None
    labels = {LABEL_MODE: "_".join(str(mode) for mode in sorted(ultraserver.modes))}
    for nodes in SIZES:
        member = ultraserver.members.get(nodes)
        if member is not None and member.node_id < nodes:
            labels[names.ultraserver_topology_label(nodes)] = member.server_id
            labels[LABEL_NODE_ID.format(nodes)] = str(member.node_id)
    return {key: value for key, value in labels.items() if _VALUE.fullmatch(value)}


def label_changes(present: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str | None]:
    """The changes to the labels of a Node, None for a removal; empty if the labels are as wanted."""
    stale: dict[str, str | None] = {key: None for key in KEYS if key in present and key not in wanted}
    return stale | {key: value for key, value in wanted.items() if present.get(key) != value}


class Labeller:
    """Labels one Node until cancelled."""

    def __init__(
        self,
        node: OwnNode,
        monitor: HealthMonitor,
        *,
        clock: Clock,
        metrics: PluginMetrics,
        ultraserver: bool = True,
        present: bool = False,
    ) -> None:
        """`ultraserver`, `present`: which labels to set."""
        self._ultraserver = ultraserver
        self._present = present
        self._node = node
        self._monitor = monitor
        self._metrics = metrics
        self._pause = WritePause(clock)

    async def run(self) -> None:
        """Write differences until cancelled. Repeated writes are more and more apart: another writer may undo them."""
        wake = asyncio.Event()
        async with waking(wake, WAITS.quiet, self._node, self._monitor):
            while True:
                wake.clear()
                try:
                    written = await self._write()
                except KubeError as error:
                    self._metrics.failed("labels")
                    _log.warning("the node's labels cannot be written", extra={"error": str(error)})
                    written = True
                else:
                    self._metrics.worked("labels")
                if written:
                    await self._pause.sleep()
                else:
                    await wake.wait()

    async def _write(self) -> bool:
        state, hardware = self._node.state, self._monitor.snapshot.hardware
        if state is None:
            return False
        wanted = ultraserver_labels(hardware.ultraserver) if self._ultraserver else None
        changes = {} if wanted is None else label_changes(state.ultraserver_labels, wanted)
        if self._present and hardware.devices and state.present is None:
            changes[names.LABEL_PRESENT] = PRESENT
        if changes:
            await self._node.label(changes)
            _log.info("node labelled", extra={"labels": changes})
        return bool(changes)
