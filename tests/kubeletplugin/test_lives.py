"""Random lives of a node: pods come, end, hang and are deleted by force, kubelet and driver start again, state is lost.

The cache of the kubelet, the claims of the API server, and what containers really use are models. The driver is real.
"""

import asyncio
import dataclasses
import itertools
import json
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.discover.processes import ClaimFile, ProcessUse, read_name
from kubeletplugin.metrics import PluginMetrics
from kubeletplugin.ports import JsonObject, UsageUnknownError
from kubeletplugin.prepare.cdi import MetadataFiles, SpecFiles, parse_id, read_visible_cores
from kubeletplugin.prepare.checkpoint import PreparedDevice, uid_before
from kubeletplugin.prepare.decide import NodeView
from kubeletplugin.prepare.driver import ClaimReference, Driver, PrepareResult
from kubeletplugin.prepare.preparer import DeviceAnswer, Preparer
from kubeletplugin.prepare.sweep import Sweeper
from kubeletplugin.prepare.usage import UsedDevice
from tests.kubeletplugin.fakes import BOOT, NODE, FakeApi, FakeClock, Node, claim_object, devices, share, spec_name, uid
from tests.kubeletplugin.mixtures import DiedError, MemoryFiles

DEVICES, CORES = 4, 4
"""Of an inf1.6xlarge."""
LIVES, STEPS, PARTS = 40, 50, 3

Cores = frozenset[tuple[int, int]]
"""Device and physical core."""


class StraightDriver(Driver):
    """Has no thread, so that a seed gives the same life each time."""

    async def in_state(self, call: Callable[[], Any]) -> Any:
        return call()


@dataclasses.dataclass
class Pod:
    """A pod with one claim; `uses` is what its container has, of the claim with the UID `of`.

    Attributes:
        init: whether only an init container uses the claim.
        files: names of the files that its container has mounted.
        variables: with which it was started.
    """

    name: str
    claim: int
    init: bool = False
    exists: bool = True
    of: str = ""
    uses: Cores = frozenset()
    files: frozenset[ClaimFile] = frozenset()
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Cached:
    """What the kubelet knows of a claim; after its restart it has no answers, and asks again."""

    pods: set[str] = dataclasses.field(default_factory=set)
    answers: tuple[DeviceAnswer, ...] | None = None
    prepared: bool = False


def held_by(device: PreparedDevice) -> Cores:
    """Cores that no other claim gets."""
    part = device.cores if device.share is not None and device.share.certain else None
    return frozenset(itertools.product(device.indices, range(CORES) if part is None else part))


