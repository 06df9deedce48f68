"""Finds requests whose devices nothing keeps connected, and says which constraint or selector connects them.

Devices are connected if they are a whole node, one published group, or consecutive on a ring or chain (Inf1, Inf2).
"""

import functools
import operator
import re
from collections.abc import Iterable, Sequence
from typing import Final

from neuron import names
from neuron.claim_specs import ClaimSpec, Constraint, Leaf
from neuron.configs import covers
from neuron.device_shapes import qualified
from neuron.findings import Finding, warning
from neuron.instances import DEFAULT_FAMILIES, Catalogue, InstanceType
from neuron.selection import DeviceIndex
from neuron.serving import nearest

_GROUP: Final = re.compile(
    rf"resource\.aws\.com/devicegroup([0-9]{{1,4}})_id|{re.escape(names.DRIVER)}/window([0-9]{{1,3}})_[0-9]{{1,3}}",
    re.ASCII,
)
_WINDOW: Final = f"{names.DRIVER}/window"
_DEVICE_ID: Final = qualified("deviceId")
_UNKNOWN_WHOLE: Final = (4, 16)
"""Devices of the Trn3 servers (AWS's hardware pages), for types whose number is not published."""
_LONGEST_YAML: Final = 100


@functools.lru_cache(maxsize=256)
def group_size(attribute: str) -> int:
    """How many devices of a node have an equal value of an attribute; 0 unless it is one of a group or window."""
    found = _GROUP.fullmatch(attribute)
    return int(found[1] or found[2]) if found else 0


def connecting(count: int, mask: int, index: DeviceIndex) -> str:
    """The attribute that connects `count` devices of one of the types in a mask; empty if there is none.

    The smallest group with that many devices, and for types whose devices have an order a window of exactly that size.
    """
    ordered = functools.reduce(
        operator.or_, [index.with_attribute(name) for name in index.attributes() if _WINDOW in name], 0
    )
    found = []
    for name in index.attributes():
        size, shapes = group_size(name), mask & index.with_attribute(name)
        if shapes if size == count else size > count and shapes & ~ordered:
            found.append((size, _WINDOW in name, name))
    return min(found, default=(0, False, ""))[2]


def first_devices(count: int) -> str:
    """CEL that selects the first devices of a node."""
    return f"device.attributes['{names.DRIVER}'].deviceId < {count}"


