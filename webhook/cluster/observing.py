"""What a cluster's ResourceSlices and Nodes say of instance types and devices, of lists that were read once."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from neuron.api.nodes import Node
from neuron.api.slice_shapes import Census
from neuron.api.slices import Slice
from neuron.hardware.device_shapes import DeviceShape
from neuron.hardware.instances import Observation
from webhook.cluster.device_traits import TraitCounts
from webhook.cluster.node_types import neuron_kind, with_node
from webhook.cluster.slice_facts import SliceFacts, slice_facts, with_pool


def observe(
    slices: Iterable[Slice], nodes: Iterable[Node]
) -> tuple[Mapping[str, Observation], tuple[DeviceShape, ...]]:
    """Instance types by name, as a webhook that starts now learns them, and the distinct devices.

    Args:
        slices: ResourceSlices of the driver.
        nodes: Nodes; only their labels count.
    """
    pools: defaultdict[str, list[SliceFacts]] = defaultdict(list)
    traits, census = TraitCounts(), Census()
    seen: Mapping[str, Observation] = {}
    types: set[str] = set()
    for item in slices:
        facts = slice_facts(item)
        if facts is None:
            continue
        pools[facts.pool].append(facts)
        census.replace(None, facts.shapes)
        types |= set(traits.replace((), facts.traits))
    for pool in pools.values():
        seen = with_pool(seen, pool)
    seen = traits.observed(seen, types)
    for node in nodes:
        kind = neuron_kind(node)
        if kind is not None:
            seen = with_node(seen, kind)
    return seen, census.shapes()
