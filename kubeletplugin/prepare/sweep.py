"""Releases claims that no longer exist, and restores claims that a lost state had.

The kubelet unprepares the claims of its pods. A claim without an object that it did not unprepare is released only if
nothing uses its devices; until then they are held (`usage`). What a lost state had is known to the kubelet,
to the containers themselves, and to the API server.
"""

import asyncio
import functools
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final

from kubeletplugin.changes import Clock
from kubeletplugin.metrics import PluginMetrics
from kubeletplugin.ports import WAITS, JsonObject, NoProcessesError, UsageUnknownError
from kubeletplugin.prepare.checkpoint import Checkpoint, PreparedClaim, PreparedDevice
from kubeletplugin.prepare.decide import NodeView, Told, Variables, undecided_device
from kubeletplugin.prepare.driver import Driver
from kubeletplugin.prepare.usage import Hold, UsedDevice, in_use
from neuron import names
from neuron.api.allocation import AllocatedClaim, AllocationError, read_allocation
from neuron.api.fields import WrongFormError, mapping, mappings
from neuron.api.stored_claims import Result, StoredClaim, read_stored_claim
from runtime.api_server import ApiServerError, UnreadableAnswerError

_SPREAD: Final = (0.8, 1.2)
"""The shortest and the longest pause between two sweeps, in intervals."""
_ODD: Final = (WrongFormError, KeyError, TypeError, ValueError, AttributeError, RecursionError)
"""Errors of a claim with another structure than the API's; the other claims are swept all the same."""

_log = logging.getLogger(__name__)


