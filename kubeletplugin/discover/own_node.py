"""Follows the driver's own Node (labels, UID, the legacy resources of a device plugin), keeps its labels, and reports
about it.

The labels are those of the node's UltraServer, by which pods of a group find nodes of one UltraServer, and the one by
which AWS's agents find Neuron nodes. Keys and values: the Neuron documentation of UltraServers. `ultraserver-mode` has
values of the kernel driver's mode enum, joined by `_`; `-server-id-N` and `-node-id-N` are the node's place in its set
of N nodes.
"""

import asyncio
import dataclasses
import logging
import random
import re
from collections.abc import Callable, Mapping
from typing import Final

from kubeletplugin.api_store import ApiStore
from kubeletplugin.changes import Changing, Clock, WritePause, repeat, waking
from kubeletplugin.discover.health import HealthMonitor, NodeFacts, node_facts
from kubeletplugin.discover.sysfs import UltraServer
from kubeletplugin.metrics import PluginMetrics
from kubeletplugin.ports import WAITS, JsonObject, version_of
from neuron import names
from neuron.api.nodes import read_node
from neuron.api.taints import Cordon, read_cordon
from runtime.api_server import ApiServerError

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


@dataclasses.dataclass(frozen=True, slots=True)
class NodeState:
    """What the driver reads in its Node.

    Attributes:
        legacy: legacy resources that are allocatable, with their amounts: a device plugin offers the devices.
        ultraserver_publish: value of the label that overrides the setting; None without the label.
        share_cores: value of the label that overrides the setting; None without the label.
        present: value of the label by which AWS's agents find Neuron nodes; None without the label.
    """

    facts: NodeFacts
    legacy: Mapping[str, int] = dataclasses.field(default_factory=dict)
    ultraserver_publish: str | None = None
    ultraserver_labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    present: str | None = None
    share_cores: str | None = None
    cordon: Cordon = dataclasses.field(default_factory=Cordon)


def node_state(item: Mapping[str, object]) -> NodeState:
    """Read a Node object."""
    node = read_node(item)
    labels = node.labels
    return NodeState(
        node_facts(node),
        node.legacy,
        labels.get(names.LABEL_ULTRASERVER_PUBLISH),
        {key: value for key, value in labels.items() if key.startswith(names.ULTRASERVER_LABELS)},
        labels.get(names.LABEL_PRESENT),
        labels.get(names.LABEL_SHARE_CORES),
        read_cordon(node.annotations.get(names.ANNOTATION_CORDONED)),
    )


class OwnNode(Changing):
    """The Node as last seen, and waiting for changes of its `state`."""

    def __init__(
        self,
        store: ApiStore,
        *,
        clock: Clock,
        metrics: PluginMetrics,
        use_facts: Callable[[NodeFacts], None] = lambda _: None,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """`use_facts` gets the facts whenever the state changes; `jitter(a, b)` is a random number between both."""
        super().__init__()
        self.store: Final = store
        self._use_facts = use_facts
        self.state: NodeState | None = None
        self._clock = clock
        self._metrics = metrics
        self._jitter = jitter
        self._version = 0

    async def read(self) -> NodeState:
        """Read the Node now. Raises ApiServerError."""
        body = await self.store.node()
        if version_of(body) < self._version:
            # A watch was ahead of the answer; or else the cluster was restored from a backup, and counts from there.
            body = await self.store.node()
            self._version = min(self._version, version_of(body))
        return self._take(body)

    async def label(self, labels: Mapping[str, str | None]) -> None:
        """Change labels. Raises ApiServerError."""
        self._take(await self.store.label(labels))

    async def run(self) -> None:
        """Follow the Node until cancelled."""
        # Not RETRY: while a device plugin is on the node, this is how long its devices may stay offered to claims.
        await repeat(self._follow, self._failed, (1.0, 10.0), 10.0, self._clock, self._jitter)

    async def _follow(self) -> None:
        async for body in self.store.follow():
            self._take(body)
            self._metrics.worked("node")

    async def _failed(self, error: ApiServerError) -> None:
        self._metrics.failed("node")
        _log.warning("the node cannot be watched", extra={"error": str(error)})
        # A role of an older version lets the driver get its Node and not watch it.
        try:
            await self.read()
        except ApiServerError as unread:
            _log.warning("the node cannot be read", extra={"error": str(unread)})

    def _take(self, node: JsonObject) -> NodeState:
        version = version_of(node)
        if self.state is not None and version < self._version:
            return self.state  # a watch may be behind a read
        self._version = version
        state = node_state(node)
        if state != self.state:
            self.state = state
            self._use_facts(state.facts)
            self._count_change()
        return state


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
                except ApiServerError as error:
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
