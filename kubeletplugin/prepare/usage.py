"""Decides whether the devices of a claim can be given to another one: no container has them.

Containers name their claims (`claim_files`). A claim that the kubelet did not unprepare can be released only if the
kubelet's PodResources API does not list it either: its container may be about to start.
"""

import asyncio
import dataclasses
import functools
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

from kubeletplugin.discover.processes import LONGEST_SCAN, Processes, ProcessUse
from kubeletplugin.ports import UsageUnknownError
from kubeletplugin.prepare.checkpoint import PreparedClaim
from kubeletplugin.prepare.pod_resources import PodResources, UsedDevice

_LONGEST_WAIT: Final = LONGEST_SCAN + 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class ReleaseBlocker:
    """Why a claim must not be released.

    Attributes:
        known: whether a pod or process is known to use it; False if that cannot be found out.
        text: half a sentence, for people.
    """

    known: bool
    text: str


class Usage(Protocol):
    """What uses the devices of claims."""

    async def listed(self) -> tuple[UsedDevice, ...]:
        """Devices that the kubelet's pods use. Raises UsageUnknownError."""

    async def processes(self, *, environment: bool = False) -> tuple[ProcessUse, ...]:
        """Containers that name claims, as `Processes.scan`. Raises NoProcessesError, UsageUnknownError."""


class NodeUsage:
    """Asks the kubelet, and looks at the processes. Callers that wait for a look share it."""

    def __init__(self, kubelet: PodResources, processes: Processes) -> None:
        self._kubelet = kubelet
        self._processes = processes
        self._thread = ThreadPoolExecutor(1, "processes")
        self._running: asyncio.Future[tuple[ProcessUse, ...]] | None = None
        self._next: dict[bool, asyncio.Task[tuple[ProcessUse, ...]]] = {}

    def close(self) -> None:
        """Start no further scan; does not wait."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def listed(self) -> tuple[UsedDevice, ...]:
        """See `Usage`."""
        return await self._kubelet.used()

    async def processes(self, *, environment: bool = False) -> tuple[ProcessUse, ...]:
        """See `Usage`. What it returns was looked at after the call."""
        task = self._next.get(environment)
        if task is None or task.done():
            task = self._next[environment] = asyncio.create_task(self._scan(environment=environment))
        return await asyncio.shield(task)

    async def _scan(self, *, environment: bool) -> tuple[ProcessUse, ...]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_LONGEST_WAIT):
                while self._running is not None and not self._running.done():
                    await asyncio.wait({self._running})
                # Later callers need a look that begins after their call.
                self._next.pop(environment, None)
                scan = functools.partial(self._processes.scan, environment=environment)
                self._running = loop.run_in_executor(self._thread, scan)
                return await asyncio.shield(self._running)
        except TimeoutError as error:
            raise UsageUnknownError("the look at the processes of the node takes too long") from error


async def in_use(
    usage: Usage, claims: Iterable[PreparedClaim], prepared: Mapping[str, PreparedClaim]
) -> Mapping[str, ReleaseBlocker]:
    """The claims, by UID, that are in use or may be: kubelet and processes both have to deny it.

    Args:
        prepared: as of `by_processes`.
    """
    listed, processes = await asyncio.gather(usage.listed(), usage.processes(), return_exceptions=True)
    found: dict[str, ReleaseBlocker] = {}
    for claim in claims:
        kubelet = by_kubelet(claim, listed) if isinstance(listed, tuple) else _unknown(listed)
        process = by_processes(claim, processes, prepared) if isinstance(processes, tuple) else _unknown(processes)
        uses = [use for use in (kubelet, process) if use is not None]
        if uses:
            found[claim.uid] = max(uses, key=lambda use: use.known)
    return found


def by_kubelet(claim: PreparedClaim, used: Iterable[UsedDevice]) -> ReleaseBlocker | None:
    """The use of a claim that the kubelet reports."""
    pods = sorted({each.pod for each in used if _is_of(each, claim)})
    return ReleaseBlocker(True, f"the kubelet reports that pod {', '.join(pods)} uses it") if pods else None


def by_processes(
    claim: PreparedClaim, uses: Iterable[ProcessUse], prepared: Mapping[str, PreparedClaim]
) -> ReleaseBlocker | None:
    """The use of a claim by processes.

    Args:
        prepared: the claims of the node. Containers of a claim that was prepared again are not its earlier ones.
    """
    uid = claim.object_uid
    again = prepared.get(uid) if claim.has_ended else None
    for use in uses:
        if any(file.uid == uid and (again is None or file.number != again.number) for file in use.files):
            return ReleaseBlocker(True, str(use))
    return None


def unknown(error: UsageUnknownError) -> ReleaseBlocker:
    """Of a claim whose use cannot be found out."""
    return ReleaseBlocker(False, f"it is not known whether a pod uses it: {error}")


def _unknown(error: BaseException) -> ReleaseBlocker:
    if not isinstance(error, UsageUnknownError):
        raise error
    return unknown(error)


def _is_of(used: UsedDevice, claim: PreparedClaim) -> bool:
    if used.uid:
        return used.uid == claim.uid
    return (used.namespace, used.claim) == (claim.namespace, claim.name)
