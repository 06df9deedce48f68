"""Another driver of our name on the node, such as AWS's: its slices are in the same pool.

Both would replace each other's slices without end: every change makes the other's generation obsolete.
"""

import dataclasses
from collections.abc import Collection, Iterable
from typing import Final

from kubeletplugin.changes import Changing
from kubeletplugin.clock import Clock
from kubeletplugin.publish.slices import slice_name

LOOK_SECONDS: Final = 5.0
"""How often sockets are looked at while another driver is on the node."""
_PROBE_SECONDS: Final = 300.0
"""How long slices without a socket stay that came back after their deletion."""
_MAX_SLICES: Final = 1000
"""`slice_name` numbers slices with three digits."""


@dataclasses.dataclass(frozen=True, slots=True)
class Served:
    """Registration sockets of our driver's name that other processes serve.

    Attributes:
        names: of all; some may be of other instances of this driver, during an upgrade.
        other: of those that no instance of this driver makes.
    """

    names: tuple[str, ...] = ()
    other: tuple[str, ...] = ()


class OtherDriver(Changing):
    """Whether another driver of our name publishes on the node.

    Attributes:
        evidence: what shows it, for people; empty without another driver.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.evidence = ""
        self._clock = clock
        self._removed_at = float("-inf")
        self._left_until = float("-inf")

    def look(self, node: str, slices: Iterable[str], served: Served) -> frozenset[str]:
        """Decide by the names of the node's slices and by sockets; returns the names of slices that are not ours.

        Slices belong to the Node and outlast their driver. So those of which nobody serves a socket are removed, unless
        they come back.
        """
        ours = _own_names(node)
        foreign = frozenset(name for name in slices if name not in ours)
        now = self._clock.monotonic()
        alive = bool(served.names) or now < self._left_until
        if foreign and not alive and now - self._removed_at < _PROBE_SECONDS:
            alive, self._left_until = True, now + _PROBE_SECONDS
        evidence = []
        if foreign and alive:
            evidence.append(f"ResourceSlices {', '.join(sorted(foreign)[:3])}")
        if served.other or evidence:
            evidence += [f"the registration socket {name}" for name in served.other or served.names]
        self._tell(" and ".join(evidence))
        return foreign

    def removed(self) -> None:
        """Slices of another driver were deleted, because no driver seemed to serve them."""
        self._removed_at = self._clock.monotonic()

    def _tell(self, evidence: str) -> None:
        if evidence != self.evidence:
            self.evidence = evidence
            self._count_change()


def _own_names(node: str) -> Collection[str]:
    return {slice_name(node, number) for number in range(_MAX_SLICES)}
