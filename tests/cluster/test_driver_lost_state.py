"""A node that loses the driver's files while pods run, or has no space for them: no device gets a second pod."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

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
from tests.cluster.manifests import devices_request, events
from tests.cluster.processes import eventually
from tests.cluster.test_driver_kept import held, remove_claim, wait_kept
from tests.cluster.test_driver_shares import share
from tests.support.disks import own_disk


@pytest.fixture(scope="module")
def kubelet_sync() -> str:
    """After a failure the kubelet tries again when it next looks at the pod."""
    return "10s"


@pytest.fixture
def driver(control_plane: ControlPlane, kubelet: Kubelet) -> Iterator[Driver]:
    """Four devices with four cores each."""
    with running(control_plane, kubelet, "inf1.6xlarge", flags=("--sweep-interval=2", "--share-cores=on")) as driver:
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


@contextlib.contextmanager
def replaced(driver: Driver, plane: ControlPlane, kubelet: Kubelet, state: Path) -> Iterator[Driver]:
    """Another instance, with another directory for its state, instead of this one."""
    driver.process.stop()
    flags = (f"--state-dir={state}", "--sweep-interval=2", "--share-cores=on")
    try:
        with running(plane, kubelet, "inf1.6xlarge", flags=flags) as other:
            yield other
    finally:
        driver.start()


@pytest.mark.parametrize("kind", ["state", "CDI specs"])
def test_a_pod_waits_while_the_disk_is_full(
    api: Api, namespace: str, control_plane: ControlPlane, kubelet: Kubelet, driver: Driver, tmp_path: Path, kind: str
) -> None:
    """Published devices and prepared claims are kept, and the driver goes on by itself when there is space again."""
    one = {"devices": {"requests": [devices_request("n")]}}
    directory = {"state": tmp_path, "CDI specs": kubelet.cdi_directory}[kind]
    with own_disk(directory) as disk, replaced(driver, control_plane, kubelet, tmp_path) as driver:
        run_pod(api, namespace, "first", one)
        wait_running(api, namespace, "first")
        used = indices(started(kubelet, namespace, "first"))
        published = driver.devices()
        disk.fill()
        try:
            run_pod(api, namespace, "second", one)

            def told() -> list[str]:
                return events(api, namespace, "second", "FailedPrepareDynamicResources")

            [said, *_] = eventually("the kubelet to tell of it", told)
            assert "No space left on device" in said
            assert f"Check free space and write permission of {directory}/" in said
            assert api.get("Pod", "second", namespace)["status"]["phase"] == "Pending"
            assert driver.devices() == published
        finally:
            disk.free()
        wait_running(api, namespace, "second", timeout=120)
        assert not set(used) & set(indices(started(kubelet, namespace, "second")))
        assert driver.metric("prepared_claims") == 2
        # The first is freed without space: its claim is not lost, and is gone as soon as there is some.
        disk.fill()
        try:
            wait_gone(api, namespace, "first")
        finally:
            disk.free()
        wait_gone(api, namespace, "second")
        wait_unprepared(kubelet, driver)
