"""Cordoned devices: an administrator keeps new claims off them.

Where the API server serves DeviceTaintRules, a rule taints the devices. Elsewhere an annotation of the Node names them,
and the driver taints them, or does not publish them where the cluster keeps no taints.
"""

import dataclasses
from collections.abc import Iterable
from typing import Final

EVERY: Final = "*"
"""Value of the annotation for every device of the node."""

_MOST: Final = 256
"""Names that are read of one annotation; a node has at most 64 devices."""


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


def read(value: str | None) -> Cordon:
    """The cordon that an annotation says; None: the Node has no such annotation."""
    words = [word for part in (value or "").split(",", _MOST)[:_MOST] if (word := part.strip())]
    return _cordon((word for word in words if word != EVERY), node=EVERY in words)


def annotation(cordon: Cordon) -> str | None:
    """The annotation that says it; None: without one."""
    return ",".join([EVERY] * cordon.node + list(cordon.devices)) or None


def _cordon(devices: Iterable[str], *, node: bool) -> Cordon:
    return Cordon(node, tuple(sorted(set(devices))))
