"""A device that a pod uses is given to no other pod, also if its claim or the pod itself is removed by force."""

import time
from collections.abc import Iterator

import pytest

from tests.cluster.api import Api, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.driver import (
    EVENTS,
    Driver,
    indices,
    run_pod,
    running,
    started,
    wait_gone,
    wait_running,
    wait_unprepared,
)
from tests.cluster.kubelet import Kubelet
from tests.cluster.manifests import claim_of, devices_request, unschedulable_message
from tests.cluster.nodes import DRIVER
from tests.cluster.processes import eventually

HELD = f"{DRIVER}/held"
SWEEP = 2
"""Seconds between two sweeps."""

FIRST: Object = {
    "devices": {
        "requests": [
            devices_request("n", selectors=(f'device.attributes["{DRIVER}"].deviceId < 2',)),
        ]
    }
}
"""A claim for one of two devices."""


@pytest.fixture(scope="module")
def kubelet_sync() -> str:
    """After a failed preparation the kubelet tries again when it next looks at the pod."""
    return "10s"


@pytest.fixture(scope="module")
def driver(control_plane: ControlPlane, kubelet: Kubelet) -> Iterator[Driver]:
    with running(control_plane, kubelet, "trn2.48xlarge", flags=(f"--sweep-interval={SWEEP}",)) as driver:
        yield driver


@pytest.fixture(autouse=True)
def emptied(api: Api, namespace: str, kubelet: Kubelet, driver: Driver) -> Iterator[None]:
    yield
    for each in api.list("Pod", namespace):
        wait_gone(api, namespace, each["metadata"]["name"])
    wait_unprepared(kubelet, driver)


def remove_claim(api: Api, namespace: str, pod_name: str) -> None:
    """Delete the claim of a running pod, and its finalizers."""
    name = claim_of(api, namespace, api.get("Pod", pod_name, namespace))["metadata"]["name"]
    api.delete("ResourceClaim", name, namespace)
    api.merge("ResourceClaim", name, {"metadata": {"finalizers": None}}, namespace)
    eventually("the claim to be gone", lambda: api.find("ResourceClaim", name, namespace) is None)


def wait_kept(driver: Driver, reason: str) -> None:
    eventually(
        "the claim to be kept", lambda: driver.metric(f'kept_claims{{reason="{reason}"}}') == 1, timeout=10 * SWEEP
    )


def held(driver: Driver) -> list[int]:
    """Devices that new claims do not get."""
    found = [
        device["attributes"]["deviceId"]["int"]
        for device in driver.devices()
        if any(taint["key"] == HELD for taint in device.get("taints", ()))
    ]
    return sorted(found)


@pytest.mark.needs("taints")
def test_a_running_pod_keeps_its_device_when_its_claim_is_removed(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver
) -> None:
    run_pod(api, namespace, "first", FIRST)
    wait_running(api, namespace, "first")
    [mine] = indices(started(kubelet, namespace, "first"))
    remove_claim(api, namespace, "first")
    wait_kept(driver, "in-use")
    time.sleep(3 * SWEEP)
    assert driver.metric("prepared_claims") == 1
    eventually("the device to be held", lambda: held(driver) == [mine])
    # Events of earlier tests can be in the list, which has no order.
    kept = [each["message"] for each in api.list("Event", EVENTS) if each["reason"] == "DeviceKept"]
    assert any(f"the kubelet reports that pod {namespace}/first uses it" in message for message in kept), kept
    # The next pod gets the other device, and the one after it none.
    run_pod(api, namespace, "second", FIRST)
    wait_running(api, namespace, "second")
    assert indices(started(kubelet, namespace, "second")) == [1 - mine]
    run_pod(api, namespace, "third", FIRST)
    unschedulable_message(api, namespace, "third", "cannot allocate all claims")
    wait_gone(api, namespace, "first")
    wait_running(api, namespace, "third")
    assert indices(started(kubelet, namespace, "third")) == [mine]
    assert (held(driver), driver.metric('kept_claims{reason="in-use"}')) == ([], 0)


@pytest.mark.needs("taints")
def test_a_hung_kubelet_keeps_the_devices_of_pods_that_were_deleted_by_force(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver
) -> None:
    run_pod(api, namespace, "first", FIRST)
    wait_running(api, namespace, "first")
    [mine] = indices(started(kubelet, namespace, "first"))
    claim = claim_of(api, namespace, api.get("Pod", "first", namespace))["metadata"]["name"]
    with kubelet.hanging():
        api.delete("Pod", "first", namespace, force=True)
        eventually("the claim to be gone", lambda: api.find("ResourceClaim", claim, namespace) is None)
        wait_kept(driver, "unknown")
        time.sleep(3 * SWEEP)
        assert (driver.metric("prepared_claims"), held(driver)) == (1, [mine])
    # The kubelet stops the container, and unprepares the claim.
    wait_unprepared(kubelet, driver)
    eventually("the device to be free", lambda: held(driver) == [])
