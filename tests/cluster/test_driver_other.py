"""Two drivers named neuron.aws.com on one kubelet: ours gives way, says so, and comes back."""

import time
from collections.abc import Iterator

import httpx
import pytest

from tests.cluster.api import Api
from tests.cluster.controlplane import ControlPlane
from tests.cluster.driver import (
    EVENTS,
    Driver,
    connected,
    indices,
    install_rbac,
    run_pod,
    running,
    started,
    wait_gone,
    wait_running,
    wait_unprepared,
)
from tests.cluster.kubelet import Kubelet
from tests.cluster.manifests import devices_request, events
from tests.cluster.other_driver import OtherDriver
from tests.cluster.processes import eventually

FOUR = {"devices": {"requests": [devices_request("n", count=4)]}}


@pytest.fixture
def driver(control_plane: ControlPlane, kubelet: Kubelet) -> Iterator[Driver]:
    with running(control_plane, kubelet, "trn2.48xlarge", pod_uid="ours") as driver:
        yield driver


@pytest.fixture
def other(api: Api, kubelet: Kubelet) -> OtherDriver:
    return OtherDriver(api, kubelet)


def own_slices(driver: Driver) -> list[str]:
    return [name for each in driver.slices() if (name := each["metadata"]["name"]).endswith("-neuron.aws.com-000")]


def test_our_driver_gives_way_and_comes_back(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver, other: OtherDriver
) -> None:
    run_pod(api, namespace, "ours", connected(4))
    wait_running(api, namespace, "ours")
    with other.running():
        eventually("our slices to go", lambda: own_slices(driver) == [], timeout=30)
        assert driver.metric("other_driver_active") == 1
        [said] = eventually("the event", lambda: events(api, EVENTS, kubelet.node, "OtherDriverActive")[-1:])
        assert "Another driver named neuron.aws.com is on this node" in said
        [before] = other.slices()
        run_pod(api, namespace, "theirs", FOUR)
        wait_running(api, namespace, "theirs")
        assert len(other.prepared) == 1, "the kubelet calls the driver that registered last"
        time.sleep(6)  # longer than our driver's pause between two looks
        assert other.slices() == [before], "it is neither deleted nor written again"
        assert own_slices(driver) == []
        wait_gone(api, namespace, "theirs")
        eventually("the other driver to unprepare", lambda: bool(other.unprepared), timeout=60)
        assert api.get("Pod", "ours", namespace)["status"]["phase"] == "Running"
    eventually("our slices to be back", lambda: len(driver.devices()) == 16, timeout=60)
    assert driver.metric("other_driver_active") == 0
    eventually("the event", lambda: events(api, EVENTS, kubelet.node, "OtherDriverGone")[-1:])
    run_pod(api, namespace, "after", FOUR)
    wait_running(api, namespace, "after")
    assert not set(indices(started(kubelet, namespace, "after"))) & {0, 1, 2, 3}, "the running pod keeps its devices"
    for name in ("ours", "after"):
        wait_gone(api, namespace, name)
    wait_unprepared(kubelet, driver)


def test_the_way_over_node_by_node(
    api: Api, namespace: str, kubelet: Kubelet, control_plane: ControlPlane, other: OtherDriver
) -> None:
    """docs/migrate.md, From AWS's driver: drain, take the node from the one, give it to the other."""
    install_rbac(api)
    ours = Driver(control_plane, kubelet, "trn2.48xlarge", pod_uid="new")
    with other.running():
        run_pod(api, namespace, "theirs", FOUR)
        wait_running(api, namespace, "theirs")
        ours.process.start()
        try:

            def beside() -> bool:
                try:
                    return ours.metric("other_driver_active") == 1
                except httpx.HTTPError:
                    return False

            ours.process.wait_ready(beside)
            assert own_slices(ours) == [], "it waits beside the other"
            # The kubelet sends NodeUnprepareResources to the driver that registered last, which may be ours.
            wait_gone(api, namespace, "theirs")
        except BaseException:
            ours.process.stop()
            raise
    try:
        eventually("our slices", lambda: len(ours.devices()) == 16, timeout=60)
        run_pod(api, namespace, "after", connected(4))
        wait_running(api, namespace, "after")
        wait_gone(api, namespace, "after")
    finally:
        ours.process.stop()
