"""A pod that waits for the driver runs seconds after its start: slices wait for the kubelet's registration."""

import time
from collections.abc import Iterator

import pytest

from tests.cluster.api import Api
from tests.cluster.controlplane import ControlPlane
from tests.cluster.driver import Driver, connected, install_rbac, run_pod, wait_gone, wait_running, wait_unprepared
from tests.cluster.kubelet import Kubelet
from tests.cluster.manifests import unschedulable_message

RUNS = 10
SECONDS = 10.0


@pytest.fixture(scope="module")
def driver(control_plane: ControlPlane, kubelet: Kubelet) -> Iterator[Driver]:
    install_rbac(control_plane.admin)
    driver = Driver(control_plane, kubelet, "trn2.48xlarge", pod_uid="first")
    yield driver
    driver.process.stop()


def withdraw(api: Api, driver: Driver) -> None:
    """Remove what a stopped driver left, as the kubelet does after 30 s."""
    for each in driver.slices():
        api.delete("ResourceSlice", each["metadata"]["name"])


@pytest.mark.timeout(1800)
def test_pods_that_wait_for_the_driver_run_within_seconds_of_its_start(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver
) -> None:
    took = []
    for number in range(RUNS):
        withdraw(api, driver)
        name = f"waits-{number}"
        run_pod(api, namespace, name, connected(4))
        unschedulable_message(api, namespace, name, "cannot allocate all claims")
        began = time.monotonic()
        driver.process.start()
        wait_running(api, namespace, name, timeout=150)
        took.append(round(time.monotonic() - began, 1))
        wait_gone(api, namespace, name)
        wait_unprepared(kubelet, driver)
        driver.process.stop()
    assert max(took) < SECONDS, took
