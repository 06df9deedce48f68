"""The same objects, read by watches, by lists and by commands: every answer of the store is the same."""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from cluster import from_files
from cluster.kinds.nodes import neuron_kind
from cluster.kinds.resource_slices import project_slice
from cluster.resources import RESOURCE_CLAIM_TEMPLATES
from cluster.store import AUTOSCALER, KINDS, NODE, RESOURCE_SLICE, Store
from commands.cluster.reader import ClusterReader
from commands.cluster.snapshot import read_snapshot, read_store, stored
from commands.explain.admission_preview import store_of
from commands.explain.reads import Reads
from neuron.api.nodes import read_node
from runtime.api_server import ClusterUnavailableError, UnreachableError
from runtime.api_transport import Connection, load_configuration
from tests.support.fake_api import FakeApi, answer, eventually, raw
from tests.support.installation import slice_object
from webhook.cluster.kube import connect

TEAMS = ("team", "plain", "odd", "nowhere")
"""Namespaces with settings, with nothing, with objects that no API server would store, and one that does not exist."""

Object = dict[str, Any]


def meta(name: str, namespace: str = "", **fields: Any) -> Object:
    return {"metadata": {"name": name, **({"namespace": namespace} if namespace else {}), **fields}}


def counted_claim(count: int) -> Object:
    exactly = {"deviceClassName": "neuron.aws.com", "count": count}
    return {"devices": {"requests": [{"name": "n", "exactly": exactly}]}}


def device_class(name: str, created: str, resource: str) -> Object:
    return {**meta(name, creationTimestamp=created), "spec": {"extendedResourceName": resource}}


def autoscaler(name: str, mode: str, namespace: str = "team", **spec: Any) -> Object:
    target = {"kind": "Deployment", "name": "serve"}
    return {**meta(name, namespace), "spec": {"targetRef": target, "updatePolicy": {"updateMode": mode}, **spec}}


OBJECTS: Mapping[tuple[str, str, str], list[Object]] = {
    ("autoscaling.k8s.io", "v1", "VerticalPodAutoscaler"): [
        autoscaler("evicts", "Recreate"),
        autoscaler("sizes", "InPlaceOrRecreate"),
        autoscaler("malformed", "InPlace", "odd", targetRef=3),
        {**meta("empty", "odd"), "spec": None},
    ],
    ("", "v1", "Namespace"): [
        meta(
            "team",
            labels={"kubernetes.io/metadata.name": "team", "env": "dev"},
            annotations={"neuron.aws.com/convert": "off", "other.example/x": "y"},
        ),
        meta("plain", labels={"kubernetes.io/metadata.name": "plain"}),
        meta("odd", labels={"big": "x" * 20_000}, annotations={"neuron.aws.com/lnc": "9" * 300}),
    ],
    ("", "v1", "ResourceQuota"): [
        {**meta("cpu", "team"), "spec": {"hard": {"requests.cpu": "4"}}},
        {**meta("devices", "team"), "spec": {"hard": {"requests.aws.amazon.com/neuron": "16"}}},
        {**meta("classes", "team"), "spec": {"hard": {"neuron.aws.com.deviceclass.resource.k8s.io/devices": "8"}}},
        {**meta("malformed", "odd"), "spec": {"hard": {"requests.aws.amazon.com/neuron": "many"}}},
    ],
    ("", "v1", "LimitRange"): [
        {**meta("bounds", "team"), "spec": {"limits": [{"type": "Container", "max": {"aws.amazon.com/neuron": "4"}}]}},
        {**meta("cpu", "plain"), "spec": {"limits": [{"type": "Container", "max": {"cpu": "4"}}]}},
    ],
    ("resource.k8s.io", "v1", "DeviceClass"): [
        device_class("older", "2026-01-01T00:00:00Z", "aws.amazon.com/neuron"),
        device_class("newest", "2026-03-01T00:00:00Z", "aws.amazon.com/neuron"),
        device_class("last", "2026-02-01T00:00:00Z", "aws.amazon.com/neuron"),
        {**meta("malformed"), "spec": {"selectors": "none"}},
    ],
    ("resource.k8s.io", "v1", "ResourceClaimTemplate"): [
        {**meta("four", "team"), "spec": {"spec": counted_claim(4)}},
    ],
    ("karpenter.sh", "v1", "NodePool"): [
        {
            **meta("trainium"),
            "spec": {
                "template": {
                    "spec": {
                        "requirements": [
                            {
                                "key": "node.kubernetes.io/instance-type",
                                "operator": "In",
                                "values": ["trn1.32xlarge"],
                            }
                        ],
                        "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"},
                    }
                }
            },
        },
    ],
}
NODES = [
    meta("node-1", labels={"node.kubernetes.io/instance-type": "trn2.48xlarge", "kubernetes.io/hostname": "node-1"}),
    meta("node-2", labels={"node.kubernetes.io/instance-type": "m5.large"}),
]
SLICES = [slice_object("node-1"), slice_object("node-3", instance_type="inf2.48xlarge", devices=12)]
PLURALS = {
    "Namespace": "namespaces",
    "ResourceQuota": "resourcequotas",
    "LimitRange": "limitranges",
    "DeviceClass": "deviceclasses",
    "ResourceClaimTemplate": "resourceclaimtemplates",
    "NodePool": "nodepools",
    "VerticalPodAutoscaler": "verticalpodautoscalers",
}


