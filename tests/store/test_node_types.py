"""Instance types by the labels of Nodes."""

import json
import time
import tracemalloc
from typing import Any

import pytest

from cluster.bounded_objects import KEPT
from cluster.collections import Watches
from cluster.kinds.nodes import NodeKind, project_node, with_node, with_types
from cluster.resources import NODE_CLASSES, NODE_POOLS, NODES
from conversion.asks.conversion_context import ConversionOptions, conversion_context
from conversion.claims.pools import StaticNode
from neuron.hardware.instances import Catalogue, Observation
from runtime.answers import read_event
from runtime.api_server import RESOURCE_GROUP, Resource
from tests.support.timing import assert_below

TYPE = "node.kubernetes.io/instance-type"
BETA = "beta.kubernetes.io/instance-type"
SLICES = Resource(RESOURCE_GROUP, "v1", "resourceslices")


def node(name: str, instance_type: str | None = None, label: str = TYPE, **more: Any) -> dict[str, Any]:
    labels = {"kubernetes.io/hostname": name, **({} if instance_type is None else {label: instance_type})}
    return {"metadata": {"name": name, "labels": labels, **more}}


def pooled(name: str, **labels: str) -> dict[str, Any]:
    item = node(name, "trn2.48xlarge")
    item["metadata"]["labels"] |= labels
    return item


def kept(instance_type: str, label: str = TYPE) -> NodeKind:
    return NodeKind(instance_type, labels=((label, instance_type),))


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (node("a", "trn2.48xlarge"), kept("trn2.48xlarge")),
        (node("a", "inf2.xlarge", BETA), kept("inf2.xlarge", BETA)),
        (node("a", "ml.trn1.32xlarge"), kept("ml.trn1.32xlarge")),
        (node("a", "trn4.96xlarge"), kept("trn4.96xlarge")),
        (pooled("a", **{"karpenter.sh/nodepool": "p"}), NodeKind("trn2.48xlarge", pooled=True)),
        (pooled("a", **{"karpenter.sh/provisioner-name": "p"}), NodeKind("trn2.48xlarge", pooled=True)),
        (pooled("a", **{"eks.amazonaws.com/compute-type": "auto"}), NodeKind("trn2.48xlarge", pooled=True)),
        (
            pooled("a", **{"eks.amazonaws.com/compute-type": "auto", "karpenter.sh/nodepool": "p"}),
            NodeKind("trn2.48xlarge", pooled=True),
        ),
        (
            pooled("a", **{"eks.amazonaws.com/compute-type": "hybrid"}),
            NodeKind("trn2.48xlarge", labels=(("eks.amazonaws.com/compute-type", "hybrid"), (TYPE, "trn2.48xlarge"))),
        ),
        (node("a", "m5.large"), None),
        (node("a", "inf"), None),
        (node("a", "trn2" + "x" * 64), None),
        (node("a", "trn2 48xlarge"), None),
        (node("a"), None),
        ({"metadata": {"name": "a"}}, None),
    ],
)
def test_the_instance_type_of_a_node_is_read(item: dict[str, Any], expected: NodeKind | None) -> None:
    assert project_node(item) == expected


def test_nodes_of_one_type_share_its_name() -> None:
    first, second = (project_node(json.loads(json.dumps(node(name, "trn2.48xlarge")))) for name in "ab")
    assert first is second


class UncalledServer:
    """An API server that is not called."""

    async def request(self, *_: object, **__: object) -> bytes:
        raise AssertionError

    def stream(self, *_: object, **__: object) -> Any:
        raise AssertionError


@pytest.fixture
def view() -> Watches:
    return Watches(UncalledServer())


def tell(view: Watches, item: dict[str, Any], event: str = "MODIFIED", resource: Resource = NODES) -> None:
    (cache,) = (cache for cache in view.caches if cache.resource == resource)
    cache.observe(event, item)


def slice_of(instance_type: str, devices: int) -> dict[str, Any]:
    attributes = {"instanceType": {"string": instance_type}}
    published = [{"name": f"neuron-device-{number}", "attributes": attributes} for number in range(devices)]
    spec = {"driver": "neuron.aws.com", "pool": {"name": "a", "generation": 1}, "devices": published}
    return {"metadata": {"name": "a"}, "spec": spec}


def test_types_are_remembered_after_their_nodes_are_deleted(view: Watches) -> None:
    tell(view, node("a", "inf2.48xlarge"))
    tell(view, node("a", "inf2.48xlarge"), "DELETED")
    assert view.store.observations() == {"inf2.48xlarge": Observation(0, labels=("inf2.48xlarge",))}


