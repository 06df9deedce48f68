"""What is cordoned: a node, or one of its devices; the DeviceTaintRules that do it; the pods to evict. Pure."""

import dataclasses
import hashlib
import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any, Final

from commands.cluster.reader import Object
from commands.devices.devices import NodeMap
from neuron import names
from neuron.api.slices import TAINT_RULE
from neuron.api.stored_claims import Result, StoredClaim
from neuron.api.taints import Taint, TolerationSpec
from neuron.findings import did_you_mean, few, quoted
from runtime.api_server import Resource

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


def parse(text: str) -> Target:
    """Read `NODE` or `NODE/DEVICE`; a device is a name, or the number in it.

    Raises:
        TargetError: it is neither.
    """
    node, slash, device = text.partition("/")
    if not node or (slash and not device) or "/" in device:
        raise TargetError(f"{quoted(text)} is not NODE or NODE/DEVICE. Example: trn2-0/neuron-device-3.")
    return Target(node, f"neuron-device-{int(device)}" if _NUMBER.fullmatch(device) else device)


def check(target: Target, nodes: Iterable[NodeMap], known: Collection[str] = ()) -> None:
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
    if node is None:
        return ()
    single = (device.name for device in node.devices if device.offered)
    return (*single, *([node.whole.name] if node.whole is not None else []))


def closed_devices(target: Target, whole: str) -> tuple[str, ...]:
    """Devices of the pool that are closed with the target; empty: all.

    Args:
        whole: name of the device that stands for the whole node; empty if there is none. It is closed with each device.
    """
    if not target.device:
        return ()
    return (target.device, *([whole] if whole and whole != target.device else []))


def taint(effect: str) -> Taint:
    """The taint of a rule."""
    return Taint(names.TAINT_CORDONED, VALUE, effect)


def rules(target: Target, pool: str, whole: str, resource: Resource, effect: str) -> list[dict[str, Any]]:
    """The DeviceTaintRules that cordon the target.

    Args:
        whole: name of the device that stands for the whole node; empty if there is none.
        resource: of the rules, in the version that is served.
    """
    return [_rule(target, pool, device, resource, effect) for device in closed_devices(target, whole) or ("",)]


def _rule(target: Target, pool: str, device: str, resource: Resource, effect: str) -> dict[str, Any]:
    selector = {"driver": names.DRIVER, "pool": pool} | ({"device": device} if device else {})
    taken = taint(effect)
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
    return tuple(_pod_use(*pod, holds) for pod, holds in sorted(found.items()))


def _pod_use(namespace: str, name: str, uid: str, holds: Collection[tuple[str, str, bool]]) -> PodUse:
    claims = tuple(sorted({claim for claim, _, _ in holds}))
    devices = tuple(sorted({device for _, device, _ in holds}))
    return PodUse(namespace, name, uid, claims, devices, all(stays for _, _, stays in holds))


def _tolerates(result: Result, taint: Taint) -> bool:
    """Whether the claim tolerates the taint without a time limit, so that its pod is not evicted."""
    return any(
        each.get("effect") == NO_EXECUTE
        and each.get("tolerationSeconds") is None
        and TolerationSpec.read(each).tolerates(taint)
        for each in result.tolerations or ()
    )