def filled() -> FakeApi:
    api = FakeApi()
    for (_, _, kind), objects in OBJECTS.items():
        for item in objects:
            api.put(PLURALS[kind], item)
    for item in NODES:
        api.put("nodes", item)
    for item in SLICES:
        api.put("resourceslices", item)
    return api


def from_objects() -> Store:
    """A store of objects as `explain` reads them, which has seen all of every kind."""
    store, api = Store(), filled()
    for (group, version, kind), objects in OBJECTS.items():
        for item in objects:
            metadata = item["metadata"]
            stored = api.get(PLURALS[kind], metadata["name"], metadata.get("namespace", ""))
            data = {"apiVersion": f"{group}/{version}".strip("/"), "kind": kind, **stored}
            from_files.take(store, group, kind, metadata.get("namespace", ""), metadata["name"], data)
    for item in SLICES:
        store.put(RESOURCE_SLICE, ("", item["metadata"]["name"]), project_slice(item))
    for item in NODES:
        kept = neuron_kind(read_node(item))
        if kept is not None:
            store.put(NODE, ("", item["metadata"]["name"]), kept)
    for kind in KINDS.values():
        store.complete(kind)
    return store


CLUSTER: Mapping[str, Callable[[Store], object]] = {
    "observations": lambda store: dict(store.observations()),
    "extended_resources": lambda store: dict(store.extended_resources()),
    "class_names": lambda store: store.class_names(),
    "device_classes": lambda store: dict(store.device_classes() or {}),
    "device_shapes": lambda store: sorted(map(repr, store.device_shapes())),
    "supply": lambda store: store.supply(),
}
NAMESPACE: Mapping[str, Callable[[Store, str], object]] = {
    "namespace": lambda store, name: store.namespace(name),
    "namespace_labels": lambda store, name: store.namespace_labels(name),
    "namespace_object": lambda store, name: store.namespace_object(name),
    "quotas": lambda store, name: store.quotas(name),
    "resizers": lambda store, name: store.resizers(name),
    "claim_template": lambda store, name: (store.claim_template(name, "four"), store.claim_template(name, "five")),
    "template_device_classes": lambda store, name: store.template_device_classes(name, "four"),
    "template_ultraserver_mode": lambda store, name: store.template_ultraserver_mode(name, "four"),
}
APART = {"version", "claim_version", "kubernetes_version", "exist"}
"""Numbers of changes, what only an API server knows, and what is asked from it."""
FILLING = {
    *("change", "put", "drop", "get", "complete", "is_complete", "over", "unlisted_pools", "set_kubernetes_version"),
    *("template", "known_classes", "group_claims", "static_types", "learn_types"),
}
"""What fills a store, and parts of it of which the answers are made."""


def answers(store: Store) -> dict[str, object]:
    found = {name: ask(store) for name, ask in CLUSTER.items()}
    return found | {f"{name} {team}": ask(store, team) for name, ask in NAMESPACE.items() for team in TEAMS}


async def by_commands(api: FakeApi, folder: Path) -> Store:
    """As `report` and `rehearse` read it, which need whole slices, Nodes and DeviceClasses as well."""
    connection = await Connection.open(lambda: load_configuration(api.kubeconfig(folder), None))
    try:
        reader = ClusterReader(connection)
        seen = await read_snapshot(reader, connection.address, with_pods=False)
        return await read_store(reader, connection.address, stored(seen))
    finally:
        await connection.close()


