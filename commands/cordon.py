"""Cordons, drains and uncordons a node's devices, or one of them.

Where the API server serves DeviceTaintRules, they taint the devices, and a drain gives them the effect NoExecute:
Kubernetes deletes the pods. Elsewhere the Node's annotation tells the driver; a drain waits until the driver keeps new
claims off the devices, and evicts the pods itself.
"""

import asyncio
import dataclasses
import hashlib
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from typing import Any, Final, TypeVar

from cluster.resources import NODES, POD_EVICTIONS, PODS
from commands.cluster.reader import TIMEOUT, ClusterReader, Object, Seen, Unseen, items
from commands.cluster.snapshot import read_snapshot, taint_rules
from commands.devices.device_map import build
from commands.devices.devices import Device, NodeMap
from neuron import known_faults, names
from neuron.api.nodes import Node, read_node
from neuron.api.slices import TAINT_RULE
from neuron.api.stored_claims import Result, StoredClaim
from neuron.api.taints import Cordon, Taint, TolerationSpec, cordon_annotation, read_cordon
from neuron.findings import did_you_mean, few, quoted
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

NO_SCHEDULE: Final = "NoSchedule"
NO_EXECUTE: Final = "NoExecute"
VALUE: Final = "admin"
"""Value of the taint; the driver sets the same value."""

_MAX_NAME: Final = 253
_NUMBER: Final = re.compile(r"[0-9]{1,3}", re.ASCII)


class TargetError(Exception):
    """The node or the device does not exist; the message has the names that do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """What is cordoned.

    Attributes:
        device: name of one device of it; empty: all.
    """

    node: str
    device: str = ""

    def __str__(self) -> str:
        return f"{self.node}/{self.device}" if self.device else self.node

    @property
    def words(self) -> str:
        """For people."""
        return f"{self.device} of {self.node}" if self.device else f"all devices of {self.node}"


def parse_target(text: str) -> Target:
    """Read `NODE` or `NODE/DEVICE`; a device is a name, or the number in it.

    Raises:
        TargetError: it is neither.
    """
    node, slash, device = text.partition("/")
    if not node or (slash and not device) or "/" in device:
        raise TargetError(f"{quoted(text)} is not NODE or NODE/DEVICE. Example: trn2-0/neuron-device-3.")
    return Target(node, f"neuron-device-{int(device)}" if _NUMBER.fullmatch(device) else device)


def check_target(target: Target, nodes: Iterable[NodeMap], known: Collection[str] = ()) -> None:
    """Check that the node publishes the device.

    Args:
        known: devices that the node has, although it does not publish them now.

    Raises:
        TargetError: it does not.
    """
    by_name = {node.name: node for node in nodes}
    node = by_name.get(target.node)
    if node is None and not known:
        shown = f" Nodes that do: {few(sorted(by_name), 5)}." if by_name else ""
        raise TargetError(
            f"Node {quoted(target.node)} publishes no Neuron devices.{did_you_mean(target.node, by_name)}{shown}"
        )
    devices = {*device_names(node), *known}
    if target.device and target.device not in devices:
        raise TargetError(
            f"Node {target.node} publishes no device {quoted(target.device)}.{did_you_mean(target.device, devices)} "
            f"`neuron-dra map` shows its devices."
        )


def device_names(node: NodeMap | None) -> tuple[str, ...]:
    """Names of the devices that a node publishes, with that of the whole node."""
    return tuple(each.name for each in _published(node))


def _published(node: NodeMap | None) -> Iterator[Device]:
    if node is not None:
        yield from (device for device in node.devices if device.offered)
        if node.whole is not None:
            yield node.whole


def closed_devices(target: Target, whole: str) -> tuple[str, ...]:
    """Devices of the pool that are closed with the target; empty: all.

    Args:
        whole: name of the device that stands for the whole node; empty if there is none. It is closed with each device.
    """
    if not target.device:
        return ()
    return (target.device, *([whole] if whole and whole != target.device else []))


def cordon_taint(effect: str) -> Taint:
    """The taint of a rule."""
    return Taint(names.TAINT_CORDONED, VALUE, effect)


def cordon_rules(target: Target, pool: str, whole: str, resource: Resource, effect: str) -> list[dict[str, Any]]:
    """The DeviceTaintRules that cordon the target.

    Args:
        whole: name of the device that stands for the whole node; empty if there is none.
        resource: of the rules, in the version that is served.
    """
    return [_rule(target, pool, device, resource, effect) for device in closed_devices(target, whole) or ("",)]


def _rule(target: Target, pool: str, device: str, resource: Resource, effect: str) -> dict[str, Any]:
    selector = {"driver": names.DRIVER, "pool": pool} | ({"device": device} if device else {})
    taken = cordon_taint(effect)
    return {
        "apiVersion": f"{resource.group}/{resource.version}",
        "kind": TAINT_RULE,
        "metadata": {
            "name": _rule_name(target, device),
            "labels": {names.LABEL_MANAGED_BY: names.MANAGER},
            "annotations": {names.ANNOTATION_CORDONED: str(target)},
        },
        "spec": {
            "deviceSelector": selector,
            "taint": {"key": taken.key, "value": taken.value, "effect": taken.effect},
        },
    }


def _rule_name(target: Target, device: str) -> str:
    """Stable, so that two commands do not write two rules; a device's whole node has a rule for each device."""
    parts = [target.node, *([target.device] if target.device else []), *([device] if device != target.device else [])]
    name = f"neuron-cordon-{'.'.join(parts)}"
    if len(name) <= _MAX_NAME:
        return name
    digest = hashlib.sha256("/".join(parts).encode()).hexdigest()[:12]
    return f"{name[: _MAX_NAME - len(digest) - 1].rstrip('-.')}-{digest}"


