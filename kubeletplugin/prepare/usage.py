"""Decides whether a prepared claim, which the kubelet did not unprepare, can be released: no pod may use it.

Two sources, and both have to deny the use: the kubelet's PodResources API, and the processes of the node. The kubelet
does not list pods that it is stopping; a process is not seen before its container runs.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol

from kubeletplugin.discover.processes import LONGEST_SCAN, Processes, ProcessScan, ProcessUse
from kubeletplugin.ports import UsageUnknownError
from kubeletplugin.prepare.checkpoint import PreparedClaim
from kubeletplugin.prepare.pod_resources import PodResources, UsedDevice

_LONGEST_WAIT: Final = LONGEST_SCAN + 5.0

_log = logging.getLogger(__name__)


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
    """What uses the devices of prepared claims."""

    async def listed(self) -> tuple[UsedDevice, ...]:
        """Devices that the kubelet's pods use. Raises UsageUnknownError."""

    async def of(
        self, claims: Collection[PreparedClaim], others: Mapping[int, Collection[str]]
    ) -> Mapping[str, ReleaseBlocker]:
        """The claims, by UID, that are in use or may be.

        Args:
            claims: to be released.
            others: by index of a device, UIDs of pods that may use it for other claims.
        """


class NodeUsage:
    """Asks the kubelet, and looks at the processes. A scan that hangs is not started again."""

    def __init__(self, kubelet: PodResources, processes: Processes) -> None:
        self._kubelet = kubelet
        self._processes = processes
        self._thread = ThreadPoolExecutor(1, "processes")
        self._running: Future[ProcessScan] | None = None

    def close(self) -> None:
        """Start no further scan; does not wait."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def listed(self) -> tuple[UsedDevice, ...]:
        """See `Usage`."""
        return await self._kubelet.used()

    async def of(
        self, claims: Collection[PreparedClaim], others: Mapping[int, Collection[str]]
    ) -> Mapping[str, ReleaseBlocker]:
        """See `Usage`."""
        if not claims:
            return {}
        found: dict[str, ReleaseBlocker] = {}
        for answer in await asyncio.gather(self._by_kubelet(claims), self._by_processes(claims, others)):
            for uid, use in answer.items():
                if uid not in found or (use.known and not found[uid].known):
                    found[uid] = use
        return found

    async def _by_kubelet(self, claims: Collection[PreparedClaim]) -> Mapping[str, ReleaseBlocker]:
        try:
            used = await self._kubelet.used()
        except UsageUnknownError as error:
            return _unknown(claims, str(error))
        found = {}
        for claim in claims:
            pods = sorted({each.pod for each in used if _is_of(each, claim)})
            if pods:
                found[claim.uid] = ReleaseBlocker(True, f"the kubelet reports that pod {', '.join(pods)} uses it")
        return found

    async def _by_processes(
        self, claims: Collection[PreparedClaim], others: Mapping[int, Collection[str]]
    ) -> Mapping[str, ReleaseBlocker]:
        held = {claim.uid: _indices(claim) for claim in claims}
        try:
            scan = await self._scan({index for indices in held.values() for index in indices})
        except UsageUnknownError as error:
            return _unknown(claims, str(error))
        found = dict(_unknown(claims, scan.doubt)) if scan.doubt else {}
        for uid, indices in held.items():
            uses = [each for each in scan.uses if each.index in indices and not _explained(each, others)]
            if uses:
                # An open handle says more than a device node.
                found[uid] = ReleaseBlocker(True, str(max(uses, key=lambda each: each.open)))
        return found

    async def _scan(self, indices: Collection[int]) -> ProcessScan:
        if self._running is not None and not self._running.done():
            raise UsageUnknownError("the last look at the processes of the node has not ended")
        self._running = self._thread.submit(self._processes.using, indices)
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self._running)), _LONGEST_WAIT)
        except TimeoutError as error:
            raise UsageUnknownError("the look at the processes of the node takes too long") from error


def _unknown(claims: Iterable[PreparedClaim], why: str) -> Mapping[str, ReleaseBlocker]:
    return {claim.uid: ReleaseBlocker(False, f"it is not known whether a pod uses it: {why}") for claim in claims}


def _is_of(used: UsedDevice, claim: PreparedClaim) -> bool:
    if used.uid:
        return used.uid == claim.uid
    return (used.namespace, used.claim) == (claim.namespace, claim.name)


def _indices(claim: PreparedClaim) -> frozenset[int]:
    return frozenset(index for device in claim.devices if not device.admin_access for index in device.indices)


def _explained(use: ProcessUse, others: Mapping[int, Collection[str]]) -> bool:
    return bool(use.pod) and use.pod in others.get(use.index, ())
