"""Where one more pod fits: now, after the fewest pods end, after the fewest pods move."""

from typing import Any

import pytest

from commands.rehearse.fitting import FitAnswer, MadePlace, NothingToFitError, fits, pod_of, types_of
from commands.report.inventory import Found
from tests.support.emulated import EmulatedCluster
from tests.support.rehearsing import Object, driver_nodes, gathered, node, pods
from tests.support.reports import found as raw


def with_driver(*held: list[range]) -> tuple[list[Object], EmulatedCluster]:
    """Nodes of the driver, with claims of ReplicaSet pods on ranges of devices."""
    cluster = EmulatedCluster()
    for number, claims in enumerate(held):
        cluster.node(f"d{number}", "trn1.32xlarge")
        for devices in claims:
            cluster.claim(f"p{number}-{devices.start}", f"d{number}", devices)
    for each in cluster.pods:
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": True}
        each["metadata"]["ownerReferences"] = [owner]
    for claim in cluster.claims:
        # As conversion writes it: connected devices.
        device = claim["spec"]["devices"]["requests"][0]["exactly"]
        count = device["count"]
        if count > 1:
            attribute = f"resource.aws.com/devicegroup{count}_id"
            claim["spec"]["devices"]["constraints"] = [{"requests": ["n0"], "matchAttribute": attribute}]
    kinds = {"nodes": ("v1", "Node"), "pods": ("v1", "Pod"), "slices": ("resource.k8s.io/v1", "ResourceSlice")}
    kinds["claims"] = ("resource.k8s.io/v1", "ResourceClaim")
    items = [
        {"apiVersion": version, "kind": kind, **each}
        for field, (version, kind) in kinds.items()
        for each in getattr(cluster, field)
    ]
    return items, cluster


def fitted(*objects: Object, count: int = 8, types: tuple[str, ...] = ("trn1.32xlarge",)) -> FitAnswer:
    return fits(gathered(*objects), [pod_of(count, types, "team-x")])


def test_a_pod_that_fits_has_its_nodes_devices_and_how_many_fit_at_once() -> None:
    items, _ = with_driver([range(4)], [])
    found = fitted(*items).claims
    assert found is not None
    devices = tuple(f"neuron-device-{number}" for number in range(8, 16))
    assert (found.now[0].node, found.now[0].devices) == ("d0", devices)
    assert (len(found.now), found.at_once) == (2, 3)


def test_the_fewest_pods_that_end_or_move_are_found() -> None:
    # d0: one device of each half is in use; d1: 8 devices of one half, and 4 of the other.
    items, _ = with_driver([range(1), range(8, 9)], [range(8), range(8, 12)])
    answer = fitted(*items)
    found = answer.claims
    assert found is not None
    assert found.now == ()
    names = {number: pod.name for number, pod in enumerate(answer.pods)}

    def told(changes: tuple[MadePlace, ...]) -> list[tuple[str, list[str], tuple[str, ...]]]:
        return [(each.node, [names[pod] for pod in each.pods], each.to) for each in changes]

    assert told(found.ends) == [("d0", ["p0-0"], ()), ("d1", ["p1-8"], ())]
    assert told(found.moves) == [("d0", ["p0-0"], ("d1",)), ("d1", ["p1-8"], ("d0",))]


def test_several_pods_move_if_one_is_not_enough() -> None:
    items, _ = with_driver([range(4), range(8, 9)], [range(4), range(8, 9)])
    found = fitted(*items, count=16).claims
    assert found is not None
    assert [len(each.pods) for each in found.ends] == [2, 2]
    assert [(each.node, len(each.pods), each.to) for each in found.moves] == [
        ("d0", 2, ("d1", "d1")),
        ("d1", 2, ("d0", "d0")),
    ]


def test_nothing_moves_that_a_drain_would_not_move() -> None:
    items, _ = with_driver([range(1), range(8, 9)], [range(8), range(8, 12)])
    for each in items:
        each["metadata"].pop("ownerReferences", None)
    found = fitted(*items).claims
    assert found is not None
    assert (len(found.ends), found.moves) == (2, ())


def test_a_pod_of_the_plugin_is_counted_on_its_nodes() -> None:
    answer = fitted(node("n1"), node("n2", kind="inf2.48xlarge"), *pods("x", "n1", "n1", count=6), count=8)
    assert answer.claims is not None
    assert answer.claims.now == ()
    assert str(answer.claims.why and answer.claims.why.cause) == "no driver node yet"
    assert answer.plugin is not None
    assert [(each.node, len(each.pods)) for each in answer.plugin.ends] == [("n1", 1)]
    assert fitted(node("n1"), count=8).fits


def test_a_denied_pod_is_told() -> None:
    answer = fitted(*driver_nodes("d"), count=7)
    assert answer.denied is not None
    assert (answer.denied.code, answer.fits) == ("NEU105", False)


@pytest.mark.parametrize(
    ("kind", "types"),
    [
        ("inf2", ("inf2.xlarge", "inf2.8xlarge", "inf2.24xlarge", "inf2.48xlarge")),
        ("trn1.2xlarge", ("trn1.2xlarge",)),
        ("trn", ()),
        ("", ()),
    ],
)
def test_a_type_or_family_names_instance_types(kind: str, types: tuple[str, ...]) -> None:
    from commands.rehearse.gather import GatheringSettings
    from tests.support.trainium import trainium

    assert sorted(types_of(GatheringSettings(trainium()), kind)) == sorted(types)


def test_the_first_object_that_is_to_be_created_is_fitted() -> None:
    manifest: dict[str, Any] = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "team-a"},
        "spec": {"replicas": 2, "template": {"spec": pods("x", "")[0]["spec"]}},
    }
    other = {**manifest, "metadata": {"name": "second", "namespace": "team-a"}}
    running = pods("y", "d")[0]
    answer = fits(gathered(*driver_nodes("d")), [raw(running), raw(manifest), raw(other)])
    assert (answer.subject, answer.more, answer.fits) == ("Deployment team-a/web", 1, True)
    with pytest.raises(NothingToFitError):
        fits(gathered(*driver_nodes("d")), [raw(running), Found("", "v1", "ConfigMap", b"{}")])
