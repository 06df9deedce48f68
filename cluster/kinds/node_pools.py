"""Collects the pools of autoscalers, and the nodes that no pool made, into a `Supply`. Does no I/O."""

from collections import Counter

from cluster.bounded_objects import KEPT
from cluster.kinds.nodes import NodeKind
from conversion.claims.pools import NO_SUPPLY, StaticNode, Supply
from neuron.api.node_pools import Described, Pool


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
