"""Chooses the nodes to draw."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Final

from commands.devices.devices import DeviceMap, NodeMap

_KEY: Final = r"[A-Za-z0-9._/-]+"
_SET: Final = re.compile(rf"({_KEY})\s+(in|notin)\s*\(([^()]*)\)")
_EQUAL: Final = re.compile(rf"({_KEY})\s*(==|=|!=)\s*([A-Za-z0-9._-]*)")
_EXISTS: Final = re.compile(rf"(!?)\s*({_KEY})")
_COMMA: Final = re.compile(r",(?![^(]*\))")

Test = Callable[[Mapping[str, str]], bool]


class LabelSelectorError(ValueError):
    """The label selector cannot be read; the message has the part."""


@dataclasses.dataclass(frozen=True, slots=True)
class Filter:
    """Conditions that all have to hold; the defaults admit every node.

    Attributes:
        names: of nodes; empty: any.
        instance_type: or family.
        namespace: a claim of this namespace holds a device.
        claim: a claim or pod of this name holds a device.
        free: that many connected devices are free for a pod without tolerations of its own.
        tolerated: keys of taints that the pod tolerates, for `free`.
        attention: it has a faulty device, or takes no new pods.
    """

    names: frozenset[str] = frozenset()
    instance_type: str = ""
    labels: Test = lambda _: True
    namespace: str = ""
    claim: str = ""
    free: int = 0
    tolerated: frozenset[str] = frozenset()
    attention: bool = False

    def admits(self, node: NodeMap) -> bool:
        family = node.instance_type.partition(".")[0]
        return (
            (not self.names or node.name in self.names)
            and (not self.instance_type or self.instance_type in (node.instance_type, family))
            and self.labels(node.labels)
            and (not self.namespace or any(each.namespace == self.namespace for each in node.holdings))
            and (not self.claim or any(self.claim in (each.claim, *each.pods, *each.groups) for each in node.holdings))
            and (not self.free or self._takes(node))
            and (not self.attention or _needs_attention(node))
        )

    def _takes(self, node: NodeMap) -> bool:
        return node.open and self.tolerated.issuperset(node.taints) and len(node.largest_free) >= self.free


def _needs_attention(node: NodeMap) -> bool:
    return not (node.open or node.on_plugin) or any(device.fault for device in node.devices)


def apply(chosen: Filter, found: DeviceMap) -> DeviceMap:
    """The map with the admitted nodes only."""
    nodes = tuple(filter(chosen.admits, found.nodes))
    return dataclasses.replace(found, nodes=nodes, left_out=found.left_out + len(found.nodes) - len(nodes))


def selector(text: str) -> Test:
    """A label selector as kubectl's `-l`: `a=b`, `a!=b`, `a`, `!a`, `a in (b, c)`, `a notin (b)`, joined by commas.

    Raises:
        SelectorError: a part is none of these.
    """
    tests = [_requirement(part.strip()) for part in _COMMA.split(text)]
    return lambda labels: all(test(labels) for test in tests)


def _requirement(part: str) -> Test:
    if match := _SET.fullmatch(part):
        key, operator, listed = match.groups()
        values = {value.strip() for value in listed.split(",")}
        inside = operator == "in"
        # As in Kubernetes, notin admits objects without the label.
        return lambda labels: (labels.get(key) in values) if inside else (labels.get(key) not in values)
    if match := _EQUAL.fullmatch(part):
        key, operator, value = match.groups()
        return lambda labels: (labels.get(key) == value) is (operator != "!=")
    if match := _EXISTS.fullmatch(part):
        absent, key = match.groups()
        return lambda labels: (key in labels) is not bool(absent)
    raise LabelSelectorError(
        f"{part!r} is not a part of a label selector. Allowed: key=value, key!=value, key, !key, key in (a, b)."
    )
