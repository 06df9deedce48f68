"""A pod that waits for the driver runs seconds after its start: slices wait for the kubelet's registration."""

import time
from collections.abc import Iterator

import pytest

from tests.cluster.api import Api
from tests.cluster.controlplane import ControlPlane
from tests.cluster.driver import Driver, connected, install_rbac, run_pod, wait_gone, wait_running, wait_unprepared
from tests.cluster.kubelet import Kubelet
from tests.cluster.manifests import unschedulable_message
from tests.cluster.processes import eventually

RUNS = 3
SECONDS = 10.0
TYPE = "trn2.48xlarge"


@pytest.fixture(scope="module", autouse=True)
def rights(control_plane: ControlPlane) -> None:
    install_rbac(control_plane.admin)


@pytest.fixture
def driver(control_plane: ControlPlane, kubelet: Kubelet) -> Iterator[Driver]:
    driver = Driver(control_plane, kubelet, TYPE, pod_uid="first")
    yield driver
    driver.process.stop()


def seconds_to_run(api: Api, namespace: str, name: str, began: float) -> float:
    wait_running(api, namespace, name, timeout=150)
    return round(time.monotonic() - began, 1)


@pytest.mark.timeout(1800)
def test_pods_that_wait_for_the_driver_run_within_seconds_of_its_start(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver
) -> None:
    """The first run is a first start, the others are restarts: the driver withdraws its slices when it ends."""
    took = []
    for number in range(RUNS):
        name = f"waits-{number}"
        run_pod(api, namespace, name, connected(4))
        unschedulable_message(api, namespace, name, "cannot allocate all claims")
        began = time.monotonic()
        driver.process.start()
        took.append(seconds_to_run(api, namespace, name, began))
        wait_gone(api, namespace, name)
        wait_unprepared(kubelet, driver)
        driver.process.stop()
        assert driver.slices() == []
    print(f"seconds from the driver's start to Running: {took}")  # noqa: T201 - shown with -s
    assert max(took) < SECONDS, took


@pytest.mark.timeout(1800)
def test_pods_run_within_seconds_over_an_upgrade_with_overlap(
    api: Api, namespace: str, kubelet: Kubelet, control_plane: ControlPlane
) -> None:
    """One instance follows the other; pods come before, in and after the overlap."""
    took = []
    old = Driver(control_plane, kubelet, TYPE, pod_uid="run-0")
    # The kubelet calls the instance that registered last: the old one is registered before the new one starts.
    old.start()
    try:
        for number in range(1, RUNS + 1):
            new = Driver(control_plane, kubelet, TYPE, pod_uid=f"run-{number}")
            names = [f"{when}-{number}" for when in ("before", "during", "after")]
            began = time.monotonic()
            run_pod(api, namespace, names[0], connected(4))
            new.start()
            run_pod(api, namespace, names[1], connected(4))
            old.process.stop()
            old = new
            run_pod(api, namespace, names[2], connected(4))
            assert new.slices(), "the successor keeps them"
            took.append(max(seconds_to_run(api, namespace, name, began) for name in names))
            for name in names:
                wait_gone(api, namespace, name)
            wait_unprepared(kubelet, new)
    finally:
        old.process.stop()
    print(f"seconds from the first pod to the last one Running: {took}")  # noqa: T201 - shown with -s
    assert max(took) < SECONDS + 10, took


@pytest.mark.timeout(600)
def test_pods_run_within_seconds_after_a_restart_of_the_kubelet(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver
) -> None:
    """A kubelet that starts deletes the slices, and registers the plugin anew a moment later."""
    driver.start()
    took = []
    for number in range(RUNS):
        name = f"restart-{number}"
        began = time.monotonic()
        kubelet.restart()
        run_pod(api, namespace, name, connected(4))
        took.append(seconds_to_run(api, namespace, name, began))
        eventually("the slices to be back", driver.slices)
        wait_gone(api, namespace, name)
        wait_unprepared(kubelet, driver)
    print(f"seconds from the kubelet's restart to Running: {took}")  # noqa: T201 - shown with -s
    assert max(took) < 3 * SECONDS, took
