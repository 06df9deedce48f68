"""Taints of nodes and devices (KEP-5055), tolerations of pods and requests, which follow the same rule, and cordons.

Source: `ToleratesTaint` of `k8s.io/dynamic-resource-allocation/resourceclaim`, and `taintPreventsAllocation` of the
structured allocator.

With a cordon, an administrator keeps new claims off devices. Where the API server serves DeviceTaintRules, a rule
taints the devices. Elsewhere an annotation of the Node names them, and the driver taints them, or does not publish them
where the cluster keeps no taints.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

_PREVENTING: Final = ("NoSchedule", "NoExecute")
_EXISTS: Final = "Exists"
_EQUAL: Final = ("", "Equal")


class Taint(Struct, frozen=True, gc=False):
    """A taint. One with another effect than NoSchedule and NoExecute keeps nothing away."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"

    @classmethod
    def read(cls, entry: Mapping[str, object]) -> "Taint":
        """A taint of a Node, or of a device in a ResourceSlice."""
        return cls(str(entry.get("key") or ""), str(entry.get("value") or ""), str(entry.get("effect") or ""))

    @property
    def prevents(self) -> bool:
        """Whether it keeps pods or claims without a toleration away."""
        return self.effect in _PREVENTING

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


class TolerationSpec(Struct, frozen=True, gc=False):
    """A toleration; an empty key or effect stands for all of them. Without arguments: of every taint."""

    key: str = ""
    operator: str = _EXISTS
    value: str = ""
    effect: str = ""

    @classmethod
    def read(cls, entry: Mapping[str, object]) -> "TolerationSpec":
        """A toleration of a pod, or of a request."""
        get = entry.get  # The reader of claims calls this for each toleration of each review.
        return cls(str(get("key") or ""), str(get("operator") or ""), str(get("value") or ""), str(get("effect") or ""))

    def tolerates(self, taint: Taint) -> bool:
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        return self.operator == _EXISTS or (self.operator in _EQUAL and self.value == taint.value)


def prevents_allocation(taints: Iterable[Taint], tolerations: Iterable[TolerationSpec]) -> bool:
    """Whether one of the taints keeps a request with these tolerations off a device."""
    known = tuple(tolerations)
    preventing = (taint for taint in taints if taint.prevents)
    return any(not any(each.tolerates(taint) for each in known) for taint in preventing)


EVERY_DEVICE: Final = "*"
"""Value of the annotation for every device of the node."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cordon:
    """The devices of one node that are cordoned.

    Attributes:
        node: whether the whole node is.
        devices: names of single devices that are, sorted.
    """

    node: bool = False
    devices: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.node or bool(self.devices)

    def added(self, device: str) -> "Cordon":
        """The same with another device; empty: with the node."""
        if not device:
            return dataclasses.replace(self, node=True)
        return _cordon((*self.devices, device), node=self.node)

    def removed(self, device: str) -> "Cordon":
        """The same without a device; empty: without the node. The cordons of its single devices stay."""
        if not device:
            return dataclasses.replace(self, node=False)
        return _cordon((each for each in self.devices if each != device), node=self.node)


def read_cordon(value: str | None) -> Cordon:
    """The cordon that an annotation says; None: the Node has no such annotation."""
    # At most 256 names are read: a node has at most 64 devices.
    words = [word for part in (value or "").split(",", 256)[:256] if (word := part.strip())]
    return _cordon((word for word in words if word != EVERY_DEVICE), node=EVERY_DEVICE in words)


def cordon_annotation(cordon: Cordon) -> str | None:
    """The annotation that says it; None: without one."""
    return ",".join([EVERY_DEVICE] * cordon.node + list(cordon.devices)) or None


def _cordon(devices: Iterable[str], *, node: bool) -> Cordon:
    return Cordon(node, tuple(sorted(set(devices))))
