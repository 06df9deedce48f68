"""Checks the node at the start and at intervals, and tells what changed: log, metrics, an Event, the first slice."""

import asyncio
import dataclasses
import json
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from kubeletplugin.changes import Changing
from kubeletplugin.checks.containers import ContainerLooks
from kubeletplugin.checks.readings import NodeInfo, Readings, Roots, read_files
from kubeletplugin.checks.table import Grade, NodeFinding, judge
from kubeletplugin.clock import Clock
from kubeletplugin.discover.health import HealthMonitor
from kubeletplugin.discover.own_node import NodeState
from kubeletplugin.discover.processes import Processes
from kubeletplugin.metrics import PluginMetrics
from kubeletplugin.ports import UsageUnknownError
from kubeletplugin.publish.publisher import SliceNote
from neuron.findings import short

INTERVAL: Final = 15.0
"""Seconds between two looks at containers."""
FILES_SECONDS: Final = 600.0
"""Seconds after which files are read again, if the hardware did not change."""

_FAULTS: Final = (Grade.WRONG, Grade.NOTE)
_LONGEST_NOTE: Final = 200

_log = logging.getLogger(__name__)


class NodeReader:
    """Makes readings of one node."""

    def __init__(
        self,
        roots: Roots,
        monitor: HealthMonitor,
        node: Callable[[], NodeInfo],
        looks: ContainerLooks,
        processes: Processes,
    ) -> None:
        self._roots = roots
        self._monitor = monitor
        self._node = node
        self._looks = looks
        self._processes = processes

    async def files(self, *, emulated: bool) -> Readings:
        """Everything but containers, with the open device nodes."""
        snapshot = self._monitor.snapshot
        readings = await asyncio.to_thread(
            read_files, self._roots, snapshot.hardware, snapshot.instance, emulated=emulated
        )
        return await self.opened(readings)

    async def opened(self, readings: Readings) -> Readings:
        """The readings with the device nodes that processes have open now."""
        try:
            return dataclasses.replace(readings, opened=await asyncio.to_thread(self._processes.opened))
        except UsageUnknownError as error:
            return dataclasses.replace(readings, opened=str(error))

    async def now(self, readings: Readings) -> Readings:
        """The readings with Node and containers as they are now."""
        return dataclasses.replace(readings, node=self._node(), containers=await self._looks.look())


def node_info(state: NodeState | None) -> NodeInfo:
    """What the Node tells; None: it was not read yet."""
    if state is None:
        return NodeInfo(error="it was not read yet")
    return NodeInfo(state.facts.runtime, state.facts.kubelet, state.facts.instance_type or "")


class NodeChecks(Changing):
    """Checks until cancelled.

    Attributes:
        findings: of the last look.
    """

    def __init__(
        self,
        reader: NodeReader,
        monitor: HealthMonitor,
        prepared: Callable[[], Awaitable[int]],
        note: SliceNote,
        *,
        emulated: bool,
        clock: Clock,
        metrics: PluginMetrics,
    ) -> None:
        """`prepared` returns a number that grows with each preparation."""
        super().__init__()
        self._reader = reader
        self._monitor = monitor
        self._prepared = prepared
        self._note = note
        self._emulated = emulated
        self._clock = clock
        self._metrics = metrics
        self._readings: Readings | None = None
        self._read_at = 0.0
        self._generation = 0
        self._count = -1
        self.findings: tuple[NodeFinding, ...] = ()

    async def run(self) -> None:
        """Check at intervals until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(INTERVAL)

    async def look(self) -> None:
        """Check once."""
        count, now = await self._prepared(), self._clock.monotonic()
        if (
            self._readings is None
            or self._generation != self._monitor.generation
            or now - self._read_at > FILES_SECONDS
        ):
            self._readings, self._read_at = await self._reader.files(emulated=self._emulated), now
            self._generation = self._monitor.generation
        elif count != self._count:
            # A device that was just given away must not be open in a process without a claim.
            self._readings = await self._reader.opened(self._readings)
        self._count = count
        self._take(judge(await self._reader.now(self._readings)))

    @property
    def faults(self) -> tuple[NodeFinding, ...]:
        """What an administrator should know."""
        return tuple(each for each in self.findings if each.result in _FAULTS)

    def _take(self, findings: tuple[NodeFinding, ...]) -> None:
        before = {each.check: each for each in self.findings}
        for each in findings:
            for result in Grade:
                self._metrics.node_checks.labels(each.check, result.value).set(result is each.result)
            known = before.get(each.check)
            if known is None or (known.result, known.found) != (each.result, each.found):
                level = logging.WARNING if each.result in _FAULTS else logging.INFO
                extra = {"check": each.check, "result": each.result.value, "found": each.found}
                _log.log(level, "node check", extra=extra | ({"fix": each.fix} if each.fix else {}))
        if findings != self.findings:
            self.findings = findings
            self._count_change()
        self._note.take(note(findings))


def note(findings: Iterable[NodeFinding]) -> str:
    """The annotation of the first slice: the faults as JSON; empty without any."""
    told = [
        {"check": each.check, "result": each.result.value, "found": short(each.found, _LONGEST_NOTE)}
        for each in findings
        if each.result in _FAULTS
    ]
    return json.dumps(told) if told else ""


def event_text(faults: Iterable[NodeFinding]) -> str:
    """The faults in one sentence each, the worst first."""
    return " ".join(str(each) for each in sorted(faults, key=lambda each: _FAULTS.index(each.result)))
