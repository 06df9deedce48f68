"""Reconciles the node's ResourceSlices: watches them and writes every difference from the desired ones.

The kubelet deletes all slices of the node when it starts, and when the driver was away for 30 s.
"""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable
from typing import Final

from kubeletplugin.api_store import ApiStore
from kubeletplugin.changes import Changing, Clock, WritePause, repeat, waking
from kubeletplugin.discover.devices import NODE_DEVICE, SHARE_FIELDS, share_setting, shares_cores
from kubeletplugin.discover.health import HealthMonitor, HealthStatus, NodeFacts
from kubeletplugin.discover.own_node import NodeState, OwnNode
from kubeletplugin.files import lock_file, try_lock
from kubeletplugin.metrics import PluginMetrics
from kubeletplugin.ports import WAITS, JsonObject, version_of
from kubeletplugin.prepare.usage import Holds
from kubeletplugin.publish.offer import DEVICES, NODE, KubeletGate, OtherDriver, needs_taints, offer
from kubeletplugin.publish.slices import (
    PARTITION_TYPE,
    ClusterFeatures,
    NodeDevices,
    Withholding,
    desired_slices,
    driver_version,
    dropped_fields,
    plan_writes,
    without_times,
)
from kubeletplugin.settings import DriverSettings, Guard
from neuron import names
from neuron.known_faults import Component, Withheld, of, parse
from runtime.api_server import ApiServerError
from runtime.retries import RETRY, Once
from runtime.watching import DELETED

LOCK_NAME: Final = "publish.lock"

_COUNTER_FIELDS: Final = ("sharedCounters", "consumesCounters")
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class _SentSlice:
    """A slice as it was sent, as the API server stored it, and the paths of the fields that it dropped."""

    sent: JsonObject
    stored: JsonObject
    dropped: tuple[str, ...]


