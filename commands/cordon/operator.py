"""Reads and writes a cluster for `cordon`, `drain` and `uncordon`.

Where the API server serves DeviceTaintRules, they taint the devices, and a drain gives them the effect NoExecute:
Kubernetes deletes the pods. Elsewhere the Node's annotation tells the driver; a drain waits until the driver keeps new
claims off the devices, and evicts the pods itself.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

from cluster.resources import NODES, POD_EVICTIONS, PODS
from commands.cluster.reader import TIMEOUT, ClusterReader, Object, Seen, Unseen, items
from commands.cordon import targets
from commands.cordon.targets import NO_EXECUTE, NO_SCHEDULE, PodUse, Target, users
from commands.devices.device_map import build
from commands.devices.devices import NodeMap
from commands.devices.snapshot import read_snapshot, taint_rules
from neuron import known_faults, names
from neuron.api.nodes import Node, read_node
from neuron.api.stored_claims import StoredClaim
from neuron.api.taints import Cordon, cordon_annotation, read_cordon
from runtime.api_server import (
    COMPACT,
    CONFLICT,
    JSON,
    MERGE_PATCH,
    NOT_FOUND,
    TOO_MANY_REQUESTS,
    ApiServerError,
    Resource,
    StatusError,
    TimedApiServer,
    explain,
)

ACTS: Final = 30.0
"""Seconds in which a driver publishes what the annotation says: it follows its Node."""

T = TypeVar("T")

_POLL: Final = 1.0
_LOOKS: Final = 10
_EVICTION: Final = "EvictionInProgress"
_NOT_ACTED_ON: Final = (
    "Kubernetes does not act on DeviceTaintRules (feature gate DRADeviceTaintRules), so the rule was removed again: "
    "the driver taints the devices."
)
_ATTEMPTS: Final = 5
_QUERY: Final = {"fieldManager": names.MANAGER}
_VERBS: Final = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}


class CannotCordonError(Exception):
    """Nothing, or not everything, was done; the message has the reason and the fix."""


@dataclasses.dataclass(frozen=True, slots=True)
class Scene:
    """The cluster as far as a target is concerned.

    Attributes:
        node: what the node publishes; None if it publishes nothing.
        whole: name of the device that stands for the whole node; empty if there is none.
        served: DeviceTaintRules, in the version that the API server prefers; None if it serves none.
        why_not: why none is written although they are served; empty if there is no reason.
        rules: all DeviceTaintRules.
        users: pods that use the devices.
    """

    target: Target
    node: NodeMap | None
    pool: str
    whole: str
    served: Resource | None
    why_not: str
    rules: tuple[Object, ...]
    cordon: Cordon
    users: tuple[PodUse, ...]

    @property
    def by_rules(self) -> Resource | None:
        """The kind of rules to write; None if the Node's annotation tells the driver."""
        return None if self.why_not else self.served

    @property
    def own_rules(self) -> tuple[Object, ...]:
        """The rules by which this program cordoned the target."""
        return tuple(rule for rule in self.rules if targets.cordoned_by(rule) == str(self.target))

    @property
    def evicted(self) -> tuple[PodUse, ...]:
        """Pods that a drain evicts."""
        return tuple(each for each in self.users if not each.stays)

    @property
    def open_devices(self) -> tuple[str, ...]:
        """Devices of the target that new claims can still get, as far as its own cordon matters."""
        closed = targets.closed_devices(self.target, self.whole)
        published = {} if self.node is None else {each.name: each for each in _published(self.node)}
        return tuple(
            name
            for name, device in published.items()
            if (not closed or name in closed)
            and not any(taint.key == names.TAINT_CORDONED and taint.prevents for taint in device.taints)
        )


def _published(node: NodeMap) -> Iterable[Any]:
    return (*(each for each in node.devices if each.offered), *([node.whole] if node.whole is not None else []))