class Connections:
    """Checks the requests of one claim."""

    def __init__(self, claim: ClaimSpec, leaves: Sequence[Leaf], index: DeviceIndex, catalogue: Catalogue) -> None:
        """Args: `leaves` have the shapes that they can match, constraints included."""
        self._leaves = leaves
        self._index = index
        self._catalogue = catalogue
        self._groups = [
            (each, frozenset(each.requests)) for each in claim.constraints if group_size(each.match_attribute)
        ]

    def check(self, leaf: Leaf, sums: Iterable[int]) -> list[Finding]:
        """NEU524 and NEU525 about one request.

        Args:
            leaf: the request.
            sums: numbers of devices that a container can use of it and of other requests.
        """
        count = leaf.devices.count
        if count == 1:
            return []
        capable = [entry for entry in self._likely(leaf.mask) if self._index.devices(leaf.mask, entry.name) >= count]
        loose = [entry for entry in capable if not self._is_connected(leaf, entry, count)]
        if not loose:
            return []
        grouped = [entry for entry in loose if count in entry.groups]
        lines = [entry for entry in loose if entry.line is not None]
        if grouped or len(lines) == len(loose):
            return [self._unconstrained(leaf, (grouped or lines)[0], loose)]
        if any(each in entry.counts for entry in capable for each in sums):
            return []
        entry = next(entry for entry in loose if entry not in lines)
        message = f"{count} devices of {entry.name} are not sure to be connected with each other."
        listed = ", ".join(map(str, entry.counts)) + (" and all devices of the node" if entry.devices is None else "")
        fix = f"Connected counts: {listed}; nearest: {nearest(count, entry.counts)}."
        if lines:
            fix += f" For {lines[0].name}: {self._advice(leaf, lines[0])}"
        return [warning("NEU525", leaf.path, message, fix, str(count))]

    def _likely(self, mask: int) -> tuple[InstanceType, ...]:
        """Types to which the request will probably be allocated: published ones, or else those in common use."""
        admitted = self._index.types(mask)
        published = self._index.types(mask & self._index.published)
        entries = [entry for name in published or admitted if (entry := self._catalogue.get(name)) is not None]
        common = [entry for entry in entries if entry.family in DEFAULT_FAMILIES]
        unselective = len(admitted) == len(self._index.types(self._index.everything))
        return tuple(common if unselective and common and not published else entries)

    def _is_connected(self, leaf: Leaf, entry: InstanceType, count: int) -> bool:
        if count == entry.devices or (entry.devices is None and count in _UNKNOWN_WHOLE):
            return True
        line = entry.line
        if any(line is None or self._fills(each, requests) for each, requests in self._covering(leaf)):
            return True
        if self._index.devices(leaf.mask, entry.name) > count:
            return False
        # Exactly these devices match, so the selectors decide which they are.
        if line is None:
            return any(
                self._index.groups(leaf.mask, names.device_group_attribute(size), entry.name) >= count
                for size in entry.groups
            )
        ids = {
            shape.fixed.get(_DEVICE_ID) for shape in self._index.members(leaf.mask & self._index.of_type(entry.name))
        }
        return any(ids == set(line.window(count, start)) for start in line.starts(count))

    def _covering(self, leaf: Leaf) -> list[tuple[Constraint, frozenset[str]]]:
        reference = leaf.devices.reference
        return [(each, requests) for each, requests in self._groups if covers(requests, reference)]

    def _fills(self, constraint: Constraint, requests: frozenset[str]) -> bool:
        """Whether the requests under a constraint take all devices of the window; `CountRules` reports more."""
        smallest: dict[str, int] = {}
        for leaf in self._leaves:
            if covers(requests, leaf.devices.reference):
                smallest[leaf.request] = min(leaf.devices.count, smallest.get(leaf.request, leaf.devices.count))
        return sum(smallest.values()) >= group_size(constraint.match_attribute)

    def _unconstrained(self, leaf: Leaf, entry: InstanceType, loose: Sequence[InstanceType]) -> Finding:
        """NEU524 with the YAML to add."""
        count = leaf.devices.count
        message = f"nothing keeps the {count} devices of request {leaf.request[:30]} connected."
        fix = self._advice(leaf, entry)
        lacking = [each.name for each in loose if each is not entry and not self._attribute(each, count)]
        if lacking:
            fix += f" This excludes {lacking[0]}, which needs an alternative of its own."
        return warning("NEU524", leaf.path, message, fix, str(count))

    def _advice(self, leaf: Leaf, entry: InstanceType) -> str:
        count = leaf.devices.count
        attribute = self._attribute(entry, count)
        if not attribute:
            # AWS's own driver, and sizes without a window attribute.
            return f"Select neighbours, such as: {first_devices(count)}."
        yaml = f"constraints: [{{requests: [{leaf.devices.reference}], matchAttribute: {attribute}}}]"
        if len(yaml) > _LONGEST_YAML:
            yaml = f"constraints: [{{matchAttribute: {attribute}}}]"
        return f"Add {yaml}"

    def _attribute(self, entry: InstanceType, count: int) -> str:
        """The attribute of groups of that size on a type, as the cluster publishes it; empty if it has none."""
        index = self._index
        shapes = index.of_type(entry.name)
        shapes = shapes & index.published or shapes
        found = [
            name for name in index.attributes() if group_size(name) == count and shapes & index.with_attribute(name)
        ]
        return min(found, key=lambda name: (_WINDOW in name, name), default="")
