"""The world of the plugin, in memory or in a directory, and nothing of its own logic."""

import asyncio
import atexit
import contextlib
import copy
import dataclasses
import functools
import itertools
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kubeletplugin.discover import emulate
from kubeletplugin.discover.health import node_facts
from kubeletplugin.discover.processes import ProcessUse
from kubeletplugin.discover.sysfs import NodeHardware, UltraServer, discover, read_ultraserver
from kubeletplugin.files import DiskFiles
from kubeletplugin.ports import JsonObject
from kubeletplugin.prepare import cdi
from kubeletplugin.prepare.cdi import MetadataFiles
from kubeletplugin.prepare.checkpoint import FILE_NAME, Checkpoint, PreparedClaim, PreparedDevice, encode
from kubeletplugin.prepare.decide import NodeView, undecided
from kubeletplugin.prepare.preparer import Preparer
from kubeletplugin.prepare.usage import UsedDevice
from kubeletplugin.publish.slices import published_attributes
from neuron.api.allocation import AllocatedClaim, read_allocation
from neuron.api.nodes import read_node
from neuron.hardware.instances import Catalogue
from runtime.api_server import ApiServerError, StatusError

NODE = "node-1"
DRIVER = "neuron.aws.com"
_SHARES = itertools.count(1)
BOOT = "11111111-2222-4333-8444-555555555555"


def uid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


def prepared_claim(
    number: int, *held: PreparedDevice, environment: dict[str, dict[str, str]] | None = None
) -> PreparedClaim:
    """A claim as the checkpoint has it, with devices."""
    return PreparedClaim(uid(number), "ns", f"claim-{number}", "digest", held, environment or {})


class FakeClock:
    """Time that passes only while a task sleeps."""

    def __init__(self) -> None:
        self.time = 1_000_000.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
        await asyncio.sleep(0)


