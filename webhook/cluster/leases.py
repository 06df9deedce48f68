"""Renews this replica's Lease and watches the Leases of all replicas; `replicas` has their content."""

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Final

from cluster.kinds.replicas import RENEW_EVERY, SELECTOR, Replica, ReplicaStatus, lease_body, read_lease
from cluster.reflector import Key, Projection, Reflector
from cluster.resources import LEASES
from cluster.store import Store
from runtime.api_server import (
    CONFLICT,
    MERGE_PATCH,
    NOT_FOUND,
    ApiServerError,
    Collection,
    StatusError,
    TimedApiServer,
    explain,
)
from runtime.retries import REQUEST_TIMEOUT, RetryProblem

log = logging.getLogger(__name__)

_RETRY: Final = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class LeaseIdentity:
    """Which Lease is this replica's.

    Attributes:
        name: of the Lease, and of the pod.
        owner: `metav1.OwnerReference` of the pod; None outside of a pod.
    """

    namespace: str
    name: str
    owner: Mapping[str, str] | None = None


class Leases:
    """This replica's Lease, and the status of all replicas.

    Attributes:
        name: of this replica's Lease.
        cache: the Leases; `living` is current while the cache runs.
    """

    def __init__(self, server: TimedApiServer, identity: LeaseIdentity, report: Callable[[], ReplicaStatus]) -> None:
        """Prepare; `run` renews the Lease, by the clock of the server. `report` returns the status of this replica."""
        self.name = identity.name
        collection = Collection(LEASES, identity.namespace, parameters={"labelSelector": SELECTOR})
        self.cache = Reflector(server, collection, Projection(read_lease))
        self._server = server
        self._identity = identity
        self._report = report
        self._problem = RetryProblem(log)
        self._wake = asyncio.Event()

    @property
    def problem(self) -> str:
        """Why this replica's Lease cannot be written; empty if it can."""
        return self._problem.text

    def announce(self) -> None:
        """Write a changed status now, without waiting for the next renewal."""
        self._wake.set()

    def share(self, types: Store) -> None:
        """Take in the instance types of all replicas, also of those that have ended and whose Lease is still there."""
        types.on_types = self.announce

        def changed(_: Key, __: Replica | None, after: Replica | None) -> None:
            if after is not None:
                types.learn_types(after.report.types)

        for replica in self.cache.values():
            types.learn_types(replica.report.types)
        self.cache.on_change(changed)

    def agree(self, right: Callable[[ReplicaStatus], bool]) -> bool:
        """Whether `right` is true for every living replica, and this replica is one of them.

        If the watch is behind, all Leases look expired, also this replica's own; the answer is then False.
        """
        if not self.cache.synced.is_set() or self.cache.problem:
            return False
        living = self.living()
        return any(replica.name == self.name for replica in living) and all(right(each.report) for each in living)

    def living(self) -> list[Replica]:
        """Replicas whose Lease has not expired."""
        now = self._server.now()
        return [replica for replica in self.cache.values() if replica.lives(now)]

    async def run(self) -> None:
        """Renew the Lease in time and after `announce`, until it is cancelled."""
        while True:
            self._wake.clear()
            pause = RENEW_EVERY
            try:
                await self._renew()
                self._problem.set("")
            except ApiServerError as error:
                self._problem.set(explain(error, "patch", LEASES, self._identity.namespace, self.name))
                pause = _RETRY
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def withdraw(self) -> None:
        """Delete the Lease, so that other replicas do not wait for this one."""
        path = LEASES.path(self._identity.namespace, self.name)
        try:
            await self._server.request("DELETE", path, timeout=2.0)  # one that is not deleted expires
        except ApiServerError as error:
            log.info("Lease left behind", extra={"lease": self.name, "because": str(error)})

    async def _renew(self) -> None:
        body = lease_body(self.name, self._report(), self._server.now(), self._identity.owner)
        path = LEASES.path(self._identity.namespace, self.name)
        try:
            await self._server.request("PATCH", path, timeout=REQUEST_TIMEOUT, body=body, content_type=MERGE_PATCH)
        except StatusError as error:
            if error.code != NOT_FOUND:
                raise
            path = LEASES.path(self._identity.namespace)
            try:
                await self._server.request("POST", path, timeout=REQUEST_TIMEOUT, body=body)
            except StatusError as refused:
                if refused.code != CONFLICT:
                    raise
                self._wake.set()  # it exists by now: renew it
