"""Checks the node at the start and at intervals, and tells what changed: log, metrics, an Event, the first slice.

Also looks whether containers have what the CDI specs of their claims say: a runtime may ignore CDI without an error.
The kubelet tells which container of which pod uses a claim. In `/proc/PID/mountinfo` a container is known by the file
for its termination message, whose path has the pod's UID and the container's name, and its claims by their files.

`neuron-dra-kubelet-plugin check` makes the checks once, beside the running driver, and a file to attach to an issue. It
has no name of a pod, claim or namespace but those that a failed check names, and no serial number.
"""

import asyncio
import contextlib
import dataclasses
import functools
import json
import logging
import os
import platform
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from kubeletplugin import api_store
from kubeletplugin.changes import Changing, Clock
from kubeletplugin.checks.readings import ClaimContainer, NodeInfo, Readings, container_nodes, read_files
from kubeletplugin.checks.table import Grade, NodeFinding, judge
from kubeletplugin.discover.health import Catalogues, HealthMonitor
from kubeletplugin.discover.own_node import NodeState, OwnNode
from kubeletplugin.discover.processes import ContainerProcess, Folder, Processes
from kubeletplugin.discover.sysfs import CLASS, DEVICES, discover
from kubeletplugin.metrics import PluginMetrics
from kubeletplugin.ports import WAITS, JsonObject, UsageUnknownError
from kubeletplugin.prepare.cdi import FOLDER
from kubeletplugin.prepare.checkpoint import FILE_NAME, DamagedCheckpointError, PreparedClaim, decode
from kubeletplugin.prepare.usage import NodeUsage, PodResources, UsedDevice
from kubeletplugin.publish.publisher import SliceNote
from kubeletplugin.publish.slices import driver_version
from kubeletplugin.settings import DriverSettings
from neuron.api.fields import mapping, mappings
from neuron.findings import short
from runtime.api_server import ApiServerError, ClusterUnavailableError
from runtime.settings import as_written

_Key = tuple[str, str, str]
"""UID of the claim, `namespace/name` of the pod, name of the container."""


_FAULTS: Final = (Grade.WRONG, Grade.NOTE)
_MOST_FILES: Final = 4000
_DEEPEST: Final = 6
_HIDDEN: Final = frozenset({"serial_number"})
_NOT_SHOWN: Final = frozenset({"nodeName", "podUid", "kubeconfig"})

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
            devices = frozenset(index for device in claim.devices for index in device.indices)
            found = ClaimContainer(each.pod, each.container, str(claim), devices, has, nodes)
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


# --- once ------------------------------------------------------------------------------------------------------


async def check(settings: DriverSettings) -> tuple[Readings, tuple[NodeFinding, ...]]:
    """Check once. Nothing is changed but test files, which are removed again."""
    clock = Clock()
    look = functools.partial(discover, settings.sysfs_root, settings.dev_root, settings.logical_nc_file)
    monitor = HealthMonitor(look, Catalogues(settings.policies).current, clock, settings.health_interval)
    processes = Processes(settings.proc_root, settings.dev_root, Folder(settings.state / FOLDER))
    usage = NodeUsage(PodResources(settings.pod_resources_socket), processes)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(usage.close)
        await monitor.refresh()
        node, api = NodeInfo(), None
        try:
            api = await api_store.connect(settings.kubeconfig, settings.node_name)
        except ClusterUnavailableError as error:
            node = NodeInfo(error=str(error))
        else:
            stack.push_async_callback(api.close)
            own = OwnNode(api, clock=clock, metrics=PluginMetrics(), use_facts=monitor.use_facts)
            try:
                node = node_info(await own.read())
            except ApiServerError as error:
                node = NodeInfo(error=str(error))

        async def read_claim(namespace: str, name: str) -> JsonObject | None:
            if api is None:
                raise ApiServerError(node.error)
            return await api.claim(namespace, name)

        claims = functools.partial(_claims, settings.state)
        looks = ContainerLooks(claims, read_claim, usage, processes)
        reader = NodeReader(settings, monitor, lambda: node, looks, processes)
        readings = await reader.now(await reader.files())
        await clock.sleep(1.0)  # what lacks its devices is looked at twice
        readings = await reader.now(readings)
    return readings, judge(readings)


async def _claims(state: Path) -> Mapping[str, PreparedClaim]:
    try:
        content = await asyncio.to_thread((state / FILE_NAME).read_bytes)
    except FileNotFoundError:
        return {}
    try:
        return decode(content).prepared
    except DamagedCheckpointError as error:
        raise OSError(f"the checkpoint in {state} is damaged: {error}") from error


def as_text(findings: tuple[NodeFinding, ...]) -> str:
    """The findings for people, one line each, with what to do below it."""
    width = max(len(each.result.value) for each in findings)
    lines = []
    for each in findings:
        lines.append(f"{each.result.value:<{width}}  {each.check}: {each.found}.")
        if each.fix and each.result is not Grade.WELL:
            lines.append(f"{'':<{width}}  {each.fix}")
    return "\n".join(lines)


def as_report(settings: DriverSettings, readings: Readings, findings: tuple[NodeFinding, ...]) -> str:
    """The file: findings, what was read, and the kernel driver's files with their content."""
    plain = msgspec.to_builtins(readings, str_keys=True, enc_hook=str)
    for device in plain["hardware"]["devices"]:
        device["serial"] = "hidden" if device["serial"] else None
    content = {
        "driver": driver_version(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "findings": [dataclasses.asdict(each) for each in findings],
        "settings": {key: value for key, value in as_written(settings).items() if key not in _NOT_SHOWN},
        "readings": plain,
        "files": {str(part): _tree(settings.sysfs_root / part) for part in (DEVICES, CLASS, Path("module/neuron"))},
    }
    return json.dumps(content, indent=1, default=str, sort_keys=True)


def _tree(root: Path) -> Mapping[str, str]:
    """The files of a tree with the beginning of their content, or why it cannot be read."""
    found: dict[str, str] = {}
    for parent, directories, files in os.walk(root):
        directories.sort()
        if parent.count(os.sep) - str(root).count(os.sep) >= _DEEPEST:
            directories.clear()
        for name in sorted(files):
            if len(found) >= _MOST_FILES:
                return found | {"…": f"more than {_MOST_FILES} files"}
            path = Path(parent) / name
            found[str(path.relative_to(root))] = "hidden" if name in _HIDDEN else _beginning(path)
    return found


def _beginning(path: Path) -> str:
    # Not those for writing only, and no files that wait for something to happen.
    if not os.access(path, os.R_OK) or path.name == "reset":
        return "not readable"
    try:
        with path.open("rb") as file:
            return file.read(200).decode(errors="replace").strip()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