class SliceNote(Changing):
    """What the driver says about its node in an annotation of the first slice, and waiting for changes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def take(self, text: str) -> None:
        """Say something else; empty for nothing."""
        if text != self.text:
            self.text = text
            self._count_change()


@dataclasses.dataclass(frozen=True, slots=True)
class NodeSources:
    """The sources of what is published.

    Attributes:
        holds: devices that new claims must not get.
        sockets: reads the registration sockets of our driver's name that others serve. Blocks.
        note: what the driver says about the node.
    """

    monitor: HealthMonitor
    own: OwnNode
    gate: KubeletGate
    holds: Holds = dataclasses.field(default_factory=Holds)
    sockets: Callable[[], Collection[str]] = tuple
    note: SliceNote = dataclasses.field(default_factory=SliceNote)


class Publisher:
    """Publishes the slices of one node until cancelled."""

    def __init__(
        self,
        store: ApiStore,
        node: NodeSources,
        settings: DriverSettings,
        *,
        clock: Clock,
        metrics: PluginMetrics,
        jitter: Callable[[float, float], float],
    ) -> None:
        """`jitter(a, b)` returns a random number between both: the nodes' sessions are spread over time."""
        self._store = store
        self._monitor = node.monitor
        self._own = node.own
        self._gate = node.gate
        self._holds = node.holds
        self._sockets = node.sockets
        self._note = node.note
        self.other: Final = OtherDriver(clock)
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._jitter = jitter
        self._kept_features = ClusterFeatures()
        self._withholding = Withholding()
        self._keeps_taints: bool | None = None
        self._known: dict[str, JsonObject] = {}
        self._kept: dict[str, _SentSlice] = {}
        self._generation = 0
        self._wake = asyncio.Event()
        self.offered: frozenset[str] = frozenset()
        """What the slices offer: `devices`, the whole `node`, both or nothing."""
        self._deleted = False
        self._pause = WritePause(clock)
        self._told: Once[str] = Once()

    async def run(self) -> None:
        """Publish until cancelled. Errors are logged and retried: prepared pods run without the API server."""
        with lock_file(self._settings.state / LOCK_NAME) as lock:
            # During an upgrade, two instances would overwrite each other's slices.
            while not try_lock(lock):
                self._tell("another instance publishes; waiting for its end")
                await self._clock.sleep(WAITS.publish_lock)
            await self._gate.first()
            # Until the held devices are known, every device would be published as held.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WAITS.restored):
                    while self._holds.restoring:
                        await self._holds.wait(self._holds.generation, WAITS.restored)
            # The end of a long watch is normal.
            await repeat(self._session, self._failed, RETRY, WAITS.quiet, self._clock, self._jitter)

    async def _failed(self, error: ApiServerError) -> None:
        self._metrics.failed("publish")
        _log.warning("publishing failed", extra={"error": str(error)})

    async def withdraw(self) -> None:
        """Delete the slices when the last instance on the node ends: no driver could prepare new allocations.

        `run` must have ended. Another instance that publishes keeps its slices, and so does another driver.
        """
        with lock_file(self._settings.state / LOCK_NAME) as lock:
            if not try_lock(lock):
                return
            try:
                async with asyncio.timeout(WAITS.withdrawn):
                    listed, _ = await self._store.slices()
                    found = {body["metadata"]["name"] for body in listed}
                    if self._own.state is not None and self.other.evidence:
                        found -= await self._foreign(self._own.state.facts.name, found)
                    for name in sorted(found):
                        await self._store.delete(name)
                _log.info("slices withdrawn", extra={"slices": len(found)})
            except (ApiServerError, TimeoutError) as error:
                _log.warning("slices cannot be withdrawn; the kubelet deletes them", extra={"error": str(error)})

    async def _session(self) -> None:
        await self._own.read()
        self._keeps_taints = None
        self._withholding = Withholding(await self._store.kubernetes(), self._settings.gates)
        slices, resource_version = await self._store.slices()
        self._known = {body["metadata"]["name"]: body for body in slices}
        watcher = asyncio.create_task(self._watch(resource_version))
        try:
            async with waking(self._wake, WAITS.quiet, self._monitor, self._own, self._holds, self._gate, self._note):
                while not watcher.done():
                    self._wake.clear()
                    await self._reconcile()
                    self._metrics.worked("publish")
                    waiter = asyncio.create_task(self._wake.wait())
                    timeout = WAITS.other_look if self.other.evidence else None
                    await asyncio.wait({watcher, waiter}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                    waiter.cancel()
                await watcher
        finally:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)

    async def _watch(self, resource_version: str) -> None:
        async for kind, body in self._store.watch(resource_version):
            name = body["metadata"]["name"]
            known = self._known.get(name)
            if known is not None and version_of(body) < version_of(known):
                continue  # older than the last write of this process
            if kind == DELETED:
                self._known.pop(name, None)
                self._deleted = self._deleted or known is not None
            else:
                self._known[name] = body
            self._wake.set()

    async def _reconcile(self) -> None:
        if self._deleted:
            self._deleted = False
            await self._gate.after_deletion()
            # Slices are also deleted with their Node. If it registers again, it has another UID.
            await self._own.read()
        state = self._own.state or await self._own.read()
        snapshot = self._monitor.snapshot
        for status in HealthStatus:
            count = sum(device.status is status for device in snapshot.health)
            self._metrics.devices.labels(status.name.lower()).set(count)
        if not snapshot.hardware.devices:
            self._tell("the node shows no Neuron device: check that the Neuron kernel driver is loaded")
        elif snapshot.instance is None:
            self._tell(
                "the instance type is not known, so nothing is published: DMI names none, and the node has no label "
                "node.kubernetes.io/instance-type"
            )
        foreign = await self._foreign(state.facts.name, self._known)
        if self.other.evidence or self._gate.lost:
            # Not even an empty slice: its generation would hide those of the other driver.
            for name in sorted(self._known.keys() - foreign):
                await self._delete(name)
            self._metrics.slices_published.set(0)
            self.offered = frozenset()
        elif await self._write(state):
            if foreign:
                self.other.removed()
            await self._pause.sleep()

    async def _foreign(self, node: str, slices: Iterable[str]) -> frozenset[str]:
        """The names of slices that are not ours; `self.other` knows then whether another driver serves them."""
        return self.other.look(node, slices, await asyncio.to_thread(self._sockets))

    async def _delete(self, name: str) -> None:
        self._known.pop(name, None)
        await self._store.delete(name)
        self._metrics.slice_writes.labels("delete").inc()

    async def _offer(self, state: NodeState) -> NodeDevices:
        settings, held = self._settings, self._holds.indices
        if self._holds.restoring:
            held = frozenset(device.index for device in self._monitor.snapshot.hardware.devices)
        if needs_taints(state, settings, held) and self._keeps_taints is None:
            # Before the first write: devices whose taint is dropped would be allocated at once.
            self._keeps_taints = await self._store.keeps_taints()
        guarded = state.legacy and settings.device_plugin_guard is Guard.TAINT
        for concerns, what, until in (
            (guarded, "a device plugin offers the devices", "no device is published until the plugin has gone"),
            (
                held,
                "devices are or may be in use without a claim",
                "these devices are not published until they are free",
            ),
            (state.cordon, "devices are cordoned", "these devices are not published until they are uncordoned"),
        ):
            if self._keeps_taints is False and concerns:
                self._tell(f"{what}, and the API server does not keep device taints: {until}")
        keeps = bool(self._keeps_taints)
        snapshot = self._monitor.snapshot
        if self._withholds(state.facts):
            snapshot = dataclasses.replace(snapshot, instance=None)
        found, problem = offer(snapshot, state, settings, keeps_taints=keeps, held=held)
        if problem:
            self._tell(problem)
        return found

    async def _write(self, state: NodeState) -> bool:
        facts, kept = state.facts, self._kept_features
        features = self._withholding.features(kept)
        found = await self._offer(state)
        setting = share_setting(self._settings.share_cores, state.share_cores)
        if state.share_cores not in (None, setting):
            self._tell(
                f"the Node's label {names.LABEL_SHARE_CORES} has the value {state.share_cores!r}, which is not on or "
                f"off: the setting ({setting}) is in force"
            )
        found = dataclasses.replace(found, shares_cores=shares_cores(setting, found.instance))
        for reason in self._withholding.reasons(found, kept):
            self._tell(reason)
        found = dataclasses.replace(
            found, shares_cores=found.shares_cores and self._withholding.shares(found, features)
        )
        if found.shares_cores and features.shares and self._told.first("shares"):
            _log.info(
                "claims share devices; allocationMode: All allocates those that are free, and never waits for all"
            )
        desired = desired_slices(facts, found, driver_version(), features, self._note.text)
        writes = plan_writes(facts, desired, {n: self._as_sent(b) for n, b in self._known.items()}, self._generation)
        for name in writes.delete:
            await self._delete(name)
        for operation, call, bodies in (
            ("update", self._store.update, writes.update),
            ("create", self._store.create, writes.create),
        ):
            for body in bodies:
                self._remember(body, await call(body))
                self._metrics.slice_writes.labels(operation).inc()
                if self._kept_features is not kept:
                    return True  # the other slices have to be computed for the new features
        if writes:
            extra = {"slices": len(desired), "generation": self._generation}
            _log.info("slices published", extra=extra)
        self._metrics.slices_published.set(len(self._known))
        devices = (device["name"] for piece in desired for device in piece.content.get("devices", ()))
        self.offered = frozenset(NODE if name == NODE_DEVICE else DEVICES for name in devices)
        if found.is_ultraserver:
            for label, kinds in ((DEVICES, {DEVICES}), (NODE, {NODE}), ("both", {DEVICES, NODE})):
                self._metrics.ultraserver_publish.labels(label).set(self.offered == kinds)
        return bool(writes)

    def _remember(self, sent: JsonObject, stored: JsonObject) -> None:
        name = stored["metadata"]["name"]
        self._known[name] = stored
        lost = dropped_fields(sent["spec"], stored["spec"])
        # Only the summary of a ResourcePoolStatusRequest reads it, and its feature is off by default.
        dropped = tuple([path for path in lost if not path.endswith(PARTITION_TYPE)])
        self._kept[name] = _SentSlice(_content(sent), _content(stored), dropped)
        self._generation = max(self._generation, stored["spec"]["pool"]["generation"])
        self._metrics.dropped_fields.set(sum(len(kept.dropped) for kept in self._kept.values()))
        if not dropped:
            return
        fields = sorted({path.rpartition(".")[2] for path in dropped})
        self._tell(
            f"the API server does not keep {', '.join(fields)} of ResourceSlices: a feature of the cluster is "
            "disabled (DRAPartitionableDevices for counters, DRADeviceTaints for taints, DRAConsumableCapacity for "
            "allowMultipleAllocations and requestPolicy)"
        )
        if self._kept_features.counters and any(path.endswith(_COUNTER_FIELDS) for path in dropped):
            # Without counters the scheduler could allocate the whole node to one pod and its devices to others.
            self._tell(
                "an UltraServer node publishes its devices or the whole node, not both: nothing would keep them apart. "
                f"The setting --ultraserver-publish and the Node's label {names.LABEL_ULTRASERVER_PUBLISH} choose"
            )
            self._kept_features = dataclasses.replace(self._kept_features, counters=False)
            self._wake.set()
        if self._kept_features.shares and any(path.endswith(SHARE_FIELDS) for path in dropped):
            self._tell("claims cannot share the cores of a device: every claim gets whole devices")
            self._kept_features = dataclasses.replace(self._kept_features, shares=False)
            self._wake.set()

    def _as_sent(self, body: JsonObject) -> JsonObject:
        """A slice as it was sent, if it is still stored as it was then: dropped fields are not a difference."""
        kept = self._kept.get(body["metadata"]["name"])
        if kept is None or kept.stored != _content(body):
            return body
        return body | {"spec": kept.sent | {"pool": body["spec"]["pool"]}}

    def _withholds(self, facts: NodeFacts) -> bool:
        """Whether the kubelet has a known fault because of which no device is published."""
        faults = of(Component.KUBELET, facts.kubelet)
        known = next((each for each in faults if each.withheld is Withheld.DEVICES), None)
        self._metrics.faulty_kubelet.set(known is not None)
        number = parse(facts.kubelet)
        if known is None or number is None:
            return False
        message = f"kubelet {facts.kubelet} of node {facts.name} {known.effect} ({known.issue})"
        withheld = self._settings.faulty_kubelet == "Withhold"
        effect = "no device is published" if withheld else "devices are published"
        self._tell(f"{message}: {effect}; upgrade it to {known.fixed_after(number)} or later")
        return withheld

    def _tell(self, message: str) -> None:
        if self._told.first(message):
            self._metrics.background_errors.labels("publish").inc()
            _log.warning("publishing is limited", extra={"reason": message})


def _content(body: JsonObject) -> JsonObject:
    return without_times({key: value for key, value in body["spec"].items() if key != "pool"})
