"""Writes `status.devices` of prepared claims (KEP-4817): conditions, device ids and health, where people look.

The task runs beside preparation, and its errors change nothing for pods. It compares the checkpoint and the hardware's
health with what each claim has, and writes the differences by server-side apply, so entries of other drivers stay.
A prepared claim is written once, from its object as preparation read it. After a restart a claim is read once, and
written only if it differs. The API server removes entries with the allocation, so those of a pod's own claim are left.
"""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Final

from kubeletplugin.changes import Clock, waking
from kubeletplugin.discover.health import HealthMonitor, HealthSnapshot, HealthStatus
from kubeletplugin.metrics import PluginMetrics
from kubeletplugin.ports import WAITS, JsonObject, timestamp
from kubeletplugin.prepare.checkpoint import PreparedClaim, PreparedDevice
from kubeletplugin.prepare.driver import ClaimReference, Driver
from neuron import names
from neuron.api.fields import WrongFormError, mapping, mappings
from neuron.api.stored_claims import StoredClaim, read_stored_claim
from runtime.api_server import ApiServerError, UnreadableAnswerError
from runtime.retries import RETRY, Backoff

READY: Final = "Ready"
HEALTHY: Final = "Healthy"

_log = logging.getLogger(__name__)

_Key = tuple[str, str]
"""Device name, and share id or "": identifies an entry among those of this driver and pool."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Known:
    """What a claim is known to have.

    Attributes:
        allocation: digest of the allocation; another one is another set of devices.
        keys: of each prepared device, in their order.
        stored: this driver's entries for this node, sorted.
    """

    allocation: str
    keys: tuple[_Key, ...]
    stored: tuple[JsonObject, ...]


class ClaimStatusWriter:
    """Writes until cancelled."""

    def __init__(
        self, driver: Driver, monitor: HealthMonitor, *, clock: Clock, metrics: PluginMetrics, retry: float = RETRY[0]
    ) -> None:
        """`retry` is the shortest time in seconds until a failed write is repeated."""
        self._driver = driver
        self._monitor = monitor
        self._clock = clock
        self._metrics = metrics
        self._retry = retry
        self._known: dict[str, _Known] = {}
        self._not_before: dict[str, float] = {}
        self._objects: dict[str, JsonObject] = {}
        self._of_pods: set[str] = set()
        self._leaving: set[str] = set()
        self._released: dict[str, ClaimReference] = {}
        self._unserved_until = 0.0
        self._failures = 0
        self._wake = asyncio.Event()
        self._told = False

    # --- called by the driver -------------------------------------------------------------------------------

    def prepared(self, claims: Sequence[JsonObject]) -> None:
        """Claims were prepared. Does not block."""
        for body in claims:
            self._objects[body["metadata"]["uid"]] = body
            self._released.pop(body["metadata"]["uid"], None)
        self._wake.set()

    def unprepared(self, claim: ClaimReference) -> None:
        """A claim was unprepared. Does not block."""
        if claim.uid in self._of_pods:
            return  # it is deallocated or deleted with its pod
        self._released[claim.uid] = claim
        self._wake.set()

    # --- the task -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write at each change until cancelled."""
        backoff = Backoff(self._retry, RETRY[1])
        async with waking(self._wake, WAITS.refused, self._monitor):
            while True:
                self._wake.clear()
                complete = await self.sync()
                if complete:
                    backoff.reset()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(WAITS.refused if complete else backoff.failed()):
                        await self._wake.wait()

    async def sync(self) -> bool:
        """Write every difference once; returns whether nothing has to be repeated soon."""
        if self._clock.monotonic() < self._unserved_until:
            self._released.clear()
            self._objects.clear()
            self._metrics.worked("claim-status")
            return True
        # Before the checkpoint is read: these are in it, or unprepared.
        written, released_before = set(self._objects), set(self._released)
        try:
            checkpoint = await self._driver.checkpoint()
        except (OSError, TimeoutError) as error:
            self._failed(f"prepared claims cannot be read: {error}")
            return False
        claims = checkpoint.claims
        for uid in self._known.keys() - claims.keys():
            del self._known[uid]
        for uid in written - claims.keys():
            self._objects.pop(uid, None)
        # Not at once: the kubelet's call may be between the checkpoint and `unprepared`.
        self._of_pods -= self._leaving - claims.keys()
        self._leaving = self._of_pods - claims.keys()
        self._not_before = {uid: until for uid, until in self._not_before.items() if uid in claims}
        failures, complete = self._failures, True
        # The others were unprepared since: the checkpoint is older than that.
        for uid in released_before & claims.keys():
            self._released.pop(uid, None)
        for claim in claims.values():
            # What has ended is in no allocation any more, so that it has no entry.
            if not claim.has_ended and self._clock.monotonic() >= self._not_before.get(claim.uid, 0.0):
                complete &= await self._attempt(claim, self._write(claim))
        for released in tuple(self._released.values()):
            complete &= await self._attempt(released, self._clear(released)) and released.uid not in self._released
        refused = any(self._clock.monotonic() < until for until in self._not_before.values())
        if self._failures == failures and not refused:
            self._metrics.worked("claim-status")
        return complete

    async def _attempt(self, claim: PreparedClaim | ClaimReference, write: Awaitable[None]) -> bool:
        try:
            await write
        except ApiServerError as error:
            self._failed(f"the status of ResourceClaim {claim.namespace}/{claim.name} cannot be written: {error}")
            if error.passing:
                return False
            self._not_before[claim.uid] = self._clock.monotonic() + WAITS.refused
            self._released.pop(claim.uid, None)
        return True

    async def _write(self, claim: PreparedClaim) -> None:
        known = self._known.get(claim.uid)
        if known is None or known.allocation != claim.allocation:
            known = await self._read(claim)
            if known is None:
                return
            self._known[claim.uid] = known
        wanted = self._entries(claim, known)
        if wanted == known.stored:
            return
        answer = await self._driver.objects.apply_devices(claim.namespace, claim.name, claim.uid, wanted)
        if answer is None:
            self._known.pop(claim.uid, None)
            return
        if not (answer.get("status") or {}).get("devices"):
            self._unserved_until = self._clock.monotonic() + WAITS.refused
            if not self._told:
                self._told = True
                reason = "the API server does not keep status.devices of ResourceClaims: the feature gate "
                reason += "DRAResourceClaimDeviceStatus is off"
                _log.warning("claim status is limited", extra={"reason": reason})
            return
        self._known[claim.uid] = dataclasses.replace(known, stored=wanted)

    async def _clear(self, released: ClaimReference) -> None:
        """Remove this driver's entries of a claim. It stays in `_released` if it has to be tried again.

        The instances of all nodes are one field manager. So the entries are removed only while the claim is allocated
        to this node: with another allocation the API server has removed them, and the present ones are another node's.
        """
        found = _of_uid(await self._driver.objects.claim(released.namespace, released.name), released.uid)
        if found is not None and any(each.pool == self._driver.pool for each in found.ours):
            version = found.metadata.resource_version
            cleared = await self._driver.objects.apply_devices(
                released.namespace, released.name, released.uid, (), resource_version=version
            )
            if cleared is None:
                return
        self._released.pop(released.uid, None)

    async def _read(self, claim: PreparedClaim) -> _Known | None:
        """What a claim has; None if it is gone, or allocated to other devices by now."""
        body = self._objects.pop(claim.uid, None) or await self._driver.objects.claim(claim.namespace, claim.name)
        found = _of_uid(body, claim.uid)
        if body is None or found is None:
            return None
        owner = found.metadata.controller
        if owner is not None and owner.kind == "Pod":
            self._of_pods.add(claim.uid)
        ours = [each for each in found.ours if each.pool == self._driver.pool]
        if [(each.request, each.device) for each in ours] != [
            (device.request, device.device) for device in claim.devices
        ]:
            return None
        keys = tuple((each.device, each.share_id or "") for each in ours)
        # Entries are written back whole.
        entries = mappings(mapping(body.get("status")).get("devices"))
        mine = names.DRIVER, self._driver.pool
        stored = [each for each in entries if (each.get("driver"), each.get("pool")) == mine]
        return _Known(claim.allocation, keys, tuple(dict(each) for each in sorted(stored, key=_key)))

    def _entries(self, claim: PreparedClaim, known: _Known) -> tuple[JsonObject, ...]:
        before = {_key(entry): entry for entry in known.stored}
        now = timestamp(self._clock.now())
        made: dict[_Key, JsonObject] = {}
        # With admin access, two requests of a claim can have the same device; entries are unique.
        for key, device in zip(known.keys, claim.devices, strict=True):
            entry: JsonObject = {"driver": names.DRIVER, "pool": self._driver.pool, "device": key[0]}
            if key[1]:
                entry["shareID"] = key[1]
            wanted = conditions(device.device, self._driver.pool, self._monitor.snapshot)
            entry["conditions"] = with_times(wanted, (before.get(key) or {}).get("conditions") or (), now)
            entry["data"] = data(device, claim.environment.get(device.parent_request, {}), self._monitor.snapshot)
            made.setdefault(key, entry)
        return tuple(made[key] for key in sorted(made))

    def _failed(self, message: str) -> None:
        self._failures += 1
        self._metrics.failed("claim-status")
        _log.warning("claim status not written", extra={"error": message})


