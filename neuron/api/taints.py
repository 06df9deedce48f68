"""Taints of nodes and devices (KEP-5055), and tolerations of pods and requests, which follow the same rule.

Source: `ToleratesTaint` of `k8s.io/dynamic-resource-allocation/resourceclaim`, and `taintPreventsAllocation` of the
structured allocator.
"""

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
