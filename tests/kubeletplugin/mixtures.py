"""Random claims on one node: allocated by the model of the scheduler from real slices, prepared by the real driver.

A node's life is a sequence of steps: claims arrive and leave, pods are deleted by force, the driver restarts, dies at
any write, or finds its checkpoint damaged.
"""

import dataclasses
import functools
import itertools
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from kubeletplugin.discover import devices
from kubeletplugin.discover.health import NodeFacts
from kubeletplugin.prepare.cdi import SpecFiles
from kubeletplugin.prepare.decide import DeviceHeldError, NodeView, PrepareError, undecided
from kubeletplugin.prepare.preparer import DeviceAnswer, Preparer
from kubeletplugin.publish.slices import NodeDevices, desired_slices
from neuron.allocator.search import (
    AllocatorAlternative,
    AllocatorCapacity,
    AllocatorClaim,
    AllocatorConstraint,
    AllocatorDevice,
    AllocatorRequest,
    AllocatorResult,
)
from neuron.allocator.search import AllocatorNode as Model
from neuron.api.allocation import AllocatedClaim, read_allocation
from neuron.hardware import windows
from neuron.hardware.instances import InstanceType
from tests.kubeletplugin.fakes import BOOT, DRIVER, NODE, config, uid

CORES: Final = "neuroncores"
TYPES: Final = ("inf1.6xlarge", "inf2.48xlarge", "inf2.24xlarge", "trn2.3xlarge", "trn2u.48xlarge", "inf2.xlarge")


class DiedError(BaseException):
    """The process has died; nothing catches it."""