def cordoned_by(rule: Object) -> str:
    """What a rule cordons, as `str(Target)`; empty for a rule that this program did not write."""
    metadata = rule["metadata"]
    ours = (metadata.get("labels") or {}).get(names.LABEL_MANAGED_BY) == names.MANAGER
    key = ((rule.get("spec") or {}).get("taint") or {}).get("key")
    if not ours or key != names.TAINT_CORDONED:
        return ""
    return str((metadata.get("annotations") or {}).get(names.ANNOTATION_CORDONED) or "")


@dataclasses.dataclass(frozen=True, slots=True)
class PodUse:
    """A pod that uses the devices.

    Attributes:
        claims: names of its claims that hold the devices, sorted.
        devices: names of the devices, sorted.
        stays: whether all these claims tolerate the taint.
    """

    namespace: str
    name: str
    uid: str
    claims: tuple[str, ...]
    devices: tuple[str, ...]
    stays: bool = False

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def users(claims: Iterable[StoredClaim], pool: str, devices: Collection[str], taint: Taint) -> tuple[PodUse, ...]:
    """Pods that use devices of a pool, by namespace and name.

    Args:
        claims: of the cluster.
        devices: their names; empty: all of the pool.
        taint: the taint of the cordon; a claim can tolerate it.
    """
    found: defaultdict[tuple[str, str, str], list[tuple[str, str, bool]]] = defaultdict(list)
    for claim in claims:
        for result in claim.ours:
            if result.pool != pool or (devices and result.device not in devices):
                continue
            for user in claim.pods:
                pod = (claim.metadata.namespace, user.name, user.uid)
                found[pod].append((claim.metadata.name, result.device, _tolerates(result, taint)))
    return tuple(
        PodUse(
            *pod,
            claims=tuple(sorted({claim for claim, _, _ in holds})),
            devices=tuple(sorted({device for _, device, _ in holds})),
            stays=all(stays for _, _, stays in holds),
        )
        for pod, holds in sorted(found.items())
    )


def _tolerates(result: Result, taint: Taint) -> bool:
    """Whether the claim tolerates the taint without a time limit, so that its pod is not evicted."""
    return any(
        each.get("effect") == NO_EXECUTE
        and each.get("tolerationSeconds") is None
        and TolerationSpec.read(each).tolerates(taint)
        for each in result.tolerations or ()
    )


# --- the operator -----------------------------------------------------------------------------------------------------


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
        return tuple(rule for rule in self.rules if cordoned_by(rule) == str(self.target))

    @property
    def evicted(self) -> tuple[PodUse, ...]:
        """Pods that a drain evicts."""
        return tuple(each for each in self.users if not each.stays)

    @property
    def open_devices(self) -> tuple[str, ...]:
        """Devices of the target that new claims can still get, as far as its own cordon matters."""
        closed = closed_devices(self.target, self.whole)
        return tuple(
            device.name
            for device in _published(self.node)
            if (not closed or device.name in closed)
            and not any(taint.key == names.TAINT_CORDONED and taint.prevents for taint in device.taints)
        )


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
            check_target(target, found.nodes, cordon.devices)
        node = found.node(target.node)
        pool = next((each.pool for each in slices if each.node == target.node), target.node)
        whole = _whole(node, claims, pool)
        used = users(claims, pool, closed_devices(target, whole), cordon_taint(NO_EXECUTE))
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
            rules = cordon_rules(scene.target, scene.pool, scene.whole, served, effect)
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
                body = await self._get(PODS, each.namespace, each.name)
                # Another pod may have its name.
                if body is None or (each.uid and (body.get("metadata") or {}).get("uid") != each.uid):
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
            raise TargetError(f"Node {name!r} does not exist. `neuron-dra map` shows nodes.")
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
