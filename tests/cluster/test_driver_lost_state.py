"""A node that loses the driver's files while pods run: containers restart, and no device gets a second pod."""

from collections.abc import Iterator

import pytest

from tests.cluster.api import Api
from tests.cluster.controlplane import ControlPlane
from tests.cluster.driver import (
    Driver,
    indices,
    neuron_environment,
    run_pod,
    running,
    started,
    wait_gone,
    wait_running,
    wait_unprepared,
)
from tests.cluster.kubelet import Kubelet
from tests.cluster.manifests import devices_request
from tests.cluster.processes import eventually
from tests.cluster.test_driver_kept import held, remove_claim, wait_kept
from tests.cluster.test_driver_shares import share


@pytest.fixture(scope="module")
def kubelet_sync() -> str:
    """After a failure the kubelet tries again when it next looks at the pod."""
    return "10s"


@pytest.fixture
def driver(control_plane: ControlPlane, kubelet: Kubelet) -> Iterator[Driver]:
    """Four devices with four cores each."""
    with running(control_plane, kubelet, "inf1.6xlarge", flags=("--sweep-interval=2",)) as driver:
        yield driver


@pytest.fixture(autouse=True)
def emptied(api: Api, namespace: str, kubelet: Kubelet, driver: Driver) -> Iterator[None]:
    yield
    for each in api.list("Pod", namespace):
        wait_gone(api, namespace, each["metadata"]["name"])
    wait_unprepared(kubelet, driver)


def remove_specs(kubelet: Kubelet) -> None:
    for path in kubelet.cdi_directory.iterdir():
        path.unlink()


def test_a_container_restarts_although_its_spec_was_lost(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver
) -> None:
    run_pod(api, namespace, "first", {"devices": {"requests": [devices_request("n", count=2)]}})
    wait_running(api, namespace, "first")
    before = started(kubelet, namespace, "first")
    remove_specs(kubelet)
    kubelet.runtime.crash(namespace, "first")

    def again() -> bool:
        now = started(kubelet, namespace, "first")
        return now is not before and indices(now) == indices(before)

    eventually("the container to run again", again, timeout=120)
    assert driver.metric("restored_specs_total") >= 1


@pytest.mark.needs("taints")
def test_a_driver_that_lost_its_state_gives_no_device_twice(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver
) -> None:
    """One pod has a whole device, one a share, and one a device whose claim was removed."""
    run_pod(api, namespace, "whole", {"devices": {"requests": [devices_request("n")]}})
    run_pod(api, namespace, "gone", {"devices": {"requests": [devices_request("n")]}})
    run_pod(api, namespace, "part", {"devices": {"requests": [share(cores=2)]}})
    for name in ("whole", "gone", "part"):
        wait_running(api, namespace, name)
    used = {name: indices(started(kubelet, namespace, name)) for name in ("whole", "gone", "part")}
    remove_claim(api, namespace, "gone")
    driver.process.kill()
    remove_specs(kubelet)
    (driver.state / "checkpoint.json").unlink()
    driver.start()
    wait_kept(driver, "in-use")
    assert driver.metric("prepared_claims") == 3
    eventually("the device to be held", lambda: held(driver) == used["gone"])
    # One device is free.
    run_pod(api, namespace, "next", {"devices": {"requests": [devices_request("n")]}})
    wait_running(api, namespace, "next")
    mine = indices(started(kubelet, namespace, "next"))
    assert not set(mine) & {index for found in used.values() for index in found}
    assert neuron_environment(started(kubelet, namespace, "part")) == {"NEURON_RT_VISIBLE_CORES": "8-9"}