def _of_uid(body: JsonObject | None, uid: str) -> StoredClaim | None:
    """The claim that an object is, if it has that UID. Raises UnreadableAnswerError."""
    if body is None:
        return None
    try:
        found = read_stored_claim(body)
    except WrongFormError as error:
        raise UnreadableAnswerError(f"it has another form than this driver knows: {error}") from error
    return found if found.metadata.uid == uid else None


def _key(entry: Mapping[str, object]) -> _Key:
    return str(entry["device"]), str(entry.get("shareID") or "")


def conditions(device: str, node: str, snapshot: HealthSnapshot) -> list[JsonObject]:
    """The conditions of one device, without times."""
    health = next((each for each in snapshot.health if each.device == device), None)
    message = "The device is not known on the node." if health is None else health.message
    if health is None:
        status, reason = "Unknown", "NotMonitored"
    elif health.status is HealthStatus.HEALTHY:
        status, reason = "True", "Healthy"
    elif health.status is HealthStatus.UNKNOWN:
        status, reason = "Unknown", "NotReadable"
    else:
        # The taint's value, such as hbm-ecc, as the reason of a condition: HbmEcc.
        status, reason = "False", "".join(part.capitalize() for part in health.reason.split("-")) or "Unhealthy"
    return [
        {"type": READY, "status": "True", "reason": "Prepared", "message": f"Prepared on node {node}."},
        {"type": HEALTHY, "status": status, "reason": reason, "message": message},
    ]


def with_times(wanted: Iterable[JsonObject], before: Iterable[Mapping[str, object]], now: str) -> list[JsonObject]:
    """Conditions with `lastTransitionTime`: the old one while the status stays."""
    times = {(each.get("type"), each.get("status")): each.get("lastTransitionTime") for each in before}
    return [each | {"lastTransitionTime": times.get((each["type"], each["status"])) or now} for each in wanted]


def data(device: PreparedDevice, environment: Mapping[str, str], snapshot: HealthSnapshot) -> JsonObject:
    """The driver's data about one entry: device ids, paths, serial numbers, and variables of the containers."""
    found = [snapshot.hardware.device(index) for index in device.indices]
    serials = [each.serial for each in found if each is not None and each.serial]
    content: JsonObject = {
        "deviceIds": list(device.indices),
        "devicePaths": [f"/dev/neuron{index}" for index in device.indices],
    }
    if len(serials) == len(device.indices):
        content["serialNumbers"] = serials
    if environment:
        content["environment"] = dict(environment)
    return content