async def by_lists(api: FakeApi, folder: Path) -> Store:
    connection = await Connection.open(lambda: load_configuration(api.kubeconfig(folder), None))
    try:
        return await read_store(ClusterReader(connection), connection.address)
    finally:
        await connection.close()


def test_every_method_of_the_store_is_compared() -> None:
    methods = {name for name, _ in inspect.getmembers(Store) if not name.startswith("_")}
    assert methods - FILLING == CLUSTER.keys() | NAMESPACE.keys() | APART


async def test_watches_lists_and_files_give_the_same_answers(tmp_path: Path) -> None:
    async with filled().serve() as api:
        async with connect(api.kubeconfig(tmp_path)) as world:
            await eventually(lambda: world.ready()[0])
            watched = answers(world.view)
        listed = answers(await by_lists(api, tmp_path))
        once = answers(await by_commands(api, tmp_path))
        assert [len(api.calls("list", plural)) for plural in ("resourceslices", "deviceclasses")] == [3, 3]
    assert listed == watched
    assert once == watched
    assert answers(from_objects()) == watched


async def test_the_answers_are_those_of_the_objects(tmp_path: Path) -> None:
    async with filled().serve() as api:
        store = await by_lists(api, tmp_path)
    assert store.kubernetes_version() == "v1.37.0"
    assert store.extended_resources() == {"aws.amazon.com/neuron": "newest"}
    assert [store.quotas(name) for name in TEAMS] == [store.quotas("team"), {}, {}, {}]
    assert store.quotas("team")
    assert store.namespace_labels("nowhere") is None
    assert store.namespace_object("nowhere") is None, "all Namespaces were seen, and it is none of them"
    assert [pool.name for pool in store.supply().pools] == ["trainium"]
    assert [store.resizers(name) for name in TEAMS] == [
        {("Deployment", "serve"): "sizes"},
        {},
        {},
        {},
    ]


@pytest.mark.parametrize(
    ("code", "reason", "unseen"),
    [(404, "NotFound", False), (403, "Forbidden", True)],
    ids=["not installed", "not allowed"],
)
async def test_a_store_does_without_autoscalers(tmp_path: Path, code: int, reason: str, *, unseen: bool) -> None:
    async with filled().serve() as api:
        api.fault("list", "verticalpodautoscalers", answer(code, reason, "no"), times=99)
        store = await by_lists(api, tmp_path)
        async with connect(api.kubeconfig(tmp_path)) as world:
            await eventually(lambda: world.ready()[0])
            assert world.view.resizers("team") == {}
    assert store.resizers("team") == {}
    assert ("verticalpodautoscalers" in store.unseen) == unseen
    assert store.supply().problem == ""


def test_autoscalers_of_files_are_added_to_those_of_the_cluster_and_can_be_removed() -> None:
    below = Store()
    below.put(AUTOSCALER, ("team", "sizes"), ("Deployment", "serve"))
    store = Store(below)
    store.put(AUTOSCALER, ("team", "mine"), ("Deployment", "serve"))
    store.put(AUTOSCALER, ("team", "others"), ("Job", "train"))
    assert store.resizers("team") == {("Deployment", "serve"): "mine", ("Job", "train"): "others"}
    store.drop(AUTOSCALER, ("team", "mine"))
    store.drop(AUTOSCALER, ("team", "others"))
    assert store.resizers("team") == below.resizers("team") == {("Deployment", "serve"): "sizes"}
    assert not store.supply().problem


def test_what_was_not_seen_is_not_none() -> None:
    store = Store()
    assert store.quotas("team") is None
    assert store.class_names() is None
    assert store.device_classes() is None
    assert store.namespace_object("nowhere") is not None, "its name and the label that every Namespace has"


def test_an_overlay_adds_to_what_is_below() -> None:
    store = Store(from_objects())
    applied = device_class("applied", "", "aws.amazon.com/neuron")
    from_files.take(store, "resource.k8s.io", "DeviceClass", "", "applied", applied)
    quota = {**meta("small", "team"), "spec": {"hard": {"requests.aws.amazon.com/neuron": "2"}}}
    from_files.take(store, "", "ResourceQuota", "team", "small", quota)
    assert store.extended_resources() == {"aws.amazon.com/neuron": "applied"}, "it will be the newest"
    assert store.quotas("team") == {**(from_objects().quotas("team") or {}), "requests.aws.amazon.com/neuron": 2}
    assert store.quotas("plain") == {}
    assert (store.claim_template("team", "four"), store.claim_template("team", "five")) == (
        from_objects().claim_template("team", "four"),
        None,
    )