def test_the_version_grows_with_a_new_type_only(view: Watches) -> None:
    for name, instance_type in (("a", "inf2.xlarge"), ("b", "inf2.xlarge"), ("c", "m5.large"), ("d", "ml.inf2.xlarge")):
        tell(view, node(name, instance_type))
    assert view.store.version == 4  # Twice a type: what was seen of it, and the nodes that there are.
    assert view.store.observations() == {"inf2.xlarge": Observation(0, labels=("inf2.xlarge", "ml.inf2.xlarge"))}


@pytest.mark.parametrize("nodes_first", [True, False])
def test_nodes_and_slices_of_one_type_add_up(view: Watches, nodes_first: bool) -> None:
    steps = [
        lambda: tell(view, node("a", "trn1.32xlarge")),
        lambda: tell(view, slice_of("trn1.32xlarge", 16), resource=SLICES),
    ]
    for step in steps if nodes_first else reversed(steps):
        step()
    seen = Observation(16, labels=("trn1.32xlarge",), windows=False)  # The devices of these slices have no groups.
    assert view.store.observations() == {"trn1.32xlarge": seen}


def test_the_number_of_types_is_bounded() -> None:
    seen: Any = {}
    for number in range(KEPT.types + 10):
        seen = with_node(seen, NodeKind(f"trn2.{number}xlarge"))
    assert len(seen) == KEPT.types
    assert with_node(seen, NodeKind("trn2.0xlarge")) is seen
    assert with_node(seen, NodeKind("ml.trn2.0xlarge"))["trn2.0xlarge"].labels == (
        "ml.trn2.0xlarge",
        "trn2.0xlarge",
    )


def node_pool(name: str, replicas: int | None = None) -> dict[str, Any]:
    requirement = {"key": TYPE, "operator": "In", "values": ["trn2.48xlarge"]}
    spec = {"template": {"spec": {"requirements": [requirement]}}, "replicas": replicas}
    return {"metadata": {"name": name}, "spec": spec}


def test_pools_are_known_while_they_exist(view: Watches) -> None:
    for item in (node_pool("fixed", 2), node_pool("dynamic")):
        tell(view, item, resource=NODE_POOLS)
    assert [(pool.name, pool.replicas) for pool in view.store.supply().pools] == [("dynamic", None), ("fixed", 2)]
    version, supply = view.store.version, view.store.supply()
    item = node_pool("fixed", 2)
    item["status"] = {"resources": {"nodes": "2"}}
    tell(view, item, resource=NODE_POOLS)
    assert (view.store.version, view.store.supply() is supply) == (version, True)
    tell(view, node_pool("fixed", 2), "DELETED", resource=NODE_POOLS)
    assert [pool.name for pool in view.store.supply().pools] == ["dynamic"]
    assert view.store.version == version + 1


def test_zones_of_node_classes_are_known(view: Watches) -> None:
    item = {"metadata": {"name": "neuron"}, "status": {"subnets": [{"id": "a", "zone": "b"}, {"id": "c", "zone": "a"}]}}
    tell(view, item, resource=NODE_CLASSES)
    assert view.store.supply().zones == (("neuron", ("a", "b")),)


def test_nodes_without_a_pool_are_known_while_they_exist(view: Watches) -> None:
    labels = {"eks.amazonaws.com/nodegroup": "group"}
    tell(view, pooled("a", **labels))
    tell(view, pooled("b", **labels))
    version = view.store.version
    expected = StaticNode("trn2.48xlarge", (("eks.amazonaws.com/nodegroup", "group"), (TYPE, "trn2.48xlarge")))
    assert view.store.supply().nodes == {expected}
    tell(view, pooled("a", **labels), "DELETED")
    assert (view.store.supply().nodes, view.store.version) == ({expected}, version)
    tell(view, pooled("b", **labels), "DELETED")
    assert (view.store.supply().nodes, view.store.version) == (frozenset(), version + 1)


def test_nodes_of_pools_are_not_kept(view: Watches) -> None:
    tell(view, pooled("a", **{"karpenter.sh/nodepool": "neuron"}))
    assert view.store.supply().nodes == frozenset()
    assert view.store.observations()["trn2.48xlarge"].pooled
    tell(view, pooled("b"))
    assert not view.store.observations()["trn2.48xlarge"].pooled


def test_distinct_nodes_are_bounded(view: Watches) -> None:
    for number in range(KEPT.nodes + 1):
        tell(view, pooled(f"n{number}", group=f"{number:04}"))
    assert (len(view.store.supply().nodes), view.store.supply().unlisted) == (KEPT.nodes, True)
    tell(view, pooled("n0", group="0000"), "DELETED")
    assert (len(view.store.supply().nodes), view.store.supply().unlisted) == (KEPT.nodes, False)


