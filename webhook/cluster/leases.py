"""The Leases of all replicas: our own kept alive, the others' watched. What they say is in `replicas`."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from webhook.cluster.api import (
    CONFLICT,
    MERGE_PATCH,
    NOT_FOUND,
    ApiServerError,
    StatusError,
    TimedApiServer,
    explain,
)
from webhook.cluster.reflector import Reflector, Timing
from webhook.cluster.replicas import LABELS, LEASES, RENEW_EVERY, Replica, Report, lease_body, read_lease

log = logging.getLogger(__name__)

_TIMEOUT: Final = 5.0
_RETRY: Final = 1.0
_FAREWELL: Final = 2.0
"""Seconds that saying good-bye may take; a Lease that is left behind ends by itself."""


class Leases:
    """This replica's Lease, and what the others say.

    Attributes:
        name: of our Lease.
        cache: has to run for `living` to be current.
        problem: why our Lease cannot be written; empty where it can.
    """

    def __init__(
        self,
        server: TimedApiServer,
        namespace: str,
        name: str,
        report: Callable[[], Report],
        *,
        owner: Mapping[str, str] | None = None,
        every: float = RENEW_EVERY,
        timing: Timing | None = None,
    ) -> None:
        """Prepare; `run` keeps the Lease.

        Args:
            server: where Leases are, and whose clock they follow.
            namespace: of the Leases.
            name: of ours: the pod's.
            report: what this replica says of itself right now.
            owner: `metav1.OwnerReference` of the pod.
            every: seconds between renewals.
            timing: pace of list-watch.
        """
        self.name = name
        self.problem = ""
        selector = ",".join(f"{key}={value}" for key, value in LABELS.items())
        self.cache = Reflector(
            server, LEASES, read_lease, namespace=namespace, query={"labelSelector": selector}, timing=timing
        )
        self._server = server
        self._namespace = namespace
        self._report = report
        self._owner = owner
        self._every = every
        self._wake = asyncio.Event()

    def announce(self) -> None:
        """Say at once what has changed."""
        self._wake.set()

    def agree(self, right: Callable[[Report], bool]) -> bool:
        """Whether every living replica says what is right, and we are among those whom all can see.

        A watch that is behind makes everybody look gone. Then we look gone ourselves, and nothing is agreed.
        """
        if not self.cache.synced.is_set() or self.cache.problem:
            return False
        living = self.living()
        return any(replica.name == self.name for replica in living) and all(right(each.report) for each in living)

    def living(self) -> list[Replica]:
        """Replicas that are there."""
        now = self._server.now()
        return [replica for replica in self.cache.values() if replica.lives(now)]

    async def run(self) -> None:
        """Renew our Lease in time and whenever there is news. Ends only when it is cancelled."""
        while True:
            self._wake.clear()
            pause = self._every
            try:
                await self._renew()
                self._say("")
            except ApiServerError as error:
                self._say(explain(error, "patch", LEASES, self._namespace, self.name))
                pause = _RETRY
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def withdraw(self) -> None:
        """Remove our Lease: other replicas wait for us no longer."""
        path = LEASES.path(self._namespace, self.name)
        try:
            await self._server.request("DELETE", path, timeout=_FAREWELL)
        except ApiServerError as error:
            log.info("Lease left behind", extra={"lease": self.name, "because": str(error)})

    async def _renew(self) -> None:
        body = lease_body(self.name, self._report(), self._server.now(), self._owner)
        path = LEASES.path(self._namespace, self.name)
        try:
            await self._server.request("PATCH", path, timeout=_TIMEOUT, body=body, content_type=MERGE_PATCH)
        except StatusError as error:
            if error.code != NOT_FOUND:
                raise
            await self._create(body)

    async def _create(self, body: Mapping[str, object]) -> None:
        try:
            await self._server.request("POST", LEASES.path(self._namespace), timeout=_TIMEOUT, body=body)
        except StatusError as error:
            if error.code != CONFLICT:
                raise
            self._wake.set()  # there it is, after all: renew it

    def _say(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.warning("%s", problem)
        self.problem = problem
