"""Handles the kubelet's calls without gRPC: reads each claim, prepares or unprepares it, returns a result per claim.

An error of one claim does not affect the others.
"""

import asyncio
import dataclasses
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NoReturn, Protocol, TypeVar

from kubeletplugin.api_store import ApiStore
from kubeletplugin.changes import Clock
from kubeletplugin.discover.processes import ProcessUse
from kubeletplugin.metrics import PluginMetrics
from kubeletplugin.ports import WAITS, JsonObject, NoProcessesError, UsageUnknownError
from kubeletplugin.prepare.cdi import UltraServerError
from kubeletplugin.prepare.checkpoint import Checkpoint, PreparedClaim, uid_before
from kubeletplugin.prepare.decide import DeviceHeldError, NodeView, PrepareError
from kubeletplugin.prepare.preparer import DeviceAnswer, Preparer, devices_held
from kubeletplugin.prepare.usage import Hold, Holds, NodeUsage, by_processes, unknown
from neuron import names
from neuron.api.allocation import AllocatedClaim, AllocationError, read_allocation
from runtime.api_server import ApiServerError
from runtime.retries import Backoff

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimReference:
    """A claim in a call of the kubelet."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclasses.dataclass(frozen=True, slots=True)
class PrepareResult:
    """The result for one claim: its devices, or an error for the pod's event."""

    devices: tuple[DeviceAnswer, ...] = ()
    error: str = ""


class ClaimObserver(Protocol):
    """Receives changes of prepared claims. No method blocks."""

    def prepared(self, claims: Sequence[JsonObject]) -> None:
        """Claims were prepared; these are their objects as read for it."""

    def unprepared(self, claim: ClaimReference) -> None:
        """A claim was unprepared."""


