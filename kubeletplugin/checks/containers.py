"""Looks whether containers have what the CDI specs of their claims say: a runtime may ignore CDI without an error.

The kubelet tells which container of which pod uses a claim. In `/proc/PID/mountinfo` a container is known by the file
for its termination message, whose path has the pod's UID and the container's name, and its claims by their files.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from kubeletplugin.checks.readings import ClaimContainer, container_nodes
from kubeletplugin.discover.processes import ContainerProcess, Processes
from kubeletplugin.ports import JsonObject, KubeError, UsageUnknownError
from kubeletplugin.prepare.checkpoint import PreparedClaim
from kubeletplugin.prepare.pod_resources import UsedDevice
from kubeletplugin.prepare.usage import Usage
from neuron.api.fields import mapping, mappings

_Key = tuple[str, str, str]
"""UID of the claim, `namespace/name` of the pod, name of the container."""


class ContainerLooks:
    """Looks at each container once it runs; at one that lacks its devices in every look."""

    def __init__(
        self,
        claims: Callable[[], Awaitable[Mapping[str, PreparedClaim]]],
        read_claim: Callable[[str, str], Awaitable[JsonObject | None]],
        usage: Usage,
        processes: Processes,
        proc_root: Path,
    ) -> None:
        """`claims` returns the prepared claims by UID; `read_claim`, the object of a namespace and name."""
        self._claims = claims
        self._read_claim = read_claim
        self._usage = usage
        self._processes = processes
        self._proc_root = proc_root
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
        except (UsageUnknownError, OSError, TimeoutError, KubeError) as error:
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
            nodes = await asyncio.to_thread(container_nodes, self._proc_root, process)
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
