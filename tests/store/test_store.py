"""The view of a cluster: watch events in, answers out."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.collections import Watches
from cluster.kinds.claim_templates import project_template
from cluster.resources import (
    DEVICE_CLASSES,
    LIMIT_RANGES,
    NAMESPACES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
)
from cluster.store import DEVICE_CLASS, RESOURCE_QUOTA
from conversion.claims.templates import digest
from conversion.facts import NO_FACTS, ClusterView, LegacyQuota, NamespaceFacts
from neuron.hardware.instances import Observation
from runtime.api_server import Resource
from tests.support.answers import UncalledServer
from tests.support.fake_api import FakeApi, eventually

Object = dict[str, Any]

TRN2 = "trn2.48xlarge"
INF2 = "inf2.48xlarge"
NEURON = "aws.amazon.com/neuron"


class WatchedCluster:
    """A cluster that receives objects as from its watches."""

    def __init__(self) -> None:
        watches = Watches(UncalledServer())
        self.view = watches.store
        self.caches = watches.caches
        self._caches = {cache.resource: cache for cache in watches.caches}

    def of(self, resource: Resource, item: Object) -> None:
        self._caches[resource].observe("MODIFIED", item)

    def gone(self, resource: Resource, item: Object) -> None:
        self._caches[resource].observe("DELETED", item)


def seen_with(
    devices: int, groups: tuple[int, ...] = (), *, whole_node: bool = False, counters: bool = False
) -> Observation:
    """Devices that are not shared; they have no windows where they have no groups."""
    return Observation(devices, groups, windows=bool(groups), whole_node=whole_node, counters=counters)


@pytest.fixture
def watched() -> WatchedCluster:
    return WatchedCluster()


def device(number: int, instance_type: str = TRN2, kind: str | None = "neuron_device", **more: Object) -> Object:
    attributes: Object = {"instanceType": {"string": instance_type}, **more}
    if kind is not None:
        attributes["resourceType"] = {"string": kind}
    return {"name": f"neuron-device-{number}", "attributes": attributes}


def device_objects(*numbers: int, instance_type: str = TRN2) -> list[Object]:
    return [device(number, instance_type) for number in numbers]


def group(size: int) -> Object:
    return {f"resource.aws.com/devicegroup{size}_id": {"string": "13713e551cd37c19"}}


OTHER_GROUPS: Object = {"resource.aws.com/devicegroupX_id": {}, "example.com/devicegroup4_id": {}}


def slice_of(name: str, published: list[Object] | None, pool: str = "node", generation: int = 1) -> Object:
    spec = {"driver": "neuron.aws.com", "pool": {"name": pool, "generation": generation}, "devices": published}
    return {"metadata": {"name": name}, "spec": spec}


def class_of(name: str, extended: str | None = NEURON, created: str = "2026-01-01") -> Object:
    spec = {} if extended is None else {"extendedResourceName": extended}
    return {"metadata": {"name": name, "creationTimestamp": f"{created}T00:00:00Z"}, "spec": spec}


def namespace_of(name: str, **annotations: str) -> Object:
    ours = {f"neuron.aws.com/{key}": value for key, value in annotations.items()}
    return {"metadata": {"name": name, "annotations": {"other.example/team": "a", **ours}}}


def quota_of(name: str, *hard: str) -> Object:
    return {"metadata": {"name": name, "namespace": "team"}, "spec": {"hard": dict.fromkeys(hard, "4")}}


Q1, Q2 = LegacyQuota("q1", (NEURON,)), LegacyQuota("q2", (NEURON,))


def limits_of(name: str, **limit: object) -> Object:
    return {"metadata": {"name": name, "namespace": "team"}, "spec": {"limits": [{"type": "Container", **limit}]}}


def template_of(name: str, devices: Mapping[str, Any] | None, **labels: str) -> Object:
    metadata = {"name": name, "namespace": "team", "labels": labels}
    return {"metadata": metadata, "spec": {"metadata": {}, "spec": {"devices": devices} if devices else {}}}


# --- ResourceSlices -------------------------------------------------------------------------------------------


def test_a_cluster_without_slices_observes_nothing(watched: WatchedCluster) -> None:
    view: ClusterView = watched.view
    assert (view.observations(), view.version) == ({}, 0)


def test_slices_of_one_pool_count_together(watched: WatchedCluster) -> None:
    watched.of(RESOURCE_SLICES, slice_of("a", device_objects(*range(10))))
    watched.of(RESOURCE_SLICES, slice_of("b", device_objects(*range(10, 16))))
    assert watched.view.observations() == {TRN2: seen_with(16)}
    assert watched.view.version == 2


def test_the_fullest_node_of_a_type_counts(watched: WatchedCluster) -> None:
    for number, published in enumerate((device_objects(0, 1), device_objects(*range(5)), device_objects(0))):
        watched.of(RESOURCE_SLICES, slice_of(f"s{number}", published, pool=f"node-{number}"))
    assert watched.view.observations() == {TRN2: seen_with(5)}
    assert watched.view.version == 2


def test_observations_stay_when_slices_vanish_or_shrink(watched: WatchedCluster) -> None:
    watched.of(RESOURCE_SLICES, slice_of("a", device_objects(*range(16))))
    watched.of(RESOURCE_SLICES, slice_of("a", device_objects(0)))
    watched.gone(RESOURCE_SLICES, slice_of("a", device_objects(0)))
    assert watched.view.observations() == {TRN2: seen_with(16)}
    assert watched.view.version == 1


def test_only_the_newest_generation_of_a_pool_counts(watched: WatchedCluster) -> None:
    watched.of(RESOURCE_SLICES, slice_of("a", device_objects(*range(8)), generation=1))
    watched.of(RESOURCE_SLICES, slice_of("b", device_objects(*range(8, 12)), generation=2))
    assert watched.view.observations() == {TRN2: seen_with(8)}


def test_a_device_in_two_slices_of_a_pool_counts_once(watched: WatchedCluster) -> None:
    watched.of(RESOURCE_SLICES, slice_of("old name", device_objects(*range(16))))
    watched.of(RESOURCE_SLICES, slice_of("new name", device_objects(*range(16))))
    assert watched.view.observations() == {TRN2: seen_with(16)}


def test_a_slice_that_moves_to_another_pool_leaves_the_first(watched: WatchedCluster) -> None:
    watched.of(RESOURCE_SLICES, slice_of("a", device_objects(*range(4)), pool="one"))
    watched.of(RESOURCE_SLICES, slice_of("a", device_objects(*range(4)), pool="two"))
    watched.of(RESOURCE_SLICES, slice_of("b", device_objects(*range(4, 7)), pool="one"))
    assert watched.view.observations() == {TRN2: seen_with(4)}


def test_types_on_one_node_are_counted_separately(watched: WatchedCluster) -> None:
    watched.of(
        RESOURCE_SLICES, slice_of("a", [*device_objects(0, 1), *device_objects(2, instance_type="trn1.2xlarge")])
    )
    assert watched.view.observations() == {TRN2: seen_with(2), "trn1.2xlarge": seen_with(1)}


@pytest.mark.parametrize(
    ("published", "expected"),
    [
        pytest.param(
            [device(0), device(1, kind="neuron_node")],
            {TRN2: seen_with(1, whole_node=True)},
            id="a node is no device",
        ),
        pytest.param(
            [device(0, kind="neuron_node")],
            {TRN2: Observation(0, single_devices=False, whole_node=True)},
            id="only a node",
        ),
        pytest.param([device(0, kind=None)], {TRN2: seen_with(1)}, id="no resourceType"),
        pytest.param([{"name": "x", "attributes": {}}], {}, id="no instanceType"),
        pytest.param([{"name": "x"}], {}, id="no attributes"),
        pytest.param([device(0, instance_type="")], {}, id="empty instanceType"),
        pytest.param([], {}, id="no devices"),
        pytest.param(None, {}, id="devices null"),
        pytest.param(
            [
                {
                    "name": "x",
                    "attributes": {
                        "neuron.aws.com/instanceType": {"string": TRN2},
                        "neuron.aws.com/resourceType": {"string": "neuron_device"},
                    },
                }
            ],
            {TRN2: seen_with(1)},
            id="qualified names",
        ),
        pytest.param(
            [device(0, **group(1), **group(4)), device(1, **group(16))],
            {TRN2: seen_with(2, (4, 16))},
            id="groups above one",
        ),
        pytest.param(
            [device(0, **group(8)), device(1, kind="neuron_node", **group(32))],
            {TRN2: seen_with(1, (8,), whole_node=True)},
            id="groups of a node do not count",
        ),
        pytest.param(
            [device(0, **OTHER_GROUPS)],
            {TRN2: seen_with(1)},
            id="other attributes",
        ),
    ],
)
def test_a_slice_gives_the_observation_of_its_type(
    watched: WatchedCluster, published: Any, expected: dict[str, Observation]
) -> None:
    watched.of(RESOURCE_SLICES, slice_of("a", published))
    assert watched.view.observations() == expected


def test_published_device_kinds_of_a_type_follow_its_slices_and_outlive_them(watched: WatchedCluster) -> None:
    """A node can switch from devices to the whole node; slices also go while a driver restarts."""
    single, whole = [device(0)], [device(0, kind="neuron_node")]

    def seen() -> tuple[bool, bool]:
        found = watched.view.observations()[TRN2]
        return found.single_devices, found.whole_node

    watched.of(RESOURCE_SLICES, slice_of("a", single))
    assert seen() == (True, False)
    version = watched.view.version
    watched.of(RESOURCE_SLICES, slice_of("a", whole))
    assert (seen(), watched.view.version) == ((False, True), version + 1)
    watched.of(RESOURCE_SLICES, slice_of("b", single, pool="other"))
    assert seen() == (True, True)
    watched.gone(RESOURCE_SLICES, slice_of("a", whole))
    assert seen() == (True, False)
    version = watched.view.version
    watched.gone(RESOURCE_SLICES, slice_of("b", single, pool="other"))
    assert (seen(), watched.view.version) == ((True, False), version)
    assert watched.view.observations()[TRN2].devices == 1


def test_group_sizes_add_up(watched: WatchedCluster) -> None:
    watched.of(RESOURCE_SLICES, slice_of("a", [device(0, **group(8))]))
    watched.of(RESOURCE_SLICES, slice_of("b", [device(0, **group(4))], pool="other"))
    assert watched.view.observations() == {TRN2: seen_with(1, (4, 8))}
    assert watched.view.version == 2


def test_other_drivers_do_not_count(watched: WatchedCluster) -> None:
    item = slice_of("a", device_objects(0))
    item["spec"]["driver"] = "gpu.example.com"
    watched.of(RESOURCE_SLICES, item)
    assert watched.view.observations() == {}


def test_observations_are_the_same_object_until_the_version_changes(watched: WatchedCluster) -> None:
    watched.of(RESOURCE_SLICES, slice_of("a", device_objects(0, 1)))
    before = watched.view.observations()
    watched.of(RESOURCE_SLICES, slice_of("b", device_objects(0), pool="other"))
    assert watched.view.observations() is before
    watched.of(RESOURCE_SLICES, slice_of("b", device_objects(0, 1, 2), pool="other"))
    assert watched.view.observations() is not before
    assert before == {TRN2: seen_with(2)}


def inferentia(*, windows: bool = True, shared: bool = True) -> list[Object]:
    """Two devices, as drivers publish them that know windows and shares, or not."""
    made = device_objects(0, 1, instance_type=INF2)
    for each in made:
        if windows:
            each["attributes"]["neuron.aws.com/window5_0"] = {"string": "window-0"}
        if windows:
            each["capacity"] = {"neuroncores": {"value": "2"}}
        if shared:
            each["allowMultipleAllocations"] = True
    return made


class TestTraits:
    def test_windows_and_shares_are_seen(self, watched: WatchedCluster) -> None:
        watched.of(RESOURCE_SLICES, slice_of("a", inferentia()))
        assert watched.view.observations() == {INF2: Observation(2, shares_cores=True, windows=True, counts_cores=True)}

    def test_a_driver_without_them_is_seen_too(self, watched: WatchedCluster) -> None:
        watched.of(RESOURCE_SLICES, slice_of("a", inferentia(windows=False, shared=False)))
        assert watched.view.observations() == {INF2: Observation(2, shares_cores=False, windows=False)}

    def test_shared_counters_are_seen_until_the_last_node_has_none(self, watched: WatchedCluster) -> None:
        single = device(0) | {"consumesCounters": [{"counterSet": "devices", "counters": {"d0": {"value": "1"}}}]}
        watched.of(RESOURCE_SLICES, slice_of("a", [single, device(1, kind="neuron_node")]))
        assert watched.view.observations() == {TRN2: seen_with(1, whole_node=True, counters=True)}
        watched.of(RESOURCE_SLICES, slice_of("a", [device(0), device(1, kind="neuron_node")]))
        assert watched.view.observations() == {TRN2: seen_with(1, whole_node=True)}

    def test_one_node_with_them_is_enough_during_an_upgrade(self, watched: WatchedCluster) -> None:
        watched.of(RESOURCE_SLICES, slice_of("a", inferentia(windows=False, shared=False)))
        watched.of(RESOURCE_SLICES, slice_of("b", inferentia(), pool="other"))
        assert watched.view.observations() == {INF2: Observation(2, shares_cores=True, windows=True)}

    def test_when_a_driver_no_longer_shares_cores_no_claim_may_ask_for_a_share(self, watched: WatchedCluster) -> None:
        watched.of(RESOURCE_SLICES, slice_of("a", inferentia()))
        version = watched.view.version
        watched.of(RESOURCE_SLICES, slice_of("a", inferentia(shared=False)))
        assert watched.view.observations() == {
            INF2: Observation(2, shares_cores=False, windows=True, counts_cores=True)
        }
        assert watched.view.version == version + 1

    def test_the_last_slices_count_while_no_slice_exists(self, watched: WatchedCluster) -> None:
        watched.of(RESOURCE_SLICES, slice_of("a", inferentia()))
        watched.gone(RESOURCE_SLICES, slice_of("a", inferentia()))
        assert watched.view.observations() == {INF2: Observation(2, shares_cores=True, windows=True, counts_cores=True)}
        watched.of(RESOURCE_SLICES, slice_of("a", inferentia(shared=False)))
        assert watched.view.observations() == {
            INF2: Observation(2, shares_cores=False, windows=True, counts_cores=True)
        }

    def test_slices_that_join_the_newest_generation_bring_their_traits(self, watched: WatchedCluster) -> None:
        watched.of(RESOURCE_SLICES, slice_of("a", device_objects(0), generation=2))
        watched.of(RESOURCE_SLICES, slice_of("b", inferentia(), generation=1))
        assert INF2 not in watched.view.observations()
        watched.of(RESOURCE_SLICES, slice_of("b", inferentia(), generation=2))
        assert watched.view.observations()[INF2] == Observation(2, shares_cores=True, windows=True, counts_cores=True)

    @pytest.mark.parametrize("ours", [True, False])
    def test_the_capacity_of_a_single_device_shows_its_driver(self, watched: WatchedCluster, ours: bool) -> None:
        item = device_objects(0, instance_type="inf2.xlarge")
        if ours:
            item[0]["capacity"] = {"neuroncores": {"value": "2"}}
        watched.of(RESOURCE_SLICES, slice_of("a", item))
        assert watched.view.observations() == {"inf2.xlarge": Observation(1, windows=ours, counts_cores=ours)}

    def test_capacity_alone_is_no_share(self, watched: WatchedCluster) -> None:
        item = device_objects(0)
        item[0]["allowMultipleAllocations"] = True
        watched.of(RESOURCE_SLICES, slice_of("a", item))
        assert not watched.view.observations()[TRN2].shares_cores


Published = tuple[str, str, int, frozenset[int], str]
SLICES = st.tuples(
    st.sampled_from("abc"),
    st.sampled_from(["node-1", "node-2"]),
    st.integers(1, 3),
    st.frozensets(st.integers(0, 5), max_size=4),
    st.sampled_from([TRN2, "trn1.32xlarge"]),
)


@given(st.lists(st.tuples(st.booleans(), SLICES), max_size=12))
def test_incremental_updates_equal_a_full_recount_of_all_slices(events: list[tuple[bool, Published]]) -> None:
    watched = WatchedCluster()
    present: dict[str, Published] = {}
    highest: dict[str, int] = {}
    for deleted, (name, pool, generation, numbers, instance_type) in events:
        item = slice_of(name, device_objects(*sorted(numbers), instance_type=instance_type), pool, generation)
        before = present.pop(name, None)
        if deleted:
            watched.gone(RESOURCE_SLICES, item)
        else:
            watched.of(RESOURCE_SLICES, item)
            if numbers:
                present[name] = (name, pool, generation, numbers, instance_type)
        # A slice that is reported again unchanged changes nothing.
        changed = {} if deleted or not numbers or present[name] == before else {pool}
        for each in changed:
            members = [entry for entry in present.values() if entry[1] == each]
            newest = max(entry[2] for entry in members)
            for instance in {entry[4] for entry in members}:
                together = frozenset[int]().union(*(e[3] for e in members if (e[2], e[4]) == (newest, instance)))
                if together:
                    highest[instance] = max(highest.get(instance, 0), len(together))
    assert {name: seen.devices for name, seen in watched.view.observations().items()} == highest


# --- DeviceClasses --------------------------------------------------------------------------------------------


def test_the_newest_class_serves_an_extended_resource(watched: WatchedCluster) -> None:
    watched.of(DEVICE_CLASSES, class_of("new", created="2026-02-01"))
    watched.of(DEVICE_CLASSES, class_of("old", created="2026-01-01"))
    assert watched.view.extended_resources() == {NEURON: "new"}
    assert watched.view.version == 2
    watched.gone(DEVICE_CLASSES, class_of("new", created="2026-02-01"))
    assert watched.view.extended_resources() == {NEURON: "old"}
    watched.gone(DEVICE_CLASSES, class_of("old"))
    assert watched.view.extended_resources() == {}
    assert watched.view.version == 4


@pytest.mark.parametrize("order", [("b", "a"), ("a", "b")])
def test_the_first_class_by_name_serves_if_creation_times_are_equal(
    watched: WatchedCluster, order: tuple[str, str]
) -> None:
    for name in order:
        watched.of(DEVICE_CLASSES, class_of(name))
    assert watched.view.extended_resources() == {NEURON: "a"}


def test_a_class_can_change_its_extended_resource(watched: WatchedCluster) -> None:
    watched.of(DEVICE_CLASSES, class_of("c"))
    watched.of(DEVICE_CLASSES, class_of("c", extended="example.com/neuron"))
    assert watched.view.extended_resources() == {"example.com/neuron": "c"}
    watched.of(DEVICE_CLASSES, class_of("c", extended=None))
    assert watched.view.extended_resources() == {}


def test_classes_without_an_extended_resource_change_only_the_names(watched: WatchedCluster) -> None:
    assert watched.view.class_names() is None, "not seen yet"
    watched.view.complete(DEVICE_CLASS)
    assert (watched.view.class_names(), watched.view.version) == (frozenset(), 1)
    watched.of(DEVICE_CLASSES, class_of("neuron.aws.com", extended=None))
    assert (watched.view.extended_resources(), watched.view.version) == ({}, 2)
    assert watched.view.class_names() == {"neuron.aws.com"}
    watched.of(DEVICE_CLASSES, class_of("neuron.aws.com", extended=None, created="2026-02-02"))
    assert watched.view.version == 2
    watched.gone(DEVICE_CLASSES, class_of("neuron.aws.com", extended=None))
    assert (watched.view.class_names(), watched.view.version) == (frozenset(), 3)


# --- Namespaces -----------------------------------------------------------------------------------------------


def test_an_unknown_namespace_has_no_facts(watched: WatchedCluster) -> None:
    assert watched.view.namespace("team") is NO_FACTS


def test_only_our_annotations_are_kept_and_sorted(watched: WatchedCluster) -> None:
    watched.of(NAMESPACES, namespace_of("team", convert="off", alpha="1"))
    facts = watched.view.namespace("team")
    assert facts == NamespaceFacts(annotations=(("neuron.aws.com/alpha", "1"), ("neuron.aws.com/convert", "off")))


def test_namespace_facts_combine_three_kinds_of_objects_and_follow_deletions(watched: WatchedCluster) -> None:
    steps: list[tuple[Callable[[Resource, Object], None], Resource, Object, NamespaceFacts]] = [
        (watched.of, RESOURCE_QUOTAS, quota_of("q2", f"requests.{NEURON}"), NamespaceFacts(quotas=(Q2,))),
        (watched.of, RESOURCE_QUOTAS, quota_of("q1", f"requests.{NEURON}"), NamespaceFacts(quotas=(Q1, Q2))),
        (
            watched.of,
            LIMIT_RANGES,
            limits_of("l", max={NEURON: "4"}),
            NamespaceFacts(quotas=(Q1, Q2), limit_ranges=("l",)),
        ),
        (
            watched.of,
            NAMESPACES,
            namespace_of("team", convert="off"),
            NamespaceFacts((("neuron.aws.com/convert", "off"),), (Q1, Q2), ("l",)),
        ),
        (
            watched.of,
            RESOURCE_QUOTAS,
            quota_of("q1", "requests.cpu"),
            NamespaceFacts((("neuron.aws.com/convert", "off"),), (Q2,), ("l",)),
        ),
        (watched.gone, NAMESPACES, namespace_of("team"), NamespaceFacts(quotas=(Q2,), limit_ranges=("l",))),
        (watched.gone, LIMIT_RANGES, limits_of("l"), NamespaceFacts(quotas=(Q2,))),
    ]
    for tell, resource, item, expected in steps:
        tell(resource, item)
        assert watched.view.namespace("team") == expected
    watched.gone(RESOURCE_QUOTAS, quota_of("q2"))
    assert watched.view.namespace("team") is NO_FACTS


def test_facts_are_the_same_object_while_they_do_not_change(watched: WatchedCluster) -> None:
    watched.of(NAMESPACES, namespace_of("team", convert="off"))
    facts = watched.view.namespace("team")
    watched.of(NAMESPACES, namespace_of("team", convert="off"))
    watched.of(NAMESPACES, namespace_of("other", convert="off"))
    watched.of(RESOURCE_QUOTAS, quota_of("q", "requests.cpu"))
    assert watched.view.namespace("team") is facts
    assert watched.view.version == 0


@pytest.mark.parametrize(
    ("hard", "counts"),
    [
        ("requests.aws.amazon.com/neuron", True),
        ("requests.aws.amazon.com/neurondevice", True),
        ("requests.aws.amazon.com/neuroncore", True),
        ("limits.aws.amazon.com/neuron", True),
        ("requests.cpu", False),
        ("requests.nvidia.com/gpu", False),
        ("neuron.aws.com.deviceclass.resource.k8s.io/devices", False),
    ],
)
def test_quotas_that_count_a_legacy_resource_are_named(watched: WatchedCluster, hard: str, counts: bool) -> None:
    watched.of(RESOURCE_QUOTAS, quota_of("q", "pods", hard))
    assert watched.view.namespace("team").quotas == ((LegacyQuota("q", (hard.partition(".")[2],)),) if counts else ())


def test_quota_amounts_are_unknown_until_the_first_list(watched: WatchedCluster) -> None:
    hard = "neuron.aws.com.deviceclass.resource.k8s.io/devices"
    watched.of(RESOURCE_QUOTAS, quota_of("q", hard))
    assert watched.view.quotas("team") is None
    watched.view.complete(RESOURCE_QUOTA)
    assert (watched.view.quotas("team"), watched.view.quotas("other")) == ({hard: 4}, {})
    assert watched.view.namespace("team") is NO_FACTS, "no decision on conversion depends on it"


@pytest.mark.parametrize(
    ("limit", "refuses"),
    [
        pytest.param({"min": {NEURON: "1"}}, True, id="min"),
        pytest.param({"max": {"cpu": "1", "aws.amazon.com/neuroncore": "1"}}, True, id="max"),
        pytest.param({"maxLimitRequestRatio": {"aws.amazon.com/neurondevice": "1"}}, True, id="ratio"),
        pytest.param({"type": "Pod", "min": {NEURON: "1"}}, True, id="of the pod"),
        pytest.param({"type": "PersistentVolumeClaim", "min": {NEURON: "1"}}, False, id="of a volume"),
        pytest.param({"default": {NEURON: "1"}, "defaultRequest": {NEURON: "1"}}, False, id="defaults"),
        pytest.param({"min": {"cpu": "1"}, "max": None}, False, id="another resource"),
    ],
)
def test_limit_ranges_that_refuse_a_converted_pod_are_named(
    watched: WatchedCluster, limit: Object, refuses: bool
) -> None:
    watched.of(LIMIT_RANGES, limits_of("l", **limit))
    assert watched.view.namespace("team").limit_ranges == (("l",) if refuses else ())


@pytest.mark.parametrize("resource", [RESOURCE_QUOTAS, LIMIT_RANGES], ids=str)
def test_empty_specs_give_no_facts(watched: WatchedCluster, resource: Resource) -> None:
    watched.of(resource, {"metadata": {"name": "x", "namespace": "team"}, "spec": {}})
    assert watched.view.namespace("team") is NO_FACTS


# --- ResourceClaimTemplates -----------------------------------------------------------------------------------


def opaque(parameters: object, driver: str = "neuron.aws.com") -> Object:
    return {"config": [{"opaque": {"driver": driver, "parameters": parameters}}]}


def ultraserver(mode: object = 4, api_version: str = "neuron.aws.com/v1") -> Object:
    return {"apiVersion": api_version, "kind": "UltraServerConfig", "ultraserverMode": mode}


def test_device_classes_of_requests_and_their_alternatives_are_known(watched: WatchedCluster) -> None:
    alternatives = [{"name": "x", "deviceClassName": "b"}, {"name": "y", "deviceClassName": "c"}]
    requests = [
        {"name": "n0", "exactly": {"deviceClassName": "a"}},
        {"name": "n1", "firstAvailable": alternatives},
        {"name": "n2", "exactly": {}},
    ]
    watched.of(RESOURCE_CLAIM_TEMPLATES, template_of("t", {"requests": requests}))
    assert watched.view.template_device_classes("team", "t") == {"a", "b", "c"}
    assert watched.view.template_device_classes("other", "t") == frozenset()
    assert watched.view.template_ultraserver_mode("other", "t") is None


@pytest.mark.parametrize(
    ("devices", "mode"),
    [
        pytest.param(opaque(ultraserver(4)), 4, id="mode"),
        pytest.param(opaque(ultraserver(2, "neuron.aws.com/v1alphav1")), 2, id="older apiVersion"),
        pytest.param(opaque(ultraserver(3)), None, id="no such mode"),
        pytest.param(opaque(ultraserver(4), driver="other.example.com"), None, id="another driver"),
        pytest.param(opaque({**ultraserver()} | {"kind": "NeuronConfig"}), None, id="another kind"),
        pytest.param(opaque(None), None, id="no parameters"),
        pytest.param({"config": [{}]}, None, id="no opaque"),
        pytest.param(None, None, id="no devices"),
        pytest.param(
            {
                "config": opaque({"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCore": 1})[
                    "config"
                ]
                + opaque(ultraserver(2))["config"]
            },
            2,
            id="beside a NeuronConfig",
        ),
    ],
)
def test_ultraserver_mode_is_known(watched: WatchedCluster, devices: Object | None, mode: int | None) -> None:
    watched.of(RESOURCE_CLAIM_TEMPLATES, template_of("t", devices))
    assert watched.view.template_ultraserver_mode("team", "t") == mode


def test_templates_with_names_like_ours_have_a_digest_and_a_maker() -> None:
    devices = {"requests": [{"name": "n0", "exactly": {"deviceClassName": "a"}}]}
    ours = template_of("neuron-1-device-abc", devices, **{"app.kubernetes.io/managed-by": "neuron-dra"})
    facts = project_template(ours)
    assert (facts.digest, facts.managed) == (digest(ours["spec"]), True)
    theirs = project_template(template_of("xl-trn2", devices))
    assert (theirs.digest, theirs.managed) == ("", False)


# --- over the wire --------------------------------------------------------------------------------------------


def test_a_view_is_filled_and_kept_current_by_its_caches() -> None:
    async def scenario() -> None:
        from kubernetes.aio.client.configuration import Configuration

        from runtime.api_transport import Connection

        async with FakeApi().serve() as api:
            api.put("resourceslices", slice_of("a", device_objects(*range(16))))
            api.put("namespaces", namespace_of("team", convert="off"))

            async def load() -> Configuration:
                return Configuration(host=api.url)

            connection = await Connection.open(load)
            watches = Watches(connection)
            view = watches.store
            tasks = [asyncio.create_task(cache.run()) for cache in watches.caches]
            await asyncio.gather(*(cache.synced.wait() for cache in watches.caches))
            assert view.observations() == {TRN2: seen_with(16)}
            assert api.calls("list", "resourceslices")[0].query["fieldSelector"] == "spec.driver=neuron.aws.com"
            api.put("namespaces", namespace_of("team", convert="shadow"))
            api.put("deviceclasses", class_of("neuron.aws.com"))
            await eventually(lambda: view.extended_resources() == {NEURON: "neuron.aws.com"})
            await eventually(lambda: dict(view.namespace("team").annotations) == {"neuron.aws.com/convert": "shadow"})
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await connection.close()

    asyncio.run(scenario())