# --- lists that fail ------------------------------------------------------------------------------------------------


async def test_without_the_right_to_list_nodes_the_pools_are_not_known(tmp_path: Path) -> None:
    api = filled()
    api.forbid("list", "nodes")
    async with api.serve():
        store = await by_lists(api, tmp_path)
    assert "resources: [nodes], verbs: [list, watch]" in store.supply().problem
    assert store.class_names() is not None


async def test_without_the_right_to_list_slices_there_is_no_store(tmp_path: Path) -> None:
    api = filled()
    api.forbid("list", "resourceslices", "resource.k8s.io")
    async with api.serve():
        with pytest.raises(ClusterUnavailableError, match=r"cannot be used: not allowed to list resourceslices"):
            await by_lists(api, tmp_path)


async def test_a_cluster_without_karpenter_has_no_pools(tmp_path: Path) -> None:
    api = filled()
    api.unserved = {"karpenter.sh", "karpenter.k8s.aws", "cluster.x-k8s.io"}
    async with api.serve():
        store = await by_lists(api, tmp_path)
    assert (store.supply().pools, store.supply().problem) == ((), "")


async def by_explain(api: FakeApi, folder: Path) -> Store:
    """As `explain` reads it, which needs the objects of some namespaces only."""
    connection = await Connection.open(lambda: load_configuration(api.kubeconfig(folder), None))
    try:
        live = await Reads(ClusterReader(connection), connection.address).live(["team"])
        return store_of(live.objects, {**stored(live.snapshot), **live.pools}, unknown_pools=live.unknown_pools)
    finally:
        await connection.close()


@pytest.mark.parametrize("unserved", [set[str](), {"karpenter.sh", "karpenter.k8s.aws", "cluster.x-k8s.io"}])
async def test_explain_reads_the_pools_as_all_others_do(unserved: set[str], tmp_path: Path) -> None:
    api = filled()
    api.unserved = unserved
    async with api.serve():
        explained, listed = await by_explain(api, tmp_path), await by_lists(api, tmp_path)
    assert explained.supply() == listed.supply()
    assert bool(listed.supply().pools) is not bool(unserved)


async def test_explain_says_why_pools_are_not_known(tmp_path: Path) -> None:
    api = filled()
    api.forbid("list", "nodepools", "karpenter.sh")
    async with api.serve():
        store = await by_explain(api, tmp_path)
    assert store.supply().problem == "you are not allowed to list nodepools.karpenter.sh."


async def test_a_list_that_expires_begins_again(tmp_path: Path) -> None:
    api = filled()
    for number in range(300):
        api.put("namespaces", meta(f"n-{number}"))
    gone = b'{"kind": "Status", "reason": "Expired", "message": "The provided continue parameter is too old"}'
    api.fault("continue", "namespaces", raw(410, gone))
    async with api.serve():
        store = await by_lists(api, tmp_path)
    assert [store.namespace_labels(name) for name in ("n-0", "n-299", "nowhere")] == [{}, {}, None]


async def test_claims_are_asked_for_and_templates_are_known(tmp_path: Path) -> None:
    async with filled().serve() as api:
        connection = await Connection.open(lambda: load_configuration(api.kubeconfig(tmp_path), None))
        store = await read_store(ClusterReader(connection), connection.address)
        api.put("resourceclaims", {**meta("mine", "team"), "spec": counted_claim(1)})
        found = await asyncio.gather(
            store.exist("ResourceClaim", "team", ["mine", "yours"]),
            store.exist("ResourceClaimTemplate", "team", ["four", "five"]),
        )
        await connection.close()
    assert found == [{"mine": True, "yours": False}, {"four": True, "five": False}]
    assert [call.query for call in api.calls("get", RESOURCE_CLAIM_TEMPLATES.plural)] == [{}], "only the unknown one"


async def test_a_server_that_does_not_listen_is_told_at_once(tmp_path: Path) -> None:
    api = FakeApi()
    api.url = "http://127.0.0.1:1"
    with pytest.raises(UnreachableError, match=r"cannot connect to http://127.0.0.1:1"):
        await by_lists(api, tmp_path)