class MemoryFiles:
    """`DiskFiles` in memory, for many short lives.

    Attributes:
        dies_at: the step that changes a file at which the process dies; None: it lives.
    """

    def __init__(self) -> None:
        self.content: dict[Path, tuple[int, bytes]] = {}
        self.dies_at: int | None = None
        self._versions = itertools.count(1)

    def _step(self, half: Callable[[], None] = lambda: None) -> None:
        if self.dies_at is None:
            return
        self.dies_at -= 1
        if self.dies_at < 0:
            half()
            raise DiedError

    def read(self, path: Path) -> bytes:
        return self.content[path][1]

    def names(self, directory: Path) -> list[str]:
        return sorted(path.name for path in self.content if path.parent == directory)

    def write(self, path: Path, data: bytes) -> None:
        def put(content: bytes) -> None:
            self.content[path] = (next(self._versions), content)

        self._step(lambda: put(data[: len(data) // 2]))
        put(data)

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        self.content[target] = self.content.pop(source)

    def remove(self, path: Path) -> None:
        self._step()
        self.content.pop(path, None)

    def sync_directory(self, _directory: Path) -> None:
        self._step()

    def make_directory(self, directory: Path) -> None:
        pass

    def identity(self, path: Path) -> tuple[int, ...] | None:
        return (self.content[path][0],) if path in self.content else None


def model_of(view: NodeView, *, shared: bool) -> Model:
    """What the scheduler knows of a node: from the slices that the driver publishes."""
    found = NodeDevices(view.hardware, view.instance, shares_cores=shared)
    pieces = [piece.content for piece in desired_slices(NodeFacts(NODE, "uid"), found, "1.2.3")]
    counters = {
        name: int(counter["value"])
        for piece in pieces
        for counter_set in piece.get("sharedCounters", ())
        for name, counter in counter_set["counters"].items()
    }
    return Model([_device(body) for piece in pieces for body in piece.get("devices", ())], counters)


def _device(body: Mapping[str, Any]) -> AllocatorDevice:
    capacity = {}
    for name, entry in body.get("capacity", {}).items():
        valid = entry.get("requestPolicy", {}).get("validValues", ())
        if name == CORES:
            capacity[name] = AllocatorCapacity(int(entry["value"]), tuple(int(value) for value in valid))
    counters = {name: 1 for entry in body.get("consumesCounters", ()) for name in entry["counters"]}
    attributes = {
        name if "/" in name else f"{DRIVER}/{name}": next(iter(value.values()))
        for name, value in body["attributes"].items()
    }
    shared = body.get("allowMultipleAllocations", False)
    return AllocatorDevice(body["name"], attributes, shared, capacity, counters)


def _type_is(kind: str, device: AllocatorDevice) -> bool:
    return device.attributes[f"{DRIVER}/resourceType"] == kind


_IS_DEVICE: Final = functools.partial(_type_is, "neuron_device")
_IS_NODE: Final = functools.partial(_type_is, "neuron_node")


def random_claim(chance: random.Random, instance: InstanceType, *, shared: bool) -> AllocatorClaim:
    """A claim as conversion or a user may write it; not every one fits the node."""
    devices, cores = instance.devices or 1, instance.cores_per_device or 1
    part = {CORES: chance.choice([size for size in (1, 2, 4) if size < cores])} if shared else {}
    kinds = ["devices", "devices", "run"] + ["share"] * 6 * shared + ["two shares", "run and share"] * 2 * shared
    kind = chance.choice([*kinds, "all", "node", "looks"])
    match kind:
        case "devices":
            count = min(devices, chance.choice([1, 1, 2, 3, devices]))
            return AllocatorClaim((_request("r", count=count),))
        case "run" if instance.line is not None:
            return _run(instance.line, chance.randint(2, max(2, devices - 1)))
        case "share":
            return AllocatorClaim((_request("r", capacity=part),))
        case "two shares":
            tied = chance.random() < 0.5
            both = (_request("a", capacity=part), _request("b", capacity=part))
            return AllocatorClaim(
                both, (AllocatorConstraint(f"{DRIVER}/instanceType", frozenset({"a", "b"})),) if tied else ()
            )
        case "run and share" if instance.line is not None and devices > 3:
            return _run_and_share(instance.line, chance.randint(2, devices - 2), part)
        case "all":
            return AllocatorClaim((_request("r", count=None),))
        case "node":
            return AllocatorClaim((AllocatorRequest("r", (AllocatorAlternative("", _IS_NODE),)),))
        case "looks":
            return AllocatorClaim(
                (_request("r", count=None, capacity={CORES: 0} if shared else {}, admin_access=True),)
            )
    return AllocatorClaim((_request("r"),))


def _request(name: str, **fields: Any) -> AllocatorRequest:
    return AllocatorRequest(name, (AllocatorAlternative("", _IS_DEVICE, **fields),))


def _run(line: windows.Line, size: int) -> AllocatorClaim:
    if size >= line.devices:
        return AllocatorClaim((_request("r", count=line.devices),))
    alternatives, constraints = [], []
    for number, placement in enumerate(windows.placements(line, size)):
        ids = placement.ids
        alternatives.append(AllocatorAlternative(f"s{number}", functools.partial(_is_one_of, ids), count=size))
        if placement.attribute:
            constraints.append(AllocatorConstraint(placement.attribute, frozenset({f"r/s{number}"})))
    return AllocatorClaim((AllocatorRequest("r", tuple(alternatives)),), tuple(constraints))


def _is_one_of(ids: tuple[int, ...], device: AllocatorDevice) -> bool:
    return _IS_DEVICE(device) and (not ids or device.attributes[f"{DRIVER}/deviceId"] in ids)


def _run_and_share(line: windows.Line, size: int, part: Mapping[str, int]) -> AllocatorClaim:
    """`size` whole devices, and a share of a device at one of their ends."""
    published = windows.published_shifts(line)
    alternatives: list[AllocatorAlternative] = []
    constraints = []
    for outer, inner in itertools.islice(itertools.product(published.get(size + 1, ()), published.get(size, ())), 8):
        name = f"s{len(alternatives)}"
        alternatives.append(AllocatorAlternative(name, _IS_DEVICE, count=size))
        constraints.append(AllocatorConstraint(windows.attribute(size + 1, outer), frozenset({f"w/{name}", "c"})))
        constraints.append(AllocatorConstraint(windows.attribute(size, inner), frozenset({f"w/{name}"})))
    if not alternatives:
        return AllocatorClaim((_request("r", capacity=part),))
    return AllocatorClaim(
        (AllocatorRequest("w", tuple(alternatives)), _request("c", capacity=part)), tuple(constraints)
    )


@dataclasses.dataclass
class Pod:
    """A claim that the scheduler allocated.

    Attributes:
        results: what the model allocated.
        claim: as the driver reads it.
        deleted: whether the scheduler counts its devices as free, while the driver has not unprepared them.
        answers: what the kubelet was told; None while preparation is refused.
        refused: why it is refused for good.
    """

    results: tuple[AllocatorResult, ...]
    claim: AllocatedClaim
    deleted: bool = False
    answers: tuple[DeviceAnswer, ...] | None = None
    refused: str = ""


class Life:
    """One node, and everything that happens on it.

    Attributes:
        steps: how many things happened.
    """

    def __init__(self, seed: int, views: Mapping[str, NodeView], state_dir: Path) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - a test
        self.name = self.chance.choice(TYPES)
        self.view: Final = views[self.name]
        assert self.view.instance is not None
        self.instance: Final = self.view.instance
        self.shared = self.chance.random() < 0.85
        self.model = model_of(self.view, shared=self.shared)
        self.files = MemoryFiles()
        self.state_dir, self.cdi_dir = state_dir, state_dir / "cdi"
        self.pods: dict[str, Pod] = {}
        self.steps = 0
        self._numbers = itertools.count(seed * 1000)
        self.preparer = self._start()
        self.preparer.complete([], [], self.view)  # nothing is prepared

    def _start(self) -> Preparer:
        specs = SpecFiles(self.files, self.cdi_dir, BOOT)
        preparer = Preparer(self.files, state_dir=self.state_dir, specs=specs, boot_id=BOOT)
        preparer.recover()
        return preparer

    def step(self) -> None:
        """One random thing."""
        self.steps += 1
        acts = (
            [self.arrive] * 6 + [self.leave] * 3 + [self.delete_by_force, self.end_deleted, self.restart, self.damage]
        )
        self.chance.choice(acts)()
        for pod in self.pods.values():
            if pod.answers is None and not pod.refused:
                self._prepare(pod)

    def arrive(self) -> None:
        """A pod comes; its claim is allocated if it fits."""
        wanted = random_claim(self.chance, self.instance, shared=self.shared)
        results = self.model.allocate(wanted)
        if results is None:
            return
        number = next(self._numbers)
        pod = Pod(results, self._as_read(number, wanted, results))
        self.pods[pod.claim.uid] = pod
        self._prepare(pod)

    def _as_read(self, number: int, wanted: AllocatorClaim, results: tuple[AllocatorResult, ...]) -> AllocatedClaim:
        settings = []
        if self.instance.configures_logical_neuron_core and self.chance.random() < 0.5:
            requests = (self.chance.choice(wanted.requests).name,) if self.chance.random() < 0.2 else ()
            settings.append(config("NeuronConfig", requests=requests, logicalNeuronCore=self.chance.choice([1, 2])))
        body = {
            "metadata": {"namespace": "ns", "name": f"claim-{number}", "uid": uid(number)},
            "spec": {
                "devices": {
                    "constraints": [
                        {"requests": sorted(each.requests), "matchAttribute": each.attribute}
                        for each in wanted.constraints
                    ]
                }
            },
            "status": {
                "allocation": {"devices": {"results": [self._result(each) for each in results], "config": settings}}
            },
        }
        return read_allocation(body, DRIVER, NODE, uid(number))

    def _result(self, result: AllocatorResult) -> dict[str, Any]:
        body: dict[str, Any] = {"request": result.request, "driver": DRIVER, "pool": NODE, "device": result.device}
        if result.admin_access:
            body["adminAccess"] = True
        if result.consumed:
            body["shareID"] = f"{self.chance.getrandbits(64):x}"
            body["consumedCapacity"] = {name: str(amount) for name, amount in result.consumed.items()}
        return body

    def _prepare(self, pod: Pod) -> None:
        before = pod.answers
        try:
            pod.answers = self._maybe_dies(lambda: self.preparer.prepare(pod.claim, self.view))
        except DeviceHeldError as error:
            if not any(other.deleted for other in self.pods.values()):
                raise AssertionError("no pod that was deleted by force holds it") from error
        except PrepareError as error:
            if "logicalNeuronCore" not in str(error):
                raise AssertionError("only the size of logical cores can be wrong") from error
            pod.refused = str(error)
        assert before in (None, pod.answers), "the answer has changed"

    def _maybe_dies(self, act: Callable[[], Any]) -> Any:
        """Do something; one time in five the process dies at some write, and the kubelet asks the next one again."""
        if self.chance.random() < 0.2:
            self.files.dies_at = self.chance.randrange(8)
            try:
                return act()
            except DiedError:
                self.files.dies_at = None
                self.preparer = self._start()
            finally:
                self.files.dies_at = None
        return act()

    def _some(self, *, deleted: bool) -> Pod | None:
        found = [pod for pod in self.pods.values() if pod.deleted is deleted]
        return self.chance.choice(found) if found else None

    def leave(self) -> None:
        """A pod ends as usual: unprepared first, then no longer allocated."""
        pod = self._some(deleted=False)
        if pod is not None:
            self._unprepare(pod)
            self.model.release(pod.results)

    def _unprepare(self, pod: Pod) -> None:
        self._maybe_dies(lambda: self.preparer.unprepare(pod.claim.uid))
        del self.pods[pod.claim.uid]

    def delete_by_force(self) -> None:
        """The API server forgets a pod that still runs."""
        pod = self._some(deleted=False)
        if pod is not None and pod.answers is not None:
            self.model.release(pod.results)
            pod.deleted = True

    def end_deleted(self) -> None:
        """A pod that was deleted by force has stopped."""
        pod = self._some(deleted=True)
        if pod is not None:
            self._unprepare(pod)

    def restart(self) -> None:
        """A new process, and the kubelet asks again for what runs."""
        self.preparer = self._start()
        for pod in self.pods.values():
            if pod.answers is not None:
                self._prepare(pod)

    def damage(self) -> None:
        """The checkpoint is lost, and rebuilt from the CDI specs and the API server."""
        path = self.state_dir / "checkpoint.json"
        if path not in self.files.content:
            return
        before = self.preparer.checkpoint()
        self.files.write(path, b"garbage")
        self.preparer = self._start()
        running = [pod.claim for pod in self.pods.values() if pod.answers is not None]
        told = [undecided(claim, self.view) for claim in running]
        assert self.preparer.complete(told, running, self.view).errors == ()
        claims = self.preparer.checkpoint().claims
        asked = {key: dataclasses.replace(claim, asked=before.claims[key].asked) for key, claim in claims.items()}
        assert asked == before.claims


def physical_cores(life: Life, index: int) -> int:
    found = devices.physical_cores(life.view.hardware, life.instance, index)
    assert found is not None
    return found