class Sweeper:
    """Sweeps until cancelled.

    A claim is released after it was missing in two consecutive sweeps and nothing uses it: a pod that was deleted by
    force may still be stopping. Between the sweeps it looks again if a pod was refused a device, which may be held.
    """

    def __init__(
        self,
        driver: Driver,
        interval: float,
        *,
        clock: Clock,
        metrics: PluginMetrics,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """`interval` is in seconds. `jitter(a, b)` is a random number between both: each sweep reads every claim of the
        node, and nodes that started together must not read them together.
        """
        self._driver = driver
        self._interval = interval
        self._clock = clock
        self._metrics = metrics
        self._jitter = jitter
        self._missing: dict[str, PreparedClaim] = {}

    async def run(self) -> None:
        """Sweep at intervals; shorter ones while claims may be missing."""
        while True:
            complete = await self.sweep()
            interval = self._interval * self._jitter(*_SPREAD)
            left = interval if complete else min(WAITS.sweep_retry, interval)
            while left > 0:
                refusals = self._driver.refusals
                pause = min(left, WAITS.sweep_look)
                await self._clock.sleep(pause)
                left -= pause
                mended = await self.mend()
                try:
                    await self._driver.release_ended()
                except (OSError, TimeoutError) as error:
                    self._metrics.failed("sweep")
                    _log.warning("ended claims cannot be released", extra={"error": str(error)})
                if left > 0 and (not mended or self._driver.refusals != refusals):
                    await self.sweep(release=False)

    async def mend(self) -> bool:
        """Compare the CDI specs with the prepared claims; returns whether all prepared claims are known."""
        try:
            notes = await self._driver.in_state(self._driver.preparer.mend)
            checkpoint = await self._driver.checkpoint()
        except (OSError, TimeoutError) as error:
            self._metrics.failed("specs")
            _log.warning("CDI specs cannot be compared", extra={"error": str(error)})
            return True
        self._metrics.worked("specs")
        for note in notes:
            self._metrics.restored_specs.inc()
            _log.warning("CDI spec restored", extra={"note": note})
        if checkpoint.incomplete:
            self._driver.holds.restore(restoring=True)  # until a sweep has found the missing claims
        return not checkpoint.incomplete

    async def sweep(self, *, release: bool = True) -> bool:
        """Sweep once; returns whether all prepared claims are known. Without `release`, only holds devices."""
        try:
            checkpoint = await self._driver.checkpoint()
            if checkpoint.incomplete:
                self._driver.holds.restore(restoring=True)
                checkpoint = await self._complete()
            await self._check(checkpoint, release=release)
            self._driver.holds.restore(restoring=checkpoint.incomplete)
        except (ApiServerError, UsageUnknownError, OSError, TimeoutError) as error:
            self._metrics.failed("sweep")
            _log.warning("sweep failed", extra={"error": str(error)})
            return False
        self._metrics.worked("sweep")
        await self._driver.count()
        return True

    async def _complete(self) -> Checkpoint:
        """Restore the claims that the kubelet takes for prepared; returns the state with them.

        The driver lists no claims: a cluster may have 100,000, and none of a new node. No other claim matters. A
        container gets devices only by a CDI spec: if that is lost, the kubelet asks for the claim's preparation, unless
        it takes the claim for prepared, and then it lists it. Containers whose claim it does not list, because it has
        forgotten the pod or they are init containers, name it themselves, and hold what they have.
        """
        used = await self._driver.usage.listed()
        claims = sorted({(each.namespace, each.claim) for each in used})
        bodies = [body for body in await asyncio.gather(*(self._object(*claim) for claim in claims)) if body]
        found = [(found, body) for body in bodies if (found := self._allocated_here(body)) is not None]
        allocated = [each for each, _ in found]
        view = await self._driver.view_for(allocated)
        running = _running(used, self._driver.pool, view, filter(None, map(_stored, bodies)))
        by_status = {each.uid: variables_in_status(each, body) for each, body in found}
        told = Told(by_status=by_status)
        try:
            told = Told(await self._driver.usage.processes(environment=True), by_status)
        except NoProcessesError as unseen:
            _log.warning("containers cannot be asked for their claims", extra={"error": str(unseen)})
        recovery = await self._driver.in_state(lambda: self._driver.preparer.complete(running, allocated, view, told))
        for error in recovery.errors:
            self._metrics.background_errors.labels("sweep").inc()
            _log.error("claim not restored", extra={"error": error})
        _log.info("prepared claims restored", extra={"notes": list(recovery.notes)})
        return await self._driver.checkpoint()

    async def _object(self, namespace: str, name: str) -> JsonObject | None:
        """A claim; None if it does not exist or cannot be read. Raises ApiServerError."""
        try:
            return await self._driver.objects.claim(namespace, name)
        except UnreadableAnswerError:
            return None

    def _allocated_here(self, body: JsonObject) -> AllocatedClaim | None:
        """The claim, if it is reserved for pods and has devices of this node; else None."""
        try:
            if not read_stored_claim(body).users:
                return None
            return read_allocation(body, names.DRIVER, self._driver.pool, body["metadata"]["uid"])
        except (AllocationError, *_ODD):
            return None

    async def _check(self, checkpoint: Checkpoint, *, release: bool) -> None:
        """Hold the devices of claims that no longer exist, and release those that are not in use."""
        await self._driver.release_ended()
        before = [claim for claim in checkpoint.claims.values() if not claim.has_ended]
        exist = await asyncio.gather(*map(self._exists, before))
        missing = {claim.uid: claim for claim, exists in zip(before, exist, strict=True) if not exists}
        uses = await in_use(self._driver.usage, missing.values(), checkpoint.claims) if missing else {}
        holds = {uid: uses.get(uid, Hold(claim)) for uid, claim in missing.items()}
        if release:
            for uid in sorted(uid for uid, claim in missing.items() if self._missing.get(uid) == claim):
                # Read again: it may have been allocated and prepared while its use was looked for.
                if holds[uid].known is None and not await self._exists(missing[uid]):
                    claim = missing.pop(uid)
                    del holds[uid]
                    # Not if it was prepared again while the API server was called, also by another instance.
                    if await self._driver.in_state(functools.partial(self._driver.preparer.release, claim)):
                        _log.warning("claim that no longer exists was released", extra={"claim": str(claim)})
            self._missing = missing
        # The kubelet may have unprepared a claim meanwhile.
        prepared = (await self._driver.checkpoint()).claims
        ended = {uid: hold for uid, hold in self._driver.holds.claims.items() if hold.claim.has_ended}
        held = {uid: hold for uid, hold in (holds | ended).items() if prepared.get(uid) == hold.claim}
        self._driver.holds.take(held)

    async def _exists(self, claim: PreparedClaim) -> bool:
        """Whether the claim's object still has the same UID and the prepared devices of this node."""
        try:
            body = await self._driver.objects.claim(claim.namespace, claim.name)
        except UnreadableAnswerError:
            return True  # a claim of that name exists
        if body is None:
            return False
        if (stored := _stored(body)) is None:
            return True
        here = [each for each in stored.ours if each.pool == self._driver.pool]
        same = all(any(_is_same(device, each) for each in here) for device in claim.devices)
        return same and stored.metadata.uid == claim.uid


def _stored(body: JsonObject) -> StoredClaim | None:
    """The claim that an object is; None if it has another structure."""
    try:
        return read_stored_claim(body)
    except _ODD:
        return None


def _running(
    used: Iterable[UsedDevice], pool: str, view: NodeView, objects: Iterable[StoredClaim]
) -> tuple[PreparedClaim, ...]:
    """The claims that pods use, as they were prepared. Their variables are not known.

    Args:
        objects: the CDI ids of another driver that prepared a claim tell neither its UID nor its requests.
    """
    known = {(each.metadata.namespace, each.metadata.name): each for each in objects}
    found: dict[str, dict[str, PreparedDevice]] = defaultdict(dict)
    names_of: dict[str, UsedDevice] = {}
    for each in used:
        stored = known.get((each.namespace, each.claim))
        uid = each.uid or (stored.metadata.uid if stored is not None else "")
        if uid and each.pool == pool:
            ours = stored.ours if stored is not None else ()
            requests = (one.request.partition("/")[0] for one in ours if (one.pool, one.device) == (pool, each.device))
            request = each.request or next(requests, "")
            device = undecided_device(request, each.device, pool, each.share_id, view)
            found[uid].setdefault(f"{each.request}/{each.device}", device)
            names_of[uid] = each
    return tuple(
        PreparedClaim(uid, names_of[uid].namespace, names_of[uid].claim, "", tuple(devices.values()))
        for uid, devices in found.items()
    )


def variables_in_status(claim: AllocatedClaim, body: JsonObject) -> Variables:
    """The containers' variables that the driver wrote to `status.devices`, by request."""
    entries = {}
    for entry in mappings(mapping(body.get("status")).get("devices")):
        variables = mapping(mapping(entry.get("data")).get("environment"))
        texts = {name: value for name, value in variables.items() if isinstance(value, str)}
        entries[entry.get("driver"), entry.get("pool"), entry.get("device"), entry.get("shareID")] = texts
    return {
        each.parent_request: found
        for each in claim.devices
        if (found := entries.get((names.DRIVER, each.pool, each.device, each.share_id)))
    }


def _is_same(prepared: PreparedDevice, allocated: Result) -> bool:
    # The kubelet, from which a claim may be restored, names a request without its alternative.
    requests = allocated.request, allocated.request.partition("/")[0]
    if prepared.request not in requests or prepared.device != allocated.device:
        return False
    # Some kubelets do not tell the share.
    return prepared.share is None or prepared.share.id == allocated.share_id