class Operator:
    """Works on one cluster."""

    def __init__(
        self,
        server: TimedApiServer,
        address: str,
        *,
        say: Callable[[str], None],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`say` receives progress messages."""
        self._server = server
        self._address = address
        self._say = say
        self._sleep = sleep
        self._reader = ClusterReader(server, sleep=sleep)

    async def look(self, target: Target, *, must_exist: bool = True) -> Scene:
        """Read what the target means in the cluster.

        Raises:
            CannotCordonError: something of it cannot be read.
            TargetError: `must_exist`, and it does not.
        """
        try:
            served = await taint_rules(self._reader)
            version = await self._reader.version()
            snapshot = await read_snapshot(self._reader, self._address, with_pods=False)
        except ApiServerError as error:
            raise CannotCordonError(f"{self._address} cannot be read: {error}") from error
        slices, claims, rules = _needed(snapshot.slices), _needed(snapshot.claims), _needed(snapshot.rules)
        cordon = read_cordon((await self._node(target.node)).annotations.get(names.ANNOTATION_CORDONED))
        found = build(dataclasses.replace(snapshot, pods=()))
        if must_exist:
            targets.check(target, found.nodes, cordon.devices)
        node = found.node(target.node)
        pool = next((each.pool for each in slices if each.node == target.node), target.node)
        whole = _whole(node, claims, pool)
        used = users(claims, pool, targets.closed_devices(target, whole), targets.taint(NO_EXECUTE))
        why_not = "" if isinstance(version, Unseen) else _fault(version)
        return Scene(target, node, pool, whole, served, why_not, rules, cordon, used)

    async def owners(self, pods: Iterable[PodUse]) -> dict[str, str]:
        """What creates each pod again, such as `Job/train`, by UID of the pod; empty if nothing does."""
        found: dict[str, str] = {}
        for each in pods:
            pod = items(await self._reader.get(PODS, each.namespace, each.name))
            if not pod:
                found[each.uid] = "?"
                continue
            owners = (pod[0].get("metadata") or {}).get("ownerReferences") or ()
            controller = next((owner for owner in owners if owner.get("controller")), None)
            found[each.uid] = f"{controller['kind']}/{controller['name']}" if controller else ""
        return found

    async def cordon(self, scene: Scene, effect: str = NO_SCHEDULE) -> Scene:
        """Keep new claims off the target; returns the scene with what did it, when the scheduler can know.

        Raises:
            CannotCordonError: a right is missing, or the driver does not act.
        """
        served = scene.by_rules
        if served is not None:
            rules = targets.rules(scene.target, scene.pool, scene.whole, served, effect)
            for rule in rules:
                await self._write(served, rule)
            if await self._acted_on(served, rules[0]["metadata"]["name"]):
                return scene
            for rule in rules:
                await self._delete(served, rule["metadata"])
            scene = dataclasses.replace(scene, why_not=_NOT_ACTED_ON)
        if scene.served is not None:
            self._say(scene.why_not)
        await self._annotate(scene.target.node, lambda cordon: cordon.added(scene.target.device))
        await self._acted(scene.target)
        return scene

    async def uncordon(self, scene: Scene) -> bool:
        """Undo what `cordon` and `drain` did to this target; returns whether there was anything.

        Raises:
            CannotCordonError: a right is missing.
        """
        done = False
        for rule in scene.own_rules:
            assert scene.served is not None  # noqa: S101 - rules were read from it
            await self._delete(scene.served, rule["metadata"])
            done = True
        device = scene.target.device
        if scene.cordon.removed(device) != scene.cordon:
            await self._annotate(scene.target.node, lambda cordon: cordon.removed(device))
            done = True
        return done

    async def drain(self, scene: Scene, within: float) -> tuple[Scene, tuple[PodUse, ...]]:
        """Cordon the target and evict its pods; returns the scene, and pods still there after `within` seconds.

        Raises:
            CannotCordonError: as `cordon`; or a pod may not be evicted.
        """
        scene = await self.cordon(scene, NO_EXECUTE)
        left = {each.uid: each for each in scene.evicted}
        evicted: set[str] = set()
        waited = 0.0
        while True:
            for each in list(left.values()):
                if scene.by_rules is None and each.uid not in evicted and await self._evict(each):
                    evicted.add(each.uid)
                if await self._gone(each):
                    self._say(f"{each} is gone.")
                    del left[each.uid]
            if not left or waited >= within:
                return scene, tuple(left.values())
            await self._sleep(_POLL)
            waited += _POLL

    # --- requests -------------------------------------------------------------------------------------------------

    async def _get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """An object; None if it does not exist.

        Raises:
            CannotCordonError: it cannot be read.
        """
        seen = await self._reader.get(resource, namespace, name)
        if isinstance(seen, Unseen):
            shown = "" if namespace else name
            why = explain(seen.error, "get", resource, namespace, shown) if seen.error else str(seen)
            raise CannotCordonError(why) from seen.error
        return seen[0] if seen else None

    async def _node(self, name: str) -> Node:
        found = await self._get(NODES, "", name)
        if found is None:
            raise targets.TargetError(f"Node {name!r} does not exist. `neuron-dra map` shows nodes.")
        return read_node(found)

    async def _send(
        self, method: str, resource: Resource, name: str, body: Object, content_type: str, *fine: int
    ) -> int:
        """Write an object. `fine`: codes of refusals that are no error; returns such a code, or 0.

        Raises:
            CannotCordonError: it cannot be written.
        """
        path = resource.path("", "" if method == "POST" else name)
        query = None if method == "DELETE" else _QUERY
        try:
            await self._server.request(method, path, timeout=TIMEOUT, query=query, body=body, content_type=content_type)
        except ApiServerError as error:
            if isinstance(error, StatusError) and error.code in fine:
                return error.code
            shown = "" if method == "POST" else name
            raise CannotCordonError(explain(error, _VERBS[method], resource, name=shown)) from error
        return 0

    async def _write(self, served: Resource, rule: Object) -> None:
        """Create a rule. One of the same name gets a stronger effect, and never a weaker one."""
        name, effect = rule["metadata"]["name"], rule["spec"]["taint"]["effect"]
        if await self._send("POST", served, name, rule, COMPACT, CONFLICT) and effect == NO_EXECUTE:
            await self._patch(served, name, {"spec": {"taint": {"effect": effect}}})

    async def _acted_on(self, served: Resource, name: str) -> bool:
        """Whether kube-controller-manager acts on a rule: it writes a condition into the status of each.

        The API server serves rules also where the feature is disabled, and then nothing acts on them.
        """
        for attempt in range(_LOOKS):
            if attempt:
                await self._sleep(_POLL)
            body = await self._get(served, "", name)
            if body is None:
                raise CannotCordonError(f"{served} {name} is gone: another client deleted it. Repeat the command.")
            conditions = (body.get("status") or {}).get("conditions") or ()
            if any(each.get("type") == _EVICTION for each in conditions):
                return True
        return False

    async def _patch(self, resource: Resource, name: str, patch: Object) -> None:
        await self._send("PATCH", resource, name, patch, MERGE_PATCH)

    async def _delete(self, served: Resource, metadata: Object) -> None:
        preconditions = {"preconditions": {"uid": metadata["uid"]}} if "uid" in metadata else {}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **preconditions}
        await self._send("DELETE", served, metadata["name"], body, JSON, NOT_FOUND, CONFLICT)

    async def _annotate(self, node: str, change: Callable[[Cordon], Cordon]) -> None:
        """Change the Node's annotation, as it is now: other commands may change it, too."""
        for attempt in range(1, _ATTEMPTS + 1):
            found = await self._node(node)
            before = read_cordon(found.annotations.get(names.ANNOTATION_CORDONED))
            after = change(before)
            if after == before:
                return
            changed = {names.ANNOTATION_CORDONED: cordon_annotation(after)}
            patch = {"metadata": {"resourceVersion": found.version, "annotations": changed}}
            try:
                await self._patch(NODES, node, patch)
            except CannotCordonError as error:
                cause = error.__cause__
                conflict = isinstance(cause, StatusError) and cause.code == CONFLICT
                if not conflict or attempt == _ATTEMPTS:
                    raise
            else:
                return

    async def _acted(self, target: Target) -> None:
        """Wait until the driver keeps new claims off the devices."""
        waited = 0.0
        while (scene := await self.look(target, must_exist=False)).open_devices:
            if waited >= ACTS:
                shown = ", ".join(scene.open_devices[:3])
                raise CannotCordonError(
                    f"Node {target.node} has the annotation {names.ANNOTATION_CORDONED}, and its driver still offers "
                    f"{shown} after {ACTS:g} s. Check the kubelet plugin on the node: it must be of a version "
                    "that knows the annotation. No pod was evicted."
                )
            await self._sleep(_POLL)
            waited += _POLL

    async def _evict(self, pod: PodUse) -> bool:
        """Ask for the eviction of a pod; returns whether it was granted: a PodDisruptionBudget may forbid it."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": pod.namespace, "name": pod.name},
            "deleteOptions": {"preconditions": {"uid": pod.uid}} if pod.uid else {},
        }
        path = f"{PODS.path(pod.namespace, pod.name)}/eviction"
        try:
            await self._server.request("POST", path, timeout=TIMEOUT, body=body, content_type=COMPACT)
        except StatusError as error:
            if error.code == TOO_MANY_REQUESTS:
                return False
            if error.code in (NOT_FOUND, CONFLICT):
                return True  # It is gone, or another pod has its name.
            raise CannotCordonError(explain(error, "create", POD_EVICTIONS, pod.namespace)) from error
        except ApiServerError as error:
            raise CannotCordonError(f"cannot evict pod {pod}: {error}") from error
        return True

    async def _gone(self, pod: PodUse) -> bool:
        body = await self._get(PODS, pod.namespace, pod.name)
        return body is None or (bool(pod.uid) and (body.get("metadata") or {}).get("uid") != pod.uid)


def _needed(seen: Seen[T]) -> tuple[T, ...]:
    """What was read.

    Raises:
        CannotCordonError: it could not be read. Without it, the command could miss a pod.
    """
    if isinstance(seen, Unseen):
        raise CannotCordonError(str(seen))
    return seen


def _fault(version: str) -> str:
    """Why no DeviceTaintRule may be written with a control plane of this version."""
    faults = (each for each in known_faults.of_control_plane(version) if each.issue == known_faults.TAINT_RULES)
    return next((f"{known_faults.sentence(each, version)} {each.remedy}" for each in faults), "")


def _whole(node: NodeMap | None, claims: Iterable[StoredClaim], pool: str) -> str:
    """The device that stands for the whole node: as it is published, or as a claim has it."""
    if node is not None and node.whole is not None:
        return node.whole.name
    held = ((result.pool, result.device) for claim in claims for result in claim.ours)
    return names.NODE_DEVICE if (pool, names.NODE_DEVICE) in held else ""
