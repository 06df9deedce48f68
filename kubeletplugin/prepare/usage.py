"""Decides whether the devices of a claim can be given to another one: no container has them. Else they are held.

Containers name their claims (`discover.processes`). A claim that the kubelet did not unprepare can be released only if
the kubelet's PodResources API (v1, over its socket) does not list it either: its container may be about to start. The
kubelet answers from its own state, so it also names claims whose objects were removed from the API server.

A device is held, although the cluster does not know that it is in use, if it is prepared for a claim whose object is
gone or allocated elsewhere by now, or if processes have it for a claim that has ended. All devices are held while the
driver restores which claims are prepared.
"""

import asyncio
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc

from kubeletplugin.changes import Changing
from kubeletplugin.discover.processes import Processes, ProcessUse
from kubeletplugin.pb import podresources_v1_pb2
from kubeletplugin.ports import WAITS, UsageUnknownError
from kubeletplugin.prepare import cdi
from kubeletplugin.prepare.checkpoint import PreparedClaim
from neuron import names

_LIST: Final = "/v1.PodResourcesLister/List"


class NoKubeletError(UsageUnknownError):
    """The kubelet does not serve the API: there is no socket."""


@dataclasses.dataclass(frozen=True, slots=True)
class UsedDevice:
    """A device of this driver that a pod uses.

    Attributes:
        pod: `namespace/name` of the pod.
        namespace: of the claim.
        uid: of the claim; empty if the CDI ids do not contain it.
        request: of the claim, without its alternative; empty if the CDI ids do not contain it.
        share_id: of a device that several claims share.
    """

    pod: str
    namespace: str
    claim: str
    uid: str
    request: str
    device: str
    pool: str
    share_id: str | None = None
    container: str = ""


class PodResources:
    """The kubelet's answers. Each question opens its own connection: a restarted kubelet has a new socket."""

    def __init__(self, socket: Path, seconds: float = WAITS.kubelet_answer) -> None:
        """`seconds` is the time-out of a question."""
        self._socket = socket
        self._seconds = seconds

    async def used(self) -> tuple[UsedDevice, ...]:
        """The devices that pods of the node use.

        Raises:
            NoKubeletError: there is no socket.
            UsageUnknownError: the kubelet does not answer.
        """
        if not self._socket.exists():
            raise NoKubeletError(
                f"the kubelet's socket {self._socket} does not exist: mount its directory and set "
                "--pod-resources-socket"
            )
        # The kubelet has the same bound of an answer.
        options = [("grpc.max_receive_message_length", 16 * 1024 * 1024), ("grpc.enable_http_proxy", 0)]
        async with grpc.aio.insecure_channel(f"unix:{self._socket}", options=options) as channel:
            ask = channel.unary_unary(
                _LIST,
                request_serializer=podresources_v1_pb2.ListPodResourcesRequest.SerializeToString,
                response_deserializer=podresources_v1_pb2.ListPodResourcesResponse.FromString,
            )
            try:
                answer = await ask(podresources_v1_pb2.ListPodResourcesRequest(), timeout=self._seconds)
            except grpc.aio.AioRpcError as error:
                why = f"{error.code().name} {error.details() or ''}".rstrip()
                raise UsageUnknownError(f"the kubelet does not answer at {self._socket}: {why}") from error
        return tuple(_devices(answer))


def _devices(answer: Any) -> Iterator[UsedDevice]:
    for pod in answer.pod_resources:
        for container in pod.containers:
            for dynamic in container.dynamic_resources:
                for resource in dynamic.claim_resources:
                    if resource.driver_name != names.DRIVER:
                        continue
                    # The kubelet adds the ids of the claim's other devices to those of this one.
                    ids = [found for each in resource.cdi_devices if (found := cdi.parse_id(each.name)) is not None]
                    yield UsedDevice(
                        f"{pod.namespace}/{pod.name}",
                        dynamic.claim_namespace,
                        dynamic.claim_name,
                        ids[0].uid if ids else "",
                        next((each.request for each in ids if each.device == resource.device_name), ""),
                        resource.device_name,
                        resource.pool_name,
                        resource.share_id if resource.HasField("share_id") else None,
                        container.name,
                    )