class Driver:
    """Prepares and unprepares the claims of one node, as the kubelet requests it.

    Attributes:
        preparer: their prepared state.
        objects: the API server's claims.
        view: returns the hardware as last discovered.
        pool: name of the node, and so of its pool.
        usage: what uses the devices.
        observer: is told of changes of prepared claims.
        holds: claims that hold devices, and have ended or no longer exist.
        refusals: how often a claim was refused because another one holds its devices.
    """

    def __init__(
        self,
        preparer: Preparer,
        objects: ApiStore,
        view: Callable[[], NodeView],
        pool: str,
        usage: NodeUsage,
        *,
        clock: Clock,
        metrics: PluginMetrics,
    ) -> None:
        self.preparer = preparer
        self.objects = objects
        self.view = view
        self.pool = pool
        self.usage = usage
        self._clock = clock
        self._metrics = metrics
        self.observer: ClaimObserver | None = None
        self.holds: Final = Holds()
        self.refusals = 0
        self._calls = 0
        # One thread: the state has one lock, and a queue is cheaper than to poll for the lock.
        self._state_thread = ThreadPoolExecutor(1, "state")
        self._sysfs_thread = ThreadPoolExecutor(1, "sysfs")

    def close(self) -> None:
        """Wait for running operations on the state."""
        self._state_thread.shutdown()
        self._sysfs_thread.shutdown(wait=False, cancel_futures=True)

    async def finish_calls(self) -> None:
        """Wait until no call of the kubelet runs, up to `WAITS.held`.

        A kubelet that sees that the driver's registration socket has gone closes its connection: a call that waits for
        a device would fail, and its pod would wait for the kubelet's next attempt.
        """
        until = self._clock.monotonic() + WAITS.held
        while self._calls and self._clock.monotonic() < until:
            await self._clock.sleep(0.05)

    async def prepare(self, claims: Iterable[ClaimReference], budget: float = WAITS.call) -> dict[str, PrepareResult]:
        """Prepare claims.

        Args:
            claims: of the call.
            budget: seconds for retries if the API server cannot be reached.

        Returns:
            A result for every UID.
        """
        deadline = self._clock.monotonic() + budget
        objects: list[JsonObject] = []
        results = await self._each(claims, "prepare", lambda claim: self._prepare(claim, deadline, objects))
        if objects and self.observer is not None:
            self.observer.prepared(objects)
        return results

    async def unprepare(self, claims: Iterable[ClaimReference]) -> dict[str, PrepareResult]:
        """Unprepare claims. A claim need not be prepared, nor exist.

        The kubelet also asks while containers run, if the runtime does not stop them and the pod was deleted by force.
        Their devices stay held until no process has them; the kubelet's answer does not wait for that.
        """
        return await self._each(claims, "unprepare", self._unprepare)

    async def release_ended(self) -> bool:
        """Release the claims that have ended and that no process uses, and hold the others; whether none is left."""
        checkpoint = await self.checkpoint()
        ended = [claim for claim in checkpoint.claims.values() if claim.has_ended]
        held = await self._in_use(ended, checkpoint.claims) if ended else {}
        for claim in ended:
            if claim.uid not in held and await self.in_state(functools.partial(self.preparer.release, claim)):
                _log.info("devices of an ended claim are free", extra={"claim": str(claim)})
        self.holds.take_ended(held)
        return not held

    async def in_state(self, call: Callable[[], _T]) -> _T:
        """Run an operation on the state in the state's thread."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._state_thread, call)
        finally:
            for problem in self.preparer.take_problems():
                self._metrics.background_errors.labels("state").inc()
                _log.error("state damaged", extra={"problem": problem})

    async def view_for(self, claims: Iterable[AllocatedClaim]) -> NodeView:
        """The hardware, with what its UltraServer files say now if one of the claims has settings that need them.

        A kernel driver that hangs blocks who reads its files. In the state's thread that would stop every claim.
        """
        view = self.view()
        if not any(claim.in_force(each.request).ultraserver_mode for claim in claims for each in claim.devices):
            return view
        read = asyncio.get_running_loop().run_in_executor(self._sysfs_thread, view.read_ultraserver)
        try:
            async with asyncio.timeout(WAITS.sysfs):
                found = await read
        except TimeoutError:
            return dataclasses.replace(view, read_ultraserver=_unanswered)
        return dataclasses.replace(view, read_ultraserver=lambda: found)

    async def checkpoint(self) -> Checkpoint:
        """The present state. Raises OSError, TimeoutError."""
        return await self.in_state(self.preparer.checkpoint)

    async def prepared_claims(self) -> Mapping[str, PreparedClaim]:
        """The prepared claims by UID. Raises OSError, TimeoutError."""
        return (await self.checkpoint()).prepared

    async def preparations(self) -> int:
        """How many claims were prepared; -1 if the state cannot be read."""
        try:
            return (await self.checkpoint()).count
        except (OSError, TimeoutError):
            return -1

    async def count(self) -> None:
        """Update the metrics of prepared claims."""
        try:
            prepared = await self.prepared_claims()
        except (OSError, TimeoutError) as error:
            _log.warning("prepared claims cannot be counted", extra={"error": str(error)})
            return
        self._metrics.prepared_claims.set(len(prepared))
        self._metrics.prepared_devices.set(devices_held(prepared))

    async def _each(
        self,
        claims: Iterable[ClaimReference],
        operation: str,
        handle: Callable[[ClaimReference], Awaitable[PrepareResult]],
    ) -> dict[str, PrepareResult]:
        unique = {claim.uid: claim for claim in claims}
        calls = (self._one(claim, operation, handle) for claim in unique.values())
        self._calls += 1
        try:
            results = await asyncio.gather(*calls, return_exceptions=True)
            if unique:
                await self.count()
        finally:
            self._calls -= 1
        return {
            uid: _unexpected(uid, operation, result) if isinstance(result, BaseException) else result
            for uid, result in zip(unique, results, strict=True)
        }

    async def _one(
        self, claim: ClaimReference, operation: str, handle: Callable[[ClaimReference], Awaitable[PrepareResult]]
    ) -> PrepareResult:
        start = self._clock.monotonic()
        fields: JsonObject = {"claim": str(claim), "uid": claim.uid, "operation": operation}
        try:
            with self._metrics.measured(operation):
                result = await handle(claim)
        except (AllocationError, PrepareError, ApiServerError, TimeoutError) as error:
            result = PrepareResult(error=str(error))
        except OSError as error:
            where = error.filename or "the state and CDI directories"
            fix = f"Check free space and write permission of {where}; the kubelet tries again by itself."
            result = PrepareResult(error=f"The driver's state on the node cannot be written: {error}. {fix}")
        fields["ms"] = round((self._clock.monotonic() - start) * 1000, 1)
        if result.error:
            _log.error("claim failed", extra=fields | {"error": result.error})
        else:
            _log.info("claim done", extra=fields | {"devices": [answer.device for answer in result.devices]})
        return result

    async def _prepare(self, claim: ClaimReference, deadline: float, objects: list[JsonObject]) -> PrepareResult:
        body = await self._fetch(claim, deadline)
        if body is None:
            raise PrepareError(f"ResourceClaim {claim} does not exist (any more); the kubelet asked for it.")
        allocated = read_allocation(body, names.DRIVER, self.pool, claim.uid)
        for finding in allocated.warnings:
            _log.warning("claim has an odd config", extra={"claim": str(claim), "finding": str(finding)})
        answers = await self._prepare_when_free(allocated, deadline)
        objects.append(body)
        return PrepareResult(answers)

    async def _prepare_when_free(self, claim: AllocatedClaim, deadline: float) -> tuple[DeviceAnswer, ...]:
        """Prepare a claim; wait up to `WAITS.held` for devices that another claim holds.

        After a deletion without a grace period the scheduler allocates the devices to the next pod before the kubelet
        has unprepared them, which takes about a second, or before their processes have ended. The kubelet itself
        retries only after a minute.
        """
        until = min(deadline, self._clock.monotonic() + WAITS.held)
        backoff = Backoff(0.05, 1.0)
        while True:
            view = await self.view_for([claim])
            try:
                return await self.in_state(functools.partial(self.preparer.prepare, claim, view))
            except DeviceHeldError as error:
                pause = backoff.failed()
                if error.ended:
                    await self.release_ended()
                if self._clock.monotonic() + pause > until:
                    self.refusals += 1
                    hold = self.holds.claims.get(error.holder)
                    why = f" That ResourceClaim {hold.claim.ended}: {hold.why}." if hold is not None else ""
                    raise PrepareError(f"{error}{why}") from error
            await self._clock.sleep(pause)

    async def _unprepare(self, claim: ClaimReference) -> PrepareResult:
        claims = (await self.checkpoint()).claims
        prepared = claims.get(claim.uid)
        mine = [each for uid in (claim.uid, uid_before(claim.uid)) if (each := claims.get(uid)) is not None]
        others = {uid: each for uid, each in claims.items() if uid != claim.uid}
        uses = await self._in_use(mine, others, WAITS.unprepare) if mine else {}
        hold, asked = bool(uses), prepared.asked if prepared is not None else None
        await self.in_state(lambda: self.preparer.unprepare(claim.uid, hold=hold, asked=asked))
        self.holds.forget(claim.uid)
        if hold:
            ended = (await self.checkpoint()).claims.get(uid_before(claim.uid))
            if ended is not None:
                use = next(iter(uses.values()))
                self.holds.take({**self.holds.claims, ended.uid: dataclasses.replace(use, claim=ended)})
        else:
            self.holds.forget(uid_before(claim.uid))
        if self.observer is not None:
            self.observer.unprepared(claim)
        return PrepareResult()

    async def _in_use(
        self, claims: Iterable[PreparedClaim], prepared: Mapping[str, PreparedClaim], seconds: float | None = None
    ) -> Mapping[str, Hold]:
        """Those of the claims, which the kubelet has unprepared, that processes use or may use, by UID."""
        try:
            async with asyncio.timeout(seconds):
                uses: tuple[ProcessUse, ...] = await self.usage.processes()
        except NoProcessesError:
            uses = ()  # the driver may not look: there is only the kubelet's word
        except UsageUnknownError as error:
            return {claim.uid: unknown(claim, error) for claim in claims}
        except TimeoutError:
            why = UsageUnknownError("the look at the processes of the node takes too long")
            return {claim.uid: unknown(claim, why) for claim in claims}
        found = (by_processes(claim, uses, prepared) for claim in claims)
        return {hold.claim.uid: hold for hold in found if hold is not None}

    async def _fetch(self, claim: ClaimReference, deadline: float) -> JsonObject | None:
        """The claim. Retryable errors are retried until the deadline, which also ends the last attempt."""
        backoff = Backoff(0.1, 5.0)
        while True:
            try:
                async with asyncio.timeout(deadline - self._clock.monotonic()):
                    return await self.objects.claim(claim.namespace, claim.name)
            except TimeoutError as error:
                raise PrepareError(
                    f"ResourceClaim {claim} cannot be read: the API server did not answer in "
                    "the time that a call of the kubelet has. The kubelet tries again by itself."
                ) from error
            except ApiServerError as error:
                left = deadline - self._clock.monotonic()
                pause = backoff.failed()
                if error.retry_after < left:
                    pause = max(pause, error.retry_after)
                if not error.passing or left <= pause:
                    raise PrepareError(
                        f"ResourceClaim {claim} cannot be read: {error}. The kubelet tries again by itself."
                    ) from error
            await self._clock.sleep(pause)


def _unanswered() -> NoReturn:
    raise UltraServerError(
        f"The kernel driver's UltraServer files have not answered for {WAITS.sysfs:g} s: look into the kernel's log "
        "(dmesg) for lines of the Neuron driver. The kubelet tries again by itself."
    )


def _unexpected(uid: str, operation: str, error: BaseException) -> PrepareResult:
    """The result for an error of the program; the other claims keep their results."""
    _log.error("unexpected error", extra={"uid": uid, "operation": operation}, exc_info=error)
    return PrepareResult(error=f"The driver failed unexpectedly ({type(error).__name__}); its log has the details.")