async def until(done: Callable[[], object]) -> None:
    """Let everything else work until something holds."""
    async with asyncio.timeout(60):
        while not done():  # noqa: ASYNC110 - what is waited for does not know that it is
            await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def working(*parts: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run parts of the driver beside a test; a part that ends early is an error."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        yield
        assert not any(task.done() for task in tasks), tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def node_object(labels: Mapping[str, str] | None = None, **allocatable: str) -> JsonObject:
    """The node; keywords are allocatable legacy resources without their domain."""
    resources = {f"aws.amazon.com/{name}": amount for name, amount in allocatable.items()}
    metadata = {"name": NODE, "uid": "node-uid", "labels": dict(labels or {})}
    return {"metadata": metadata, "status": {"allocatable": {"cpu": "8", **resources}}}


def result(device: str, request: str = "n0", **fields: Any) -> JsonObject:
    return {"request": request, "driver": DRIVER, "pool": NODE, "device": device, **fields}


def share(index: int, cores: int, request: str = "n0", share_id: str = "", **fields: Any) -> JsonObject:
    """A result for a device that several claims share; by default its share has a name of its own."""
    share_id = share_id or f"share-{next(_SHARES)}"
    consumed = {"neuroncores": str(cores)}
    return result(f"neuron-device-{index}", request, shareID=share_id, consumedCapacity=consumed, **fields)


def match(*requests: str, attribute: str = "neuron.aws.com/window3_0") -> JsonObject:
    return {"requests": list(requests), "matchAttribute": attribute}


def config(kind: str, source: str = "FromClaim", requests: tuple[str, ...] = (), **fields: Any) -> JsonObject:
    parameters = {"apiVersion": f"{DRIVER}/v1", "kind": kind, **fields}
    return {"source": source, "requests": list(requests), "opaque": {"driver": DRIVER, "parameters": parameters}}


def claim_object(
    number: int,
    *results: JsonObject,
    config: list[JsonObject] | None = None,
    constraints: list[JsonObject] | None = None,
    reserved: bool = True,
) -> JsonObject:
    """A ResourceClaim `ns/claim-<number>`; without results it is not allocated."""
    status: JsonObject = {}
    if results:
        status["allocation"] = {"devices": {"results": list(results), "config": config or []}}
    if reserved:
        status["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "pod-uid"}]
    metadata = {"namespace": "ns", "name": f"claim-{number}", "uid": uid(number), "resourceVersion": "1"}
    spec = {"devices": {"constraints": constraints or []}}
    return {"metadata": metadata, "spec": spec, "status": status}


def allocated(
    number: int,
    *results: JsonObject,
    config: list[JsonObject] | None = None,
    constraints: list[JsonObject] | None = None,
) -> AllocatedClaim:
    body = claim_object(number, *results, config=config, constraints=constraints)
    return read_allocation(body, DRIVER, NODE, uid(number))


def devices(*indices: int, request: str = "n0") -> tuple[JsonObject, ...]:
    return tuple(result(f"neuron-device-{index}", request) for index in indices)


def restored(view: NodeView, *claims: AllocatedClaim) -> list[PreparedClaim]:
    """Claims of pods, as the kubelet tells them."""
    return [undecided(claim, view) for claim in claims]


_TREE: Final = ("sys", "dev", "emulates")


@functools.cache
def _emulated(instance_type: str, driver_version: str) -> Path:
    """An emulated node that tests share, or copy: that takes a tenth of the time of writing it."""
    root = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, root)
    emulate.write_tree(root, emulate.emulated_type(instance_type), driver_version=driver_version)
    return root


@dataclasses.dataclass
class Node:
    """An emulated node in a directory, and what runs on it.

    Its 800 files and directories are links to those of a shared node until `sysfs` or `dev` is asked for: who has the
    path may write.
    """

    root: Path
    instance_type: str = "trn2.48xlarge"
    driver_version: str = emulate.DRIVER_VERSION
    boot_id: str = BOOT
    files: DiskFiles = dataclasses.field(default_factory=DiskFiles)
    lock_timeout: float = 10.0

    def __post_init__(self) -> None:
        if self._kind.exists() and self._kind.read_text() == self._parameters:
            return
        if self.root.exists() and any(self.root.iterdir()):
            self._copy()
            entry = emulate.emulated_type(self.instance_type)
            emulate.write_tree(self.root, entry, driver_version=self.driver_version)
            return
        self.root.mkdir(parents=True, exist_ok=True)
        tree = _emulated(self.instance_type, self.driver_version)
        for name in _TREE:
            (self.root / name).symlink_to(tree / name)
        self._kind.write_text(self._parameters)

    def _copy(self) -> None:
        """Have files of its own."""
        links = [link for name in _TREE if (link := self.root / name).is_symlink()]
        sources = [link.readlink() for link in links]
        for link in links:
            link.unlink()
        if sources:
            self._kind.unlink()
            subprocess.run(["cp", "-a", *sources, self.root], check=True)

    @property
    def _kind(self) -> Path:
        """Says of which node the files are, while they are links."""
        return self.root / "shared-node"

    @property
    def _parameters(self) -> str:
        return f"{self.instance_type} {self.driver_version}"

    @property
    def sysfs(self) -> Path:
        self._copy()
        return self.root / "sys"

    @property
    def dev(self) -> Path:
        self._copy()
        return self.root / "dev"

    @property
    def state_dir(self) -> Path:
        return self.root / "state"

    @property
    def cdi_dir(self) -> Path:
        return self.root / "cdi"

    def device_directory(self, index: int) -> Path:
        return self.sysfs / "devices/virtual/neuron_device" / f"neuron{index}"

    def discover(self) -> NodeHardware:
        return discover(self.root / "sys", self.root / "dev")

    def read_ultraserver(self) -> UltraServer | None:
        return read_ultraserver(self.root / "sys")

    def view(self) -> NodeView:
        hardware, instance = self.discover(), Catalogue().get(self.instance_type)
        facts = node_facts(read_node(node_object()))

        def attributes(name: str) -> JsonObject:
            return published_attributes(facts, hardware, instance, "1.0.0", name) if instance else {}

        return NodeView(hardware, instance, self.read_ultraserver, attributes=attributes)

    def specs(self) -> cdi.SpecFiles:
        metadata = MetadataFiles(self.files, self.state_dir)
        return cdi.SpecFiles(self.files, self.cdi_dir, self.boot_id, self.root / "dev", metadata)

    def preparer(self) -> Preparer:
        """A new instance of the driver's state, as after a start; not recovered yet. The first has nothing prepared."""
        if not self.state_dir.exists():
            self.state_dir.mkdir()
            (self.state_dir / FILE_NAME).write_bytes(encode(Checkpoint(self.boot_id)))
        return Preparer(
            self.files,
            state_dir=self.state_dir,
            specs=self.specs(),
            boot_id=self.boot_id,
            lock_timeout=self.lock_timeout,
        )

    def spec_names(self) -> list[str]:
        return sorted(path.name for path in self.cdi_dir.glob("*")) if self.cdi_dir.exists() else []


def spec_name(number: int) -> str:
    return f"neuron.aws.com-claim_{uid(number)}.json"


@dataclasses.dataclass
class FakeUsage:
    """What uses devices."""

    pods: tuple[UsedDevice, ...] = ()
    found: tuple[ProcessUse, ...] | Exception = ()
    looks: int = 0

    async def listed(self) -> tuple[UsedDevice, ...]:
        return self.pods

    async def processes(self, *, environment: bool = False) -> tuple[ProcessUse, ...]:
        self.looks += 1
        if isinstance(self.found, Exception):
            raise self.found
        return tuple(each if environment else dataclasses.replace(each, environment={}) for each in self.found)


class FakeApi:
    """Claims, the node and its slices, with an API server's habits: versions, conflicts, watches, dropped fields.

    Attributes:
        fail: raised by every call while set.
        drop: changes a slice's spec before it is stored.
        taints: whether a dry run keeps taints.
        forbidden: names of calls that are refused.
        reports: Events.
    """

    def __init__(self, node: JsonObject | None = None) -> None:
        self.node_object = node or node_object()
        self.claim_objects: dict[str, JsonObject] = {}
        self.stored: dict[str, JsonObject] = {}
        self.calls: list[str] = []
        self.fail: ApiServerError | None = None
        self.drop: Callable[[JsonObject], None] = lambda _spec: None
        self.version = "v1.36.2"
        self.taints = True
        self.forbidden: set[str] = set()
        self.reports: list[JsonObject] = []
        self.keeps_device_status = True
        self._version = 0
        self._watches: list[asyncio.Queue[tuple[str, JsonObject] | None]] = []
        self._node_watches: list[asyncio.Queue[JsonObject | None]] = []

    def add_claim(self, body: JsonObject) -> None:
        self.claim_objects[f"{body['metadata']['namespace']}/{body['metadata']['name']}"] = body

    def remove_claim(self, number: int) -> None:
        del self.claim_objects[f"ns/claim-{number}"]

    def _call(self, what: str) -> None:
        self.calls.append(what)
        if self.fail is not None:
            raise self.fail
        if what in self.forbidden:
            raise StatusError(403, f"may not {what}", "Forbidden")

    async def node(self) -> JsonObject:
        self._call("get node")
        return copy.deepcopy(self.node_object)

    async def follow(self) -> AsyncIterator[JsonObject]:
        self._call("follow node")
        queue: asyncio.Queue[JsonObject | None] = asyncio.Queue()
        self._node_watches.append(queue)
        yield copy.deepcopy(self.node_object)
        while (body := await queue.get()) is not None:
            yield body

    def change_node(self, body: JsonObject) -> None:
        """Change the Node as another client."""
        self._version += 1
        body = copy.deepcopy(body)
        body["metadata"]["resourceVersion"] = str(self._version)
        self.node_object = body
        for queue in self._node_watches:
            queue.put_nowait(copy.deepcopy(body))

    def end_node_watches(self) -> None:
        for queue in self._node_watches:
            queue.put_nowait(None)
        self._node_watches.clear()

    async def label(self, labels: Mapping[str, str | None]) -> JsonObject:
        self._call("label node")
        body = copy.deepcopy(self.node_object)
        merged = {**body["metadata"]["labels"], **labels}
        body["metadata"]["labels"] = {key: value for key, value in merged.items() if value is not None}
        self.change_node(body)
        return copy.deepcopy(self.node_object)

    async def report(self, event: Mapping[str, Any]) -> None:
        self._call("report")
        self.reports.append(dict(event))

    async def keeps_taints(self) -> bool:
        self._call("dry run")
        return self.taints

    async def claim(self, namespace: str, name: str) -> JsonObject | None:
        self._call(f"get {namespace}/{name}")
        return self.claim_objects.get(f"{namespace}/{name}")

    async def apply_devices(
        self,
        namespace: str,
        name: str,
        uid: str,
        devices: Sequence[Mapping[str, Any]],
        *,
        resource_version: str | None = None,
    ) -> JsonObject | None:
        self._call(f"apply {namespace}/{name} {len(devices)}")
        body = self.claim_objects.get(f"{namespace}/{name}")
        if body is None or body["metadata"]["uid"] != uid:
            return None
        if resource_version not in (None, body["metadata"].get("resourceVersion")):
            return None
        others = [each for each in body["status"].get("devices", ()) if each["driver"] != DRIVER]
        if self.keeps_device_status:
            body["status"]["devices"] = [*others, *copy.deepcopy(list(devices))]
        return copy.deepcopy(body)

    async def kubernetes(self) -> str:
        self._call("version")
        return self.version

    async def slices(self) -> tuple[list[JsonObject], str]:
        self._call("list slices")
        return copy.deepcopy(list(self.stored.values())), str(self._version)

    async def watch(self, resource_version: str) -> AsyncIterator[tuple[str, JsonObject]]:
        self._call(f"watch {resource_version}")
        queue: asyncio.Queue[tuple[str, JsonObject] | None] = asyncio.Queue()
        self._watches.append(queue)
        while (event := await queue.get()) is not None:
            yield event

    def end_watches(self) -> None:
        for queue in self._watches:
            queue.put_nowait(None)
        self._watches.clear()

    def _notify(self, kind: str, body: JsonObject) -> None:
        for queue in self._watches:
            queue.put_nowait((kind, copy.deepcopy(body)))

    def _store(self, kind: str, body: Mapping[str, Any]) -> JsonObject:
        self._version += 1
        stored = copy.deepcopy(dict(body))
        stored["metadata"]["resourceVersion"] = str(self._version)
        self.drop(stored["spec"])
        self.stored[stored["metadata"]["name"]] = stored
        self._notify(kind, stored)
        return copy.deepcopy(stored)

    async def create(self, body: Mapping[str, Any]) -> JsonObject:
        name = body["metadata"]["name"]
        self._call(f"create {name}")
        if name in self.stored:
            raise StatusError(409, f"{name} already exists", "AlreadyExists")
        return self._store("ADDED", body)

    async def update(self, body: Mapping[str, Any]) -> JsonObject:
        name = body["metadata"]["name"]
        self._call(f"update {name}")
        if name not in self.stored:
            raise StatusError(404, f"{name} not found", "NotFound")
        if self.stored[name]["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise StatusError(409, f"{name} has changed", "Conflict")
        return self._store("MODIFIED", body)

    async def delete(self, name: str) -> None:
        self._call(f"delete {name}")
        self.wipe(name)

    def wipe(self, *names: str) -> None:
        """What the kubelet does when it starts."""
        for name in names or list(self.stored):
            self._version += 1
            body = self.stored.pop(name)
            body["metadata"]["resourceVersion"] = str(self._version)
            self._notify("DELETED", body)

    def tamper(self, name: str, change: Callable[[JsonObject], None]) -> None:
        """Change a slice as another client."""
        body = copy.deepcopy(self.stored[name])
        change(body["spec"])
        self._store("MODIFIED", body)
