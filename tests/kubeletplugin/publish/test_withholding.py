"""What a node does not publish because of the version of the control plane."""

import logging

import pytest

from kubeletplugin.publish.slices import ClusterFeatures, NodeDevices, Withholding
from neuron.hardware.instances import Catalogue
from tests.kubeletplugin.fakes import FakeApi, FakeClock, Node
from tests.kubeletplugin.publish.test_publisher import FIRST, publishing
from tests.support.mixtures import discovered

ALL = ClusterFeatures()
ULTRA, RING = "trn2u.48xlarge", "inf2.48xlarge"


def node_devices(instance_type: str, *, shared: bool = False) -> NodeDevices:
    return NodeDevices(discovered(instance_type), Catalogue().get(instance_type), shares_cores=shared)


@pytest.mark.parametrize(
    ("version", "counters", "apart"),
    [
        ("v1.34.9", True, False),
        ("v1.35.5", False, True),
        ("v1.35.6", True, True),
        ("v1.36.0", False, True),
        ("v1.36.1-eks-1", False, True),
        ("v1.36.2", True, True),
        ("v1.37.0", True, True),
        ("", True, True),
        ("unknown", True, True),
    ],
)
def test_counters_follow_the_version(version: str, counters: bool, apart: bool) -> None:
    found = Withholding(version).features(ALL)
    assert (found.counters, found.separate_counters, found.shares) == (counters, apart, True)
    assert found.partition_types == (version == "v1.37.0")
    assert not Withholding(version).features(ClusterFeatures(counters=False)).counters


@pytest.mark.parametrize(
    ("version", "instance_type", "shares"),
    [
        ("v1.35.6", ULTRA, False),  # counters and shares, by feature gates
        ("v1.35.6", RING, True),
        ("v1.36.1", ULTRA, True),  # it has no counters, so nothing is lost with shares
        ("v1.36.1", RING, True),
        ("v1.36.2", ULTRA, True),
    ],
)
def test_shares_are_withheld_beside_counters(version: str, instance_type: str, shares: bool) -> None:
    held = Withholding(version)
    assert held.shares(node_devices(instance_type, shared=True), held.features(ALL)) is shares


def test_reasons_are_given_where_something_is_withheld() -> None:
    (reason,) = Withholding("v1.36.0").reasons(node_devices(ULTRA), ALL)
    assert reason == (
        "kube-scheduler v1.36.0 panics when a claim with allocationMode: All meets a device that consumes shared"
        " counters (kubernetes/kubernetes#138882); fixed in 1.36.2. The driver publishes no shared counters: an"
        " UltraServer node offers its devices or the whole node."
    )
    assert Withholding("v1.36.0").reasons(node_devices(RING, shared=True), ALL) == ()
    assert Withholding("v1.36.2").reasons(node_devices(ULTRA, shared=True), ALL) == ()
    (reason,) = Withholding("v1.35.6").reasons(node_devices(ULTRA, shared=True), ALL)
    assert "kubernetes/kubernetes#139034" in reason


@pytest.mark.parametrize(("version", "counters"), [("v1.36.1", False), ("v1.36.2", True)])
async def test_an_ultraserver_node_publishes_counters_by_the_version(
    ultra: Node, api: FakeApi, clock: FakeClock, caplog: pytest.LogCaptureFixture, *, version: str, counters: bool
) -> None:
    api.version = version

    caplog.set_level(logging.WARNING)
    async with publishing(ultra, api, clock) as at:
        await at.until(lambda: FIRST in api.stored)
        await at.settled()
        specs = [body["spec"] for body in api.stored.values()]
        published = [device for spec in specs for device in spec.get("devices", ())]
        assert any("sharedCounters" in spec for spec in specs) is counters
        assert any("consumesCounters" in device for device in published) is counters
        assert len(published) == 16 + counters
    said = [getattr(record, "reason", "") for record in caplog.records]
    assert any("kubernetes/kubernetes#138882" in reason for reason in said) is not counters


def test_gates_decide_instead_of_the_version_and_never_against_the_server() -> None:
    gates = {"counters": True, "separate_counters": False, "partition_types": True, "shares": False}
    found = Withholding("v1.36.0", gates).features(ALL)
    assert (found.counters, found.separate_counters, found.partition_types, found.shares) == (True, False, True, False)
    assert not Withholding("v1.36.0", gates).features(ClusterFeatures(counters=False)).counters
    assert Withholding("v1.36.0", {"counters": True}).reasons(node_devices(ULTRA), ALL) == ()
    assert not Withholding("", {"shares": False}).shares(node_devices(RING, shared=True), ALL)