@dataclasses.dataclass(frozen=True, slots=True)
class Hold:
    """A claim that is not released.

    Attributes:
        known: whether a pod or process is known to use it; False if that cannot be found out; None if nothing uses it,
            and it will be released at the next search.
        why: half a sentence, for people.
    """

    claim: PreparedClaim
    known: bool | None = None
    why: str = "nothing is known to use it, and it is released at the next search"


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
        """Devices that the kubelet's pods use. Raises UsageUnknownError."""
        return await self._kubelet.used()

    async def processes(self, *, environment: bool = False) -> tuple[ProcessUse, ...]:
        """Containers that name claims, as `Processes.scan`, looked at after the call.

        Raises:
            NoProcessesError: the host's processes are not visible.
            UsageUnknownError: they cannot be read, or it took too long.
        """
        task = self._next.get(environment)
        if task is None or task.done():
            task = self._next[environment] = asyncio.create_task(self._scan(environment=environment))
        return await asyncio.shield(task)

    async def _scan(self, *, environment: bool) -> tuple[ProcessUse, ...]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(WAITS.scan_and_queue):
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
    usage: NodeUsage, claims: Iterable[PreparedClaim], prepared: Mapping[str, PreparedClaim]
) -> Mapping[str, Hold]:
    """The claims, by UID, that are in use or may be: kubelet and processes both have to deny it.

    Args:
        prepared: as of `by_processes`.
    """
    listed, seen = await asyncio.gather(usage.listed(), usage.processes(), return_exceptions=True)
    found: dict[str, Hold] = {}
    for claim in claims:
        uses = (
            by_kubelet(claim, listed) if isinstance(listed, tuple) else _unknown(claim, listed),
            by_processes(claim, seen, prepared) if isinstance(seen, tuple) else _unknown(claim, seen),
        )
        if held := [use for use in uses if use is not None]:
            found[claim.uid] = max(held, key=lambda use: bool(use.known))
    return found


def by_kubelet(claim: PreparedClaim, used: Iterable[UsedDevice]) -> Hold | None:
    """The use of a claim that the kubelet reports."""
    pods = sorted({each.pod for each in used if is_of(each, claim)})
    return Hold(claim, True, f"the kubelet reports that pod {', '.join(pods)} uses it") if pods else None


def by_processes(
    claim: PreparedClaim, uses: Iterable[ProcessUse], prepared: Mapping[str, PreparedClaim]
) -> Hold | None:
    """The use of a claim by processes.

    Args:
        prepared: the claims of the node. Containers of a claim that was prepared again are not its earlier ones.
    """
    uid = claim.object_uid
    again = prepared.get(uid) if claim.has_ended else None
    for use in uses:
        if any(file.uid == uid and (again is None or file.number != again.number) for file in use.files):
            return Hold(claim, True, str(use))
    return None


def unknown(claim: PreparedClaim, error: UsageUnknownError) -> Hold:
    """A claim whose use cannot be found out."""
    return Hold(claim, False, f"it is not known whether a pod uses it: {error}")


def _unknown(claim: PreparedClaim, error: BaseException) -> Hold:
    if not isinstance(error, UsageUnknownError):
        raise error
    return unknown(claim, error)


def is_of(used: UsedDevice, claim: PreparedClaim) -> bool:
    """Whether a pod uses this claim."""
    if used.uid:
        return used.uid == claim.uid
    return (used.namespace, used.claim) == (claim.namespace, claim.name)


class Holds(Changing):
    """The held claims of the node, and waiting for changes of them.

    Attributes:
        claims: by UID.
        restoring: whether prepared claims may be missing in the driver's state, or in `claims`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.restoring = False
        self.claims: Mapping[str, Hold] = {}

    @property
    def indices(self) -> frozenset[int]:
        """All held devices."""
        return frozenset(index for hold in self.claims.values() for index in hold.claim.held)

    def take(self, claims: Mapping[str, Hold]) -> None:
        """Take the held claims as they are now."""
        if dict(claims) != dict(self.claims):
            self.claims = dict(claims)
            self._count_change()

    def restore(self, *, restoring: bool) -> None:
        """Take whether prepared claims may be missing."""
        if restoring is not self.restoring:
            self.restoring = restoring
            self._count_change()

    def take_ended(self, claims: Mapping[str, Hold]) -> None:
        """Take the held claims that have ended, as they are now."""
        self.take({key: hold for key, hold in self.claims.items() if not hold.claim.has_ended} | dict(claims))

    def forget(self, uid: str) -> None:
        """A claim was unprepared."""
        self.take({key: hold for key, hold in self.claims.items() if key != uid})
