"""A view of files and of the objects of a cluster that were read once, for decisions about them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import structs

from commands.cluster.listing import Object
from commands.objects.file_view import FileView
from commands.objects.manifests import Manifest
from neuron.api.claim_specs import ClassSpec
from neuron.api.nodes import Node
from neuron.api.slice_shapes import Census
from neuron.api.slices import Slice
from neuron.demand.pools import Supply
from neuron.hardware.device_shapes import DeviceShape
from neuron.hardware.instances import Observation
from runtime.api_server import Resource
from webhook.cluster.device_traits import TraitCounts
from webhook.cluster.node_types import NodeKind, neuron_kind, with_node
from webhook.cluster.slice_facts import SliceFacts, slice_facts, with_pool
from webhook.cluster.supplies import SupplyIndex


class ObjectsView(FileView):
    """A `ServerView` of manifests; with a cluster, also of its slices and Nodes."""

    def __init__(
        self,
        found: Sequence[Manifest],
        slices: Iterable[Slice] = (),
        nodes: Iterable[Node] = (),
        *,
        live: bool = False,
        kubernetes: str = "",
        unknown_pools: str = "",
    ) -> None:
        """Prepare.

        Args:
            found: objects; of two with one name, the later one counts.
            slices: ResourceSlices of the driver.
            live: whether `found` has all DeviceClasses of a cluster.
            kubernetes: version of the cluster's API server; empty: not known.
            unknown_pools: why the pools of the cluster are not known; empty if they are.
        """
        super().__init__(found, None)
        kinds = [kind for kind in map(neuron_kind, nodes) if kind is not None]
        self._observations, self._shapes = _observe(slices, kinds)
        self._nodes = SupplyIndex()
        for kind in kinds:
            self._nodes.node_changed(None, kind)
        self._unknown_pools = unknown_pools
        self._complete = live
        self._kubernetes = kubernetes

    def kubernetes_version(self) -> str:
        """That of the cluster's API server."""
        return self._kubernetes

    def observations(self) -> Mapping[str, Observation]:
        """Instance types of the cluster's slices and Nodes."""
        return self._observations

    def supply(self) -> Supply:
        """The pools, and the Nodes of the cluster."""
        return super().supply().over(structs.replace(self._nodes.supply, problem=self._unknown_pools))

    def device_shapes(self) -> Sequence[DeviceShape]:
        """The distinct devices of the cluster."""
        return self._shapes

    def device_classes(self) -> Mapping[str, ClassSpec] | None:
        """All DeviceClasses; None if they are not known."""
        return self.file_classes() if self._complete else None


def live_manifest(item: Object, resource: Resource, kind: str) -> Manifest:
    """An object of a list or answer of the API server, whose items have no kind."""
    version = f"{resource.group}/{resource.version}" if resource.group else resource.version
    metadata = item.get("metadata") or {}
    data = {"apiVersion": version, "kind": kind, **item}
    namespace, name = str(metadata.get("namespace") or ""), str(metadata.get("name") or "")
    return Manifest((), data, resource.group, kind, namespace, namespace, name)


def _observe(
    slices: Iterable[Slice], kinds: Iterable[NodeKind]
) -> tuple[Mapping[str, Observation], tuple[DeviceShape, ...]]:
    """Instance types by name, as a webhook that starts now learns them, and the distinct devices.

    Args:
        slices: ResourceSlices of the driver.
        kinds: of the Nodes.
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
    for kind in kinds:
        seen = with_node(seen, kind)
    return seen, census.shapes()
