"""Checks the node at the start and at intervals, and tells what changed: log, metrics, an Event, the first slice.

Also looks whether containers have what the CDI specs of their claims say: a runtime may ignore CDI without an error.
The kubelet tells which container of which pod uses a claim. In `/proc/PID/mountinfo` a container is known by the file
for its termination message, whose path has the pod's UID and the container's name, and its claims by their files.
"""

import asyncio
import dataclasses
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from kubeletplugin.changes import Changing, Clock
from kubeletplugin.checks.readings import ClaimContainer, NodeInfo, Readings, container_nodes, read_files
from kubeletplugin.checks.table import Grade, NodeFinding, judge
from kubeletplugin.discover.health import HealthMonitor
from kubeletplugin.discover.own_node import NodeState
from kubeletplugin.discover.processes import ContainerProcess, Processes
from kubeletplugin.metrics import PluginMetrics
from kubeletplugin.ports import WAITS, JsonObject, UsageUnknownError
from kubeletplugin.prepare.checkpoint import PreparedClaim
from kubeletplugin.prepare.usage import NodeUsage, UsedDevice
from kubeletplugin.publish.publisher import SliceNote
from kubeletplugin.settings import DriverSettings
from neuron.api.fields import mapping, mappings
from neuron.findings import short
from runtime.api_server import ApiServerError

_Key = tuple[str, str, str]
"""UID of the claim, `namespace/name` of the pod, name of the container."""


_FAULTS: Final = (Grade.WRONG, Grade.NOTE)
_log = logging.getLogger(__name__)


class ContainerLooks:
    """Looks at each container once it runs; at one that lacks its devices in every look."""

    def __init__(
        self,
        claims: Callable[[], Awaitable[Mapping[str, PreparedClaim]]],
        read_claim: Callable[[str, str], Awaitable[JsonObject | None]],
        usage: NodeUsage,
        processes: Processes,
    ) -> None:
        """`claims` returns the prepared claims by UID; `read_claim`, the object of a namespace and name."""
        self._claims = claims
        self._read_claim = read_claim
        self._usage = usage
        self._processes = processes
        self._proven: dict[_Key, ClaimContainer] = {}
        self._doubted: frozenset[_Key] = frozenset()
        self._last: ClaimContainer | None = None
        self._pods: dict[str, Mapping[str, str]] = {}

    async def look(self) -> tuple[ClaimContainer, ...] | str:
        """The last container that was seen to have its devices, and all that lack them; or why that is not known.

        A container lacks them if two looks say so: the first may have seen it while the runtime made it.
        """
        try:
            claims = await self._claims()
            used = await self._usage.listed() if claims else ()
            wanted = {
                (each.uid, each.pod, each.container): each for each in used if each.uid in claims and each.container
            }
            self._proven = {key: found for key, found in self._proven.items() if key in wanted}
            open_ = {key: each for key, each in wanted.items() if key not in self._proven}
            seen = await asyncio.to_thread(self._processes.containers) if open_ else ()
            # Of several processes, one that names a claim: an earlier container of that name may still be ending.
            by_name = {(each.pod, each.name): each for each in sorted(seen, key=lambda each: bool(each.files))}
            without = await self._compare(open_, by_name, claims)
        except (UsageUnknownError, OSError, TimeoutError, ApiServerError) as error:
            return f"containers cannot be looked at: {error}"
        return (*without, *([self._last] if self._last is not None and not without else []))

    async def _compare(
        self,
        wanted: Mapping[_Key, UsedDevice],
        seen: Mapping[tuple[str, str], ContainerProcess],
        claims: Mapping[str, PreparedClaim],
    ) -> list[ClaimContainer]:
        lacking: dict[_Key, ClaimContainer] = {}
        for key, each in wanted.items():
            claim = claims[each.uid]
            pod = (await self._pods_of(claim)).get(each.pod.partition("/")[2], "")
            process = seen.get((pod, each.container))
            if process is None:
                continue  # it does not run yet, or not any more
            has = any(file.uid == each.uid for file in process.files)
            nodes = await asyncio.to_thread(container_nodes, self._processes.root, process)
            found = ClaimContainer(each.pod, each.container, str(claim), _indices(claim), has, nodes)
            if has:
                self._proven[key] = self._last = found
            else:
                lacking[key] = found
        told = [found for key, found in lacking.items() if key in self._doubted]
        self._doubted = frozenset(lacking)
        return told

    async def _pods_of(self, claim: PreparedClaim) -> Mapping[str, str]:
        """The UIDs of the pods for which the claim is reserved, by name."""
        if claim.uid not in self._pods:
            body = await self._read_claim(claim.namespace, claim.name)
            users = mappings(mapping((body or {}).get("status")).get("reservedFor"))
            self._pods = {**self._pods, claim.uid: {str(each.get("name")): str(each.get("uid")) for each in users}}
        return self._pods[claim.uid]


def _indices(claim: PreparedClaim) -> frozenset[int]:
    return frozenset(index for device in claim.devices for index in device.indices)


class NodeReader:
    """Makes readings of one node."""

    def __init__(
        self,
        settings: DriverSettings,
        monitor: HealthMonitor,
        node: Callable[[], NodeInfo],
        looks: ContainerLooks,
        processes: Processes,
    ) -> None:
        self._settings = settings
        self._monitor = monitor
        self._node = node
        self._looks = looks
        self._processes = processes

    async def files(self) -> Readings:
        """Everything but containers, with the open device nodes."""
        snapshot = self._monitor.snapshot
        readings = await asyncio.to_thread(read_files, self._settings, snapshot.hardware, snapshot.instance)
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
        clock: Clock,
        metrics: PluginMetrics,
    ) -> None:
        """`prepared` returns a number that grows with each preparation."""
        super().__init__()
        self._reader = reader
        self._monitor = monitor
        self._prepared = prepared
        self._note = note
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
            await self._clock.sleep(WAITS.look)

    async def look(self) -> None:
        """Check once."""
        count, now = await self._prepared(), self._clock.monotonic()
        if self._readings is None or self._generation != self._monitor.generation or now - self._read_at > WAITS.files:
            self._readings, self._read_at = await self._reader.files(), now
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
        {"check": each.check, "result": each.result.value, "found": short(each.found, 200)}
        for each in findings
        if each.result in _FAULTS
    ]
    return json.dumps(told) if told else ""


def event_text(faults: Iterable[NodeFinding]) -> str:
    """The faults in one sentence each, the worst first."""
    return " ".join(str(each) for each in sorted(faults, key=lambda each: _FAULTS.index(each.result)))
