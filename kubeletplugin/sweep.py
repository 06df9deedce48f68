"""Releases claims that no longer exist, and restores claims that a damaged checkpoint lost from the API server."""

import asyncio
import functools
import logging
from typing import Final

from kubeletplugin.checkpoint import Checkpoint, PreparedClaim, PreparedDevice
from kubeletplugin.driver import Driver, NodeClaims
from kubeletplugin.metrics import Metrics
from kubeletplugin.ports import Clock, JsonObject, KubeError, UnreadableObjectError
from neuron import names
from neuron.allocation import AllocatedClaim, AllocatedDevice, AllocationError, read_allocation

_RETRY: Final = 10.0
_ODD: Final = (KeyError, TypeError, ValueError, AttributeError, RecursionError)
"""Errors of a claim with another structure than the API's; the other claims are swept all the same."""

_log = logging.getLogger(__name__)


class Sweeper:
    """Sweeps until cancelled.

    The kubelet unprepares its claims, so claims remain only if it lost its state. A claim is released after it was
    missing in two consecutive sweeps: a pod that was deleted by force may still be stopping.
    """

    def __init__(self, driver: Driver, node: NodeClaims, interval: float, *, clock: Clock, metrics: Metrics) -> None:
        """`interval` is in seconds."""
        self._driver = driver
        self._node = node
        self._preparer = node.preparer
        self._interval = interval
        self._clock = clock
        self._metrics = metrics
        self._missing: dict[str, PreparedClaim] = {}

    async def run(self) -> None:
        """Sweep at intervals; shorter ones while claims may be missing."""
        while True:
            complete = await self.sweep()
            await self._clock.sleep(self._interval if complete else min(_RETRY, self._interval))

    async def sweep(self) -> bool:
        """Sweep once; returns whether all prepared claims are known."""
        try:
            checkpoint = await self._driver.in_state(self._preparer.checkpoint)
            if checkpoint.incomplete:
                await self._complete()
            await self._release_missing(checkpoint)
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

    async def _release_missing(self, checkpoint: Checkpoint) -> None:
        prepared = list(checkpoint.claims.values())
        exist = await asyncio.gather(*(self._exists(claim) for claim in prepared))
        missing = {claim.uid: claim for claim, exists in zip(prepared, exist, strict=True) if not exists}
        for uid in sorted(uid for uid, claim in missing.items() if self._missing.get(uid) == claim):
            claim = missing.pop(uid)
            if await self._driver.in_state(functools.partial(self._release, claim)):
                _log.warning("claim that no longer exists was released", extra={"claim": str(claim)})
        self._missing = missing

    def _release(self, claim: PreparedClaim) -> bool:
        """Release a claim, unless it was prepared again while the API server was called."""
        if self._preparer.checkpoint().claims.get(claim.uid) != claim:
            return False
        self._preparer.unprepare(claim.uid)
        return True

    async def _exists(self, claim: PreparedClaim) -> bool:
        """Whether the claim still has the same UID and the prepared devices of this node."""
        try:
            body = await self._node.objects.claim(claim.namespace, claim.name)
        except UnreadableObjectError:
            return True  # a claim of that name exists
        if body is None:
            return False
        try:
            allocated = read_allocation(body, names.DRIVER, self._node.pool, claim.uid)
        except AllocationError as error:
            # With findings, only the config cannot be read, e.g. that of a newer driver: the devices are still in use.
            return bool(error.findings)
        except _ODD:
            return True
        return all(any(_is_same(device, result) for result in allocated.devices) for device in claim.devices)


def _is_same(prepared: PreparedDevice, allocated: AllocatedDevice) -> bool:
    if (prepared.request, prepared.device) != (allocated.request, allocated.device):
        return False
    # An older version of the driver does not keep the share.
    return prepared.share is None or prepared.share.id == allocated.share_id