def test_pools_are_unknown_until_they_are_listed(view: Watches) -> None:
    assert view.store.supply().problem == "the list of nodes is not complete yet"
    version = view.store.version
    for cache in view.caches:
        cache._opened()
    assert (view.store.supply().problem, view.store.version > version) == ("", True)


def test_a_pool_that_cannot_be_read_is_said(view: Watches) -> None:
    for cache in view.caches:
        cache.synced.set()
    tell(view, {"metadata": {"name": "odd"}, "spec": {"replicas": "two"}}, resource=NODE_POOLS)
    assert (
        view.store.supply().problem
        == "NodePool odd cannot be read: Expected `int | null`, got `str` - at `$.spec.replicas`"
    )


def test_nodes_decide_families(view: Watches) -> None:
    tell(view, node("a", "inf2.48xlarge"))
    context = conversion_context(ConversionOptions(families=("trn1",)), Catalogue(), view.store)
    assert context.families.seen == ("inf2",)
    assert context.label_values(["inf2.48xlarge", "trn1.2xlarge"]) == ("inf2.48xlarge", "trn1.2xlarge")


def test_labels_of_hyperpod_are_used_unchanged(view: Watches) -> None:
    tell(view, node("a", "ml.trn1.32xlarge"))
    context = conversion_context(ConversionOptions(), Catalogue(), view.store)
    assert context.families.seen == ("trn1",)
    values = context.label_values(["trn1.32xlarge", "trn1.2xlarge"])
    assert values == ("ml.trn1.32xlarge", "trn1.2xlarge", "ml.trn1.2xlarge")


def test_a_type_that_is_not_released_counts_if_a_node_has_it(view: Watches) -> None:
    entry = Catalogue().get("trn3-dev0.48xlarge")
    assert entry is not None
    assert not entry.released
    tell(view, node("a", "trn3-dev0.48xlarge"))
    seen = conversion_context(ConversionOptions(), Catalogue(), view.store).catalogue.get("trn3-dev0.48xlarge")
    assert seen is not None
    assert (seen.released, seen.devices) == (True, 16)


def test_nodes_are_not_listed_without_the_watch() -> None:
    assert NODES not in {cache.resource for cache in Watches(UncalledServer(), nodes=False).caches}


# --- five thousand nodes ----------------------------------------------------------------------------------------

MANY = 5_000


def metadata_of(number: int) -> dict[str, Any]:
    """Metadata about as large as that of a node on EKS: some 40 labels, annotations, managed fields of two managers."""
    labels = {f"example.com/label-{index}": f"value-{index}" for index in range(40)}
    fields = {f"f:field-{index}": {"f:x": {}, "f:y": {}} for index in range(40)}
    managed = [{"manager": manager, "operation": "Update", "fieldsV1": fields} for manager in ("kubelet", "cloud")]
    instance_type = "trn2.48xlarge" if number % 2 else "inf2.48xlarge"
    item = node(f"ip-10-0-{number // 256}-{number % 256}.ec2.internal", instance_type, managedFields=managed)
    item["metadata"]["labels"] |= labels
    item["metadata"]["uid"] = f"00000000-0000-0000-0000-{number:012d}"
    return item


def test_five_thousand_nodes_take_little_memory_and_time() -> None:
    texts = [json.dumps(metadata_of(number)).encode() for number in range(MANY)]
    assert sum(map(len, texts)) > MANY * 4_000
    view = Watches(UncalledServer())
    (cache,) = (each for each in view.caches if each.resource == NODES)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    begun = time.process_time()
    for text in texts:
        cache._take(*read_event(b'{"type":"ADDED","object":' + text + b"}"))
    taken = time.process_time() - begun
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(cache) == MANY
    assert view.store.version == 4  # Twice a type: what was seen of it, and the nodes that there are.
    assert kept / MANY < 600  # bytes: name, key and entry; the type is shared
    assert_below(taken / MANY, 0.002, "seconds, with tracemalloc")


def test_types_that_another_replica_has_seen_are_types_of_nodes_without_a_pool() -> None:
    here = {"trn1.32xlarge": Observation(16, labels=("trn1.32xlarge",), pooled=True)}
    told = {"trn1.32xlarge": ("ml.trn1.32xlarge",), "inf2.48xlarge": ["inf2.48xlarge", "odd"], "m5.large": ["m5.large"]}
    assert with_types(here, told) == {
        "trn1.32xlarge": Observation(16, labels=("ml.trn1.32xlarge", "trn1.32xlarge")),
        "inf2.48xlarge": Observation(0, labels=("inf2.48xlarge",)),
    }


def test_the_types_of_another_replica_are_bounded() -> None:
    many = {f"trn{number}.32xlarge": () for number in range(9)} | {f"inf1.{number}xlarge": () for number in range(999)}
    assert len(with_types({}, many)) == KEPT.types
