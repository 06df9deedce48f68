"""The kubelet's calls, free of gRPC: fetch the claims, prepare or unprepare each, answer for every one.

One claim's error never spoils its siblings: each gets its own.
"""

import asyncio
import dataclasses
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from kubeletplugin.metrics import Metrics
from kubeletplugin.ports import ClaimReader, Clock, JsonObject, KubeError
from kubeletplugin.prepare import Answer, DeviceHeldError, NodeView, PrepareError, Preparer, devices_held
from neuron import names
from neuron.allocation import AllocatedClaim, AllocationError, read_allocation

CALL_BUDGET: Final = 40.0
"""Seconds to try within one call: the kubelet gives up after 45 (KEP-4381), and an answer says more than that."""

HELD_SECONDS: Final = 15.0
"""Seconds to wait for devices of another claim; a user waits as long for the event that names it."""

_FIRST_LOOK: Final = 0.05
_LAST_LOOK: Final = 1.0
_FIRST_RETRY: Final = 0.1
_LAST_RETRY: Final = 5.0

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimReference:
    """How the kubelet names a claim."""

    namespace: str
    name: str
    uid: str


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one claim: its devices, or an error for the pod's event."""

    devices: tuple[Answer, ...] = ()
    error: str = ""


class Driver:
    """Prepares and unprepares what the kubelet asks for."""

    def __init__(
        self,
        preparer: Preparer,
        claims: ClaimReader,
        view: Callable[[], NodeView],
        pool: str,
        *,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._preparer = preparer
        self._claims = claims
        self._view = view
        self._pool = pool
        self._clock = clock
        self._metrics = metrics
        # One thread: the state has one lock, and waiting for it in line is cheaper than polling for it.
        self._state_thread = ThreadPoolExecutor(1, "state")

    def close(self) -> None:
        """Finish what has begun."""
        self._state_thread.shutdown()

    async def prepare(self, claims: Iterable[ClaimReference], budget: float = CALL_BUDGET) -> dict[str, Outcome]:
        """Prepare claims.

        Args:
            claims: as the kubelet names them.
            budget: seconds within which an unreachable API server is asked again.

        Returns:
            An outcome for every UID.
        """
        deadline = self._clock.monotonic() + budget
        return await self._each(claims, "prepare", lambda claim: self._prepare(claim, deadline))

    async def unprepare(self, claims: Iterable[ClaimReference]) -> dict[str, Outcome]:
        """Undo the preparation of claims; one that is not prepared is no error, and none needs to exist."""
        return await self._each(claims, "unprepare", self._unprepare)

    async def in_state(self, call: Callable[[], _T]) -> _T:
        """Run something that uses the state, in line with everything else that does."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._state_thread, call)
        finally:
            for problem in self._preparer.take_problems():
                self._metrics.background_errors.labels("state").inc()
                _log.error("state damaged", extra={"problem": problem})

    async def count(self) -> None:
        """Bring the metrics of what is prepared up to date."""
        try:
            checkpoint = await self.in_state(self._preparer.checkpoint)
        except (OSError, TimeoutError) as error:
            _log.warning("prepared claims cannot be counted", extra={"error": str(error)})
            return
        self._metrics.prepared_claims.set(len(checkpoint.claims))
        self._metrics.prepared_devices.set(devices_held(checkpoint.claims))

    async def _each(
        self, claims: Iterable[ClaimReference], operation: str, handle: Callable[[ClaimReference], Awaitable[Outcome]]
    ) -> dict[str, Outcome]:
        unique = {claim.uid: claim for claim in claims}
        calls = (self._one(claim, operation, handle) for claim in unique.values())
        results = await asyncio.gather(*calls, return_exceptions=True)
        if unique:
            await self.count()
        return {
            uid: _unexpected(uid, operation, result) if isinstance(result, BaseException) else result
            for uid, result in zip(unique, results, strict=True)
        }

    async def _one(
        self, claim: ClaimReference, operation: str, handle: Callable[[ClaimReference], Awaitable[Outcome]]
    ) -> Outcome:
        start = self._clock.monotonic()
        fields: JsonObject = {"claim": f"{claim.namespace}/{claim.name}", "uid": claim.uid, "operation": operation}
        try:
            with self._metrics.measured(operation):
                outcome = await handle(claim)
        except (AllocationError, PrepareError, KubeError, TimeoutError) as error:
            outcome = Outcome(error=str(error))
        except OSError as error:
            outcome = Outcome(error=f"The driver's state on the node cannot be written: {error}. {_cure(error)}")
        fields["ms"] = round((self._clock.monotonic() - start) * 1000, 1)
        if outcome.error:
            _log.error("claim failed", extra=fields | {"error": outcome.error})
        else:
            _log.info("claim done", extra=fields | {"devices": [answer.device for answer in outcome.devices]})
        return outcome

    async def _prepare(self, claim: ClaimReference, deadline: float) -> Outcome:
        body = await self._fetch(claim, deadline)
        if body is None:
            raise PrepareError(
                f"ResourceClaim {claim.namespace}/{claim.name} does not exist (any more); the kubelet asked for it."
            )
        allocated = read_allocation(body, names.DRIVER, self._pool, claim.uid)
        for finding in allocated.warnings:
            extra = {"claim": f"{claim.namespace}/{claim.name}", "finding": str(finding)}
            _log.warning("claim has an odd config", extra=extra)
        return Outcome(await self._prepare_when_free(allocated, deadline))

    async def _prepare_when_free(self, claim: AllocatedClaim, deadline: float) -> tuple[Answer, ...]:
        """Prepare a claim; devices that another one holds are waited for a little.

        After a deletion without a grace period the scheduler gives the devices to the next pod before the kubelet has
        unprepared the last one, mostly within a second. The kubelet would not try again for a minute.
        """
        until = min(deadline, self._clock.monotonic() + HELD_SECONDS)
        delay = _FIRST_LOOK
        while True:
            view = self._view()
            try:
                return await self.in_state(functools.partial(self._preparer.prepare, claim, view))
            except DeviceHeldError:
                if self._clock.monotonic() + delay > until:
                    raise
            await self._clock.sleep(delay)
            delay = min(delay * 2, _LAST_LOOK)

    async def _unprepare(self, claim: ClaimReference) -> Outcome:
        await self.in_state(lambda: self._preparer.unprepare(claim.uid))
        return Outcome()

    async def _fetch(self, claim: ClaimReference, deadline: float) -> JsonObject | None:
        """The claim; an API server that does not answer is asked again until the deadline.

        The last attempt ends at the deadline as well: an answer after the kubelet's 45 s would say nothing to anybody.
        """
        delay = _FIRST_RETRY
        while True:
            try:
                async with asyncio.timeout(deadline - self._clock.monotonic()):
                    return await self._claims.claim(claim.namespace, claim.name)
            except TimeoutError as error:
                raise PrepareError(
                    f"ResourceClaim {claim.namespace}/{claim.name} cannot be read: the API server did not answer in "
                    "the time that a call of the kubelet has. The kubelet tries again by itself."
                ) from error
            except KubeError as error:
                left = deadline - self._clock.monotonic()
                if not error.retryable or left <= delay:
                    raise PrepareError(
                        f"ResourceClaim {claim.namespace}/{claim.name} cannot be read: {error}. "
                        "The kubelet tries again by itself."
                    ) from error
            await self._clock.sleep(delay)
            delay = min(delay * 2, _LAST_RETRY)


def _unexpected(uid: str, operation: str, error: BaseException) -> Outcome:
    """An error of the program itself: the siblings are still answered for."""
    _log.error("unexpected error", extra={"uid": uid, "operation": operation}, exc_info=error)
    return Outcome(error=f"The driver failed unexpectedly ({type(error).__name__}); its log has the details.")


def _cure(error: OSError) -> str:
    where = error.filename or "the state and CDI directories"
    return f"Check free space and write permission of {where}; the kubelet tries again by itself."