class Life:
    def __init__(self, seed: int, view: NodeView, root: Path) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - a test
        self.view, self.root, self.shared = view, root, self.chance.random() < 0.6
        self.api, self.files = FakeApi(), MemoryFiles()
        self.pods: dict[str, Pod] = {}
        self.hung: list[Pod] = []
        """Their containers run; kubelet and API server have forgotten them."""
        self.cache: dict[int, Cached] = {}
        self.numbers = itertools.count(1)
        self.started = 0
        self.start()
        self.preparer.complete([], [], view)  # nothing is prepared

    def start(self) -> None:
        self.files.dies_at = None
        specs = SpecFiles(self.files, self.root / "cdi", BOOT, metadata=MetadataFiles(self.files, self.root))
        self.preparer = Preparer(self.files, state_dir=self.root, specs=specs, boot_id=BOOT)
        self.preparer.recover()
        metrics, clock = PluginMetrics(), FakeClock()
        self.driver = StraightDriver(
            self.preparer, self.api, lambda: self.view, NODE, self, clock=clock, metrics=metrics
        )
        self.driver.close()
        self.sweeper = Sweeper(self.driver, 300.0, clock=clock, metrics=metrics)
        # Of another instance, during an upgrade: it has its own memory of what it missed.
        self.other = Sweeper(self.driver, 300.0, clock=clock, metrics=metrics)

    async def listed(self) -> tuple[UsedDevice, ...]:
        """The kubelet lists neither pods that it is stopping nor init containers."""
        found = []
        for pod in self.pods.values():
            cached = self.cache.get(pod.claim, Cached())
            for each in (cached.answers or ()) if pod.exists and not pod.init and pod.name in cached.pods else ():
                of = parse_id(each.cdi_device_ids[0])
                assert of is not None
                name = f"claim-{pod.claim}"
                found.append(UsedDevice(pod.name, "ns", name, of.uid, of.request, of.device, NODE, each.share_id))
        return tuple(found)

    async def processes(self, *, environment: bool = False) -> tuple[ProcessUse, ...]:
        """Containers name their claims. Sometimes the look takes too long."""
        await asyncio.sleep(0)
        if self.chance.random() < 0.05:
            raise UsageUnknownError("too slow")
        return tuple(
            ProcessUse(
                7,
                "train",
                pod.name,
                pod.files,
                frozenset(index for index, _ in pod.uses),
                environment=pod.variables if environment else {},
            )
            for pod in self.running()
        )

    def running(self) -> list[Pod]:
        """The pods with a container."""
        return [pod for pod in (*self.pods.values(), *self.hung) if pod.uses]

    def claim(self, number: int) -> JsonObject | None:
        return self.api.claim_objects.get(f"ns/claim-{number}")

    def free(self) -> dict[int, int]:
        """Cores that the scheduler takes for free, by device."""
        left = dict.fromkeys(range(DEVICES), CORES)
        for body in self.api.claim_objects.values():
            for each in body["status"].get("allocation", {}).get("devices", {}).get("results", ()):
                left[int(each["device"][-1])] -= int(each.get("consumedCapacity", {}).get("neuroncores", CORES))
        return left

    def allocate(self, number: int) -> bool:
        size = self.chance.choice((1, 2, CORES) if self.shared else (CORES,))
        fitting = [index for index, cores in self.free().items() if cores >= size]
        if fitting:
            some = share(fitting[0], size, share_id=f"s{next(self.numbers)}")
            body = claim_object(number, *([some] if self.shared else devices(fitting[0])))
            body["status"]["reservedFor"] = []
            self.api.add_claim(body)
        return bool(fitting)

    def unreserve(self, pod: Pod) -> None:
        body = self.claim(pod.claim)
        if body is None or not body["status"]:
            return
        body["status"]["reservedFor"] = [each for each in body["status"]["reservedFor"] if each["uid"] != pod.name]
        if not body["status"]["reservedFor"]:
            # The controller deallocates it; the claim of a template is deleted.
            body["status"] = {}
            if self.chance.random() < 0.5:
                self.api.remove_claim(pod.claim)

    async def run_pod(self, pod: Pod) -> None:
        body = self.claim(pod.claim)
        if pod.name not in self.pods or not pod.exists or body is None:
            return
        if all(each["uid"] != pod.name for each in body["status"].get("reservedFor", ())):
            return
        cached = self.cache.setdefault(pod.claim, Cached())
        cached.pods.add(pod.name)
        asked = not cached.prepared
        if asked:
            reference = ClaimReference("ns", f"claim-{pod.claim}", uid(pod.claim))
            result = await self.ask(self.driver.prepare([reference]), pod)
            if result is None:
                return
            assert "unexpectedly" not in result.error
            if result.error:
                return
            cached.answers, cached.prepared = result.devices, True
        if not pod.uses:
            pod.of, pod.uses = uid(pod.claim), self.start_container(pod, cached.answers or (), asked=asked)
            self.started += bool(pod.uses)

    def start_container(self, pod: Pod, answers: Iterable[DeviceAnswer], *, asked: bool) -> Cores:
        """What the container runtime and the Neuron runtime make of the claim's CDI spec; none if it has another."""
        path = self.root / "cdi" / spec_name(pod.claim)
        if not asked and self.files.identity(path) is None:
            return frozenset()  # a sweep has released it
        spec = json.loads(self.files.read(path))
        if not {each for answer in answers for each in answer.cdi_device_ids} <= {
            f"{spec['kind']}={each['name']}" for each in spec["devices"]
        }:
            assert not asked
            return frozenset()  # its variables were lost
        edits = [each["containerEdits"] for each in spec["devices"]]
        [index] = {int(each["path"][-1]) for edit in edits for each in edit.get("deviceNodes", ())}
        env = dict(each.split("=") for edit in edits for each in edit.get("env", ()))
        mounts = [Path(each["hostPath"]) for edit in edits for each in edit.get("mounts", ())]
        assert all(self.files.identity(each) is not None for each in mounts)
        pod.files = frozenset(file for each in mounts if (file := read_name(each.name)) is not None)
        assert {file.uid for file in pod.files} == {uid(pod.claim)}, "a container names its claim"
        pod.variables = env
        visible = env.get("NEURON_RT_VISIBLE_CORES", f"{index * CORES}-{index * CORES + CORES - 1}")
        return frozenset(divmod(core, CORES) for core in read_visible_cores(visible))

    async def stop_pod(self, pod: Pod, *, hangs: bool = False) -> None:
        """The containers have ended, unless the runtime hangs; the last pod of a claim has it unprepared."""
        if not hangs:
            pod.uses = frozenset()
        cached = self.cache.get(pod.claim, Cached())
        if cached.pods == {pod.name}:
            reference = ClaimReference("ns", f"claim-{pod.claim}", uid(pod.claim))
            result = await self.ask(self.driver.unprepare([reference]), pod)
            if result is None:
                return
            assert result.error == ""
            del self.cache[pod.claim]
        cached.pods.discard(pod.name)
        self.pods.pop(pod.name, None)
        if hangs:
            self.hung.append(pod)
        if pod.exists:
            self.unreserve(pod)

    async def ask(self, call: Awaitable[dict[str, PrepareResult]], pod: Pod) -> PrepareResult | None:
        """A call of the kubelet; None if the driver dies in it. The next process starts, and the kubelet asks later."""
        try:
            result = (await call)[uid(pod.claim)]
        except DiedError:
            result = None
        if self.files.dies_at is not None and self.files.dies_at < 0:
            self.start()
            return None
        return result

    def some(self, *, exists: bool) -> list[Pod]:
        found = [pod for pod in self.pods.values() if pod.exists is exists]
        return [self.chance.choice(found)] if found else []

    async def arrive(self) -> None:
        known = [int(name.rpartition("-")[2]) for name in self.api.claim_objects]
        number = self.chance.choice(known) if known and self.chance.random() < 0.4 else next(self.numbers)
        body = self.claim(number)
        if not (body and body["status"]):
            # Else the kubelet would give its pods the devices of the old allocation.
            asks = number not in self.cache or (body is not None and not self.cache[number].prepared)
            if not asks or not self.allocate(number):
                return
        pod = Pod(f"pod-{next(self.numbers)}", number, init=self.chance.random() < 0.2)
        body = self.claim(number)
        assert body is not None
        body["status"]["reservedFor"].append({"resource": "pods", "name": pod.name, "uid": pod.name})
        self.pods[pod.name] = pod
        await self.run_pod(pod)

    async def retry(self) -> None:
        for pod in list(self.pods.values()):
            await self.run_pod(pod)

    async def end(self) -> None:
        for pod in self.some(exists=True):
            await self.stop_pod(pod)

    async def crash(self) -> None:
        """A container ends; the kubelet starts it again by what it knows, at once or when it next looks."""
        for pod in self.some(exists=True):
            if pod.uses and pod.name in self.cache.get(pod.claim, Cached()).pods:
                pod.uses = frozenset()
                if self.chance.random() < 0.5:
                    pod.uses = self.start_container(pod, self.cache[pod.claim].answers or (), asked=False)

    async def delete_by_force(self) -> None:
        for pod in self.some(exists=True):
            pod.exists = False
            self.unreserve(pod)

    async def stop(self) -> None:
        for pod in self.some(exists=False):
            await self.stop_pod(pod)

    async def hang(self) -> None:
        """The kubelet gives up a pod that was deleted by force, and has its claim unprepared while it runs."""
        for pod in self.some(exists=False):
            await self.stop_pod(pod, hangs=True)

    async def end_hung(self) -> None:
        if self.hung:
            self.hung.pop(self.chance.randrange(len(self.hung)))

    async def sweep_twice(self) -> None:
        """Two instances at once, and the kubelet between them."""
        sweeps = asyncio.gather(self.sweeper.sweep(), self.other.sweep(), self.retry(), return_exceptions=True)
        if any(isinstance(each, DiedError) for each in await sweeps):
            self.start()

    async def sweep(self) -> None:
        try:
            complete = await self.sweeper.sweep()
        except DiedError:
            self.start()
            return
        if complete:
            free, held = self.free(), self.driver.holds.indices
            for pod in self.running():
                for index, _ in pod.uses:
                    assert free[index] < CORES or index in held, f"{pod} uses a device that is published as free"

    async def delete_claim(self) -> None:
        """An administrator removes the finalizer of a claim that is in use, and deletes it."""
        for pod in self.some(exists=True):
            self.api.claim_objects.pop(f"ns/claim-{pod.claim}", None)

    async def restart_kubelet(self) -> None:
        for cached in self.cache.values():
            cached.prepared = False
        await self.retry()

    async def lose(self) -> None:
        """The checkpoint is lost, and the spec of a claim that the kubelet lists on a device; a sweep follows."""
        self.files.dies_at = None
        self.files.content.pop(self.root / "checkpoint.json", None)
        if self.chance.random() < 0.5:
            await self.lose_all_specs()
            return
        ending = {pod.of for pod in self.pods.values() if not pod.exists}
        by_device = {each.device: each.uid for each in await self.listed() if each.uid not in ending}
        for of in by_device.values():
            if self.chance.random() < 0.5:
                self.files.content.pop(self.root / "cdi" / f"neuron.aws.com-claim_{of}.json", None)
        await self.arrive()
        await self.sweep()

    async def lose_all_specs(self) -> None:
        """The containers that run tell their cores: a container that starts again gets the same."""
        for path in [each for each in self.files.content if each.parent == self.root / "cdi"]:
            del self.files.content[path]
        running = [pod for pod in self.pods.values() if pod.uses and pod.exists]
        await self.sweep()
        if self.preparer.checkpoint().incomplete or self.driver.holds.restoring:
            return
        for pod in running:
            body = self.claim(pod.claim)
            if body is not None and body["status"] and pod.of in self.preparer.checkpoint().claims:
                again = dataclasses.replace(pod, uses=frozenset())
                uses = self.start_container(again, self.cache[pod.claim].answers or (), asked=False)
                assert uses in (pod.uses, frozenset()), f"{pod} starts again with {uses}"

    async def step(self) -> None:
        often = [self.arrive] * 8 + [self.sweep, self.delete_by_force] * 3
        seldom = [self.retry, self.end, self.stop, self.delete_claim, self.lose, self.end_hung, self.sweep_twice]
        seldom += [self.hang] * 3 + [self.crash] * 2
        act = self.chance.choice([*often, *seldom, self.restart_kubelet])
        if self.chance.random() < 0.1:
            self.files.dies_at = self.chance.randrange(8)
        await act()
        self.files.dies_at = None
        if self.chance.random() < 0.05:
            self.start()
        self.check()

    def check(self) -> None:
        owners: dict[tuple[int, int], str] = {}
        for pod in self.running():
            # A claim that was unprepared has new containers only when the earlier ones have ended.
            owner = f"{pod.of} {sorted(file.number for file in pod.files)}"
            for core in pod.uses:
                assert owners.setdefault(core, owner) == owner, f"{core} has two owners"
        checkpoint = self.preparer.checkpoint()
        for pod in () if checkpoint.incomplete else self.running():
            mine = [checkpoint.claims[key] for key in (pod.of, uid_before(pod.of)) if key in checkpoint.claims]
            held = {core for each in mine for device in each.devices for core in held_by(device)}
            assert pod.uses <= held, f"the driver forgot {pod}"

    async def live(self) -> None:
        for _ in range(STEPS):
            await self.step()
        for pod in list(self.pods.values()):
            await self.stop_pod(pod)
        self.hung.clear()
        self.chance.random = lambda: 1.0  # type: ignore[method-assign]  # no look fails any more
        for _ in range(3):
            await self.sweep()
        assert (self.pods, self.preparer.checkpoint().claims, self.driver.holds.claims) == ({}, {}, {})
        assert self.files.names(self.root / "cdi") == []


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_given_twice_forgotten_or_kept(tmp_path: Path, part: int) -> None:
    view, started = Node(tmp_path / "node", "inf1.6xlarge").view(), 0
    for seed in range(part * LIVES, (part + 1) * LIVES):
        life = Life(seed, view, tmp_path)
        try:
            asyncio.run(life.live())
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        started += life.started
    assert started > 3 * LIVES
