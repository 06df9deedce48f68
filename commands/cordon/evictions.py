"""Whom a drain evicts: pods whose claims hold the devices. Pure.

As the device taint eviction controller of kube-controller-manager finds them (`claimEvictionTime`): claims with
adminAccess count too, and a claim whose request tolerates the taint with the effect NoExecute stays.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterable

from commands.cordon.targets import NO_EXECUTE
from neuron.api.stored_claims import Result, StoredClaim
from neuron.api.taints import Taint, TolerationSpec


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
