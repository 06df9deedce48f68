"""`neuron-dra-kubelet-plugin check`: the checks once, beside the running driver, and a file to attach to an issue.

The file has no name of a pod, claim or namespace but those that a failed check names, and no serial number.
"""

import asyncio
import contextlib
import dataclasses
import functools
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from kubeletplugin import api_store
from kubeletplugin.changes import Clock
from kubeletplugin.checks.node_checks import ContainerLooks, NodeReader, node_info
from kubeletplugin.checks.readings import NodeInfo, Readings
from kubeletplugin.checks.table import Grade, NodeFinding, judge
from kubeletplugin.discover.health import Catalogues, HealthMonitor
from kubeletplugin.discover.own_node import OwnNode
from kubeletplugin.discover.processes import Folder, Processes
from kubeletplugin.discover.sysfs import CLASS, DEVICES, discover
from kubeletplugin.metrics import PluginMetrics
from kubeletplugin.ports import JsonObject
from kubeletplugin.prepare.checkpoint import FILE_NAME, DamagedCheckpointError, PreparedClaim, decode
from kubeletplugin.prepare.containers import FOLDER
from kubeletplugin.prepare.usage import NodeUsage, PodResources
from kubeletplugin.publish.slices import driver_version
from kubeletplugin.settings import DriverSettings
from runtime.api_server import ApiServerError, ClusterUnavailableError
from runtime.settings import as_written

_MOST_FILES: Final = 4000
_DEEPEST: Final = 6
_HIDDEN: Final = frozenset({"serial_number"})
_NOT_SHOWN: Final = frozenset({"nodeName", "podUid", "kubeconfig"})


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


def is_wrong(finding: NodeFinding) -> bool:
    """Whether the exit code says so."""
    return finding.result is Grade.WRONG


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
