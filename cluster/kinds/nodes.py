"""Instance types by the labels of Nodes, from a watch that gets only their metadata.

A cluster that has only the device plugin publishes no ResourceSlices, and its nodes still say what they are. The pools
of autoscalers, and the nodes that no pool made, are a `Supply`.
"""

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from cluster.bounded_objects import KEPT
from conversion.claims.pools import NO_SUPPLY, StaticNode, Supply, is_of_one_node
from neuron import names
from neuron.api.node_pools import Described, Pool
from neuron.api.nodes import Node, read_node
from neuron.hardware.instances import Observation

_NEURON_TYPE: Final = re.compile(rf"({re.escape(names.SAGEMAKER_PREFIX)})?(inf|trn)[0-9][a-z0-9.-]{{0,56}}")


class NodeKind(NamedTuple):
    """What is kept of a Node.

    Attributes:
        label: its instance-type label.
        pooled: whether Karpenter or EKS Auto Mode made it: their pools say what it is.
        labels: of another Node, as those of a `StaticNode`.
    """

    label: str
    pooled: bool = False
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def static(self) -> StaticNode:
        """It as a node that no pool made."""
        return StaticNode(self.label.removeprefix(names.SAGEMAKER_PREFIX), self.labels)


def project_node(item: Mapping[str, object]) -> NodeKind | None:
    """`neuron_kind` of a Node as the API server returns it."""
    return neuron_kind(read_node(item))


def neuron_kind(node: Node) -> NodeKind | None:
    """What is kept of a Node; None if it is no type with Neuron devices."""
    if not _NEURON_TYPE.fullmatch(node.type_label):
        return None
    if node.pool:
        return _kind(node.type_label, pooled=True)
    labels = sorted((key, value) for key, value in node.labels.items() if not is_of_one_node(key))
    return _kind(node.type_label, pooled=False, labels=tuple(labels[: KEPT.node_labels]))


# Thousands of nodes have the same values: one copy is kept.
_kind: Final = functools.lru_cache(maxsize=1024)(NodeKind)


def with_node(observations: Mapping[str, Observation], kind: NodeKind) -> Mapping[str, Observation]:
    """The observations with what is known of a Node; the same mapping if it has nothing new."""
    name = kind.label.removeprefix(names.SAGEMAKER_PREFIX)
    known = observations.get(name, Observation(0))
    if name not in observations and len(observations) >= KEPT.types:
        return observations
    labels = known.labels if kind.label in known.labels else tuple(sorted((*known.labels, kind.label)))
    pooled = kind.pooled and (known.pooled or not known.labels)
    if (labels, pooled) == (known.labels, known.pooled):
        return observations
    return {**observations, name: dataclasses.replace(known, labels=labels, pooled=pooled)}


def with_types(
    observations: Mapping[str, Observation], types: Mapping[str, Sequence[str]]
) -> Mapping[str, Observation]:
    """The observations with types that another replica has seen. Of its Lease only names of Neuron types are taken.

    Args:
        types: the values of Nodes' labels, by type.
    """
    found = dict(observations)
    for name, labels in sorted(types.items()):
        if not _NEURON_TYPE.fullmatch(name) or (name not in found and len(found) >= KEPT.types):
            continue
        known = found.get(name, Observation(0))
        more = {each for each in labels if _NEURON_TYPE.fullmatch(each)}
        found[name] = dataclasses.replace(known, labels=tuple(sorted(more.union(known.labels))), pooled=False)
    return found


class SupplyIndex:
    """A `Supply` that follows objects and Nodes.

    Attributes:
        supply: of what was told; the same object until something changes. Its `problem` is about objects only.
    """

    def __init__(self) -> None:
        self.supply = NO_SUPPLY
        self._described: dict[tuple[str, str, str], Described] = {}
        self._nodes: Counter[StaticNode] = Counter()

    def keep(self, kind: str, namespace: str, name: str, described: Described | None) -> bool:
        """Replace what is known of an object; None: it does not exist. True if the supply has changed."""
        key = (kind, namespace, name)
        if described is None:
            self._described.pop(key, None)
        else:
            self._described[key] = described
        return self._refresh()

    def node_changed(self, before: NodeKind | None, after: NodeKind | None) -> bool:
        """Take in a change of a Node. True if the supply has changed."""
        known = len(self._nodes)
        if before is not None and not before.pooled:
            self._nodes[before.static] -= 1
            if not self._nodes[before.static]:
                del self._nodes[before.static]
        if after is not None and not after.pooled:
            self._nodes[after.static] += 1
        # Most changes are of one more node like another.
        changed = len(self._nodes) != known or (before is not None and after is not None)
        return changed and self._refresh()

    def _refresh(self) -> bool:
        pools, zones, problem = [], [], ""
        for (kind, _, name), described in sorted(self._described.items(), key=lambda each: each[0]):
            if isinstance(described, Pool):
                pools.append(described)
            elif isinstance(described, tuple):
                zones.append((name, described))
            else:
                problem = problem or f"{kind} {name} cannot be read: {described}"
        nodes = sorted(self._nodes)
        unlisted = len(nodes) > KEPT.nodes
        supply = Supply(tuple(pools), tuple(zones), frozenset(nodes[: KEPT.nodes]), unlisted, problem)
        changed = supply != self.supply
        self.supply = supply if changed else self.supply
        return changed
