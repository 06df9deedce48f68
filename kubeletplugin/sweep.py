"""Releases claims that no longer exist, and restores claims that a damaged checkpoint lost from the API server.

The kubelet unprepares the claims of its pods. A claim without an object that it did not unprepare is released only if
nothing uses its devices (`usage`); until then they are held (`holds`).
"""

import asyncio
import dataclasses
import functools
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from kubeletplugin.checkpoint import Checkpoint, PreparedClaim, PreparedDevice
from kubeletplugin.driver import Driver, NodeClaims
from kubeletplugin.holds import Hold
from kubeletplugin.metrics import Metrics
from kubeletplugin.ports import Clock, JsonObject, KubeError, UnreadableObjectError
from kubeletplugin.usage import Usage
from neuron import names
from neuron.allocation import AllocatedClaim, AllocatedDevice, AllocationError, read_allocation

_RETRY: Final = 10.0
_LOOK: Final = 10.0
"""Seconds between two looks at what the driver was refused."""
_ODD: Final = (KeyError, TypeError, ValueError, AttributeError, RecursionError)
"""Errors of a claim with another structure than the API's; the other claims are swept all the same."""

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class _Found:
    """A prepared claim at the API server.

    Attributes:
        exists: whether it still has the same UID and the prepared devices of this node.
        pods: UIDs of the pods that have reserved it.
    """

    exists: bool
    pods: frozenset[str] = frozenset()


class Sweeper:
    """Sweeps until cancelled.

    A claim is released after it was missing in two consecutive sweeps and nothing uses it: a pod that was deleted by
    force may still be stopping. Between the sweeps it looks again if a pod was refused a device, which may be held.
    """

    def __init__(
        self, driver: Driver, node: NodeClaims, usage: Usage, interval: float, *, clock: Clock, metrics: Metrics
    ) -> None:
        """`interval` is in seconds."""
        self._driver = driver
        self._node = node
        self._preparer = node.preparer
        self._usage = usage
        self._interval = interval
        self._clock = clock
        self._metrics = metrics
        self._missing: dict[str, PreparedClaim] = {}

    async def run(self) -> None:
        """Sweep at intervals; shorter ones while claims may be missing."""
        while True:
            complete = await self.sweep()
            left = self._interval if complete else min(_RETRY, self._interval)
            while left > 0:
                refusals = self._driver.refusals
                pause = min(left, _LOOK)
                await self._clock.sleep(pause)
                left -= pause
                if left > 0 and self._driver.refusals != refusals:
                    await self.sweep(release=False)

    async def sweep(self, *, release: bool = True) -> bool:
        """Sweep once; returns whether all prepared claims are known. Without `release`, only holds devices."""
        try:
            checkpoint = await self._driver.in_state(self._preparer.checkpoint)
            if checkpoint.incomplete:
                await self._complete()
            await self._check(checkpoint, release=release)
        except (KubeError, OSError, TimeoutError) as error:
            self._metrics.background_errors.labels("sweep").inc()
            _log.warning("sweep failed", extra={"error": str(error)})
            return False
        await self._driver.count()
        return True

    async def _complete(self) -> None:
        allocated = [claim for body in await self._node.objects.claims() if (claim := self._allocated_here(body))]
        view = self._node.view()
        recovery = await self._driver.in_state(lambda: self._preparer.complete(allocated, view))
        for error in recovery.errors:
            self._metrics.background_errors.labels("sweep").inc()
            _log.error("claim not restored", extra={"error": error})
        _log.info("prepared claims restored", extra={"notes": list(recovery.notes)})

    def _allocated_here(self, body: JsonObject) -> AllocatedClaim | None:
        """The claim, if it is reserved for pods and has devices of this node; else None."""
        if not (body.get("status") or {}).get("reservedFor"):
            return None
        try:
            return read_allocation(body, names.DRIVER, self._node.pool, body["metadata"]["uid"])
        except (AllocationError, *_ODD):
            return None

    async def _check(self, checkpoint: Checkpoint, *, release: bool) -> None:
        """Hold the devices of claims that no longer exist, and release those that are not in use."""
        prepared = list(checkpoint.claims.values())
        found = list(zip(prepared, await asyncio.gather(*map(self._find, prepared)), strict=True))
        missing = {claim.uid: claim for claim, each in found if not each.exists}
        uses = await self._usage.of(missing.values(), _pods_by_device(found)) if missing else {}
        holds = {uid: Hold(claim, uses.get(uid)) for uid, claim in missing.items()}
        if release:
            for uid in sorted(uid for uid, claim in missing.items() if self._missing.get(uid) == claim):
                if holds[uid].use is None:
                    claim = missing.pop(uid)
                    del holds[uid]
                    if await self._driver.in_state(functools.partial(self._release, claim)):
                        _log.warning("claim that no longer exists was released", extra={"claim": str(claim)})
            self._missing = missing
        self._driver.holds.take(holds)

    def _release(self, claim: PreparedClaim) -> bool:
        """Release a claim, unless it was prepared again while the API server was called."""
        if self._preparer.checkpoint().claims.get(claim.uid) != claim:
            return False
        self._preparer.unprepare(claim.uid)
        return True

    async def _find(self, claim: PreparedClaim) -> _Found:
        try:
            body = await self._node.objects.claim(claim.namespace, claim.name)
        except UnreadableObjectError:
            return _Found(exists=True)  # a claim of that name exists
        if body is None:
            return _Found(exists=False)
        pods = _reserving_pods(body)
        try:
            allocated = read_allocation(body, names.DRIVER, self._node.pool, claim.uid)
        except AllocationError as error:
            # With findings, only the config cannot be read, e.g. that of a newer driver: the devices are still in use.
            return _Found(bool(error.findings), pods)
        except _ODD:
            return _Found(exists=True)
        same = all(any(_is_same(device, result) for result in allocated.devices) for device in claim.devices)
        return _Found(same, pods)


def _reserving_pods(body: JsonObject) -> frozenset[str]:
    try:
        reserved = (body.get("status") or {}).get("reservedFor") or ()
        return frozenset(each["uid"] for each in reserved if each["resource"] == "pods")
    except _ODD:
        return frozenset()


def _pods_by_device(found: Iterable[tuple[PreparedClaim, _Found]]) -> Mapping[int, frozenset[str]]:
    """By index of a device, the pods that may use it for a claim that exists; also with `adminAccess`."""
    pods: defaultdict[int, frozenset[str]] = defaultdict(frozenset)
    for claim, each in found:
        if each.exists:
            for device in claim.devices:
                for index in device.indices:
                    pods[index] |= each.pods
    return pods


def _is_same(prepared: PreparedDevice, allocated: AllocatedDevice) -> bool:
    if (prepared.request, prepared.device) != (allocated.request, allocated.device):
        return False
    # An older version of the driver does not keep the share.
    return prepared.share is None or prepared.share.id == allocated.share_id
