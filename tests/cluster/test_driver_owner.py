"""A device has one owner: while a device plugin offers it, the driver gives it to no new claim."""

import time
from collections.abc import Iterator

import pytest

from tests.cluster.api import Api
from tests.cluster.controlplane import ControlPlane
from tests.cluster.driver import (
    EVENTS,
    Driver,
    connected,
    offer_legacy,
    run_pod,
    running,
    wait_gone,
    wait_running,
    wait_unprepared,
)
from tests.cluster.kubelet import Kubelet
from tests.cluster.manifests import NEURON, events, unschedulable_message
from tests.cluster.nodes import DRIVER
from tests.cluster.processes import eventually

TAINT = {"key": f"{DRIVER}/device-plugin", "value": "active", "effect": "NoSchedule"}
SECONDS = 10.0


@pytest.fixture
def guarded(request: pytest.FixtureRequest, control_plane: ControlPlane, kubelet: Kubelet) -> Iterator[Driver]:
    flags = (f"--device-plugin-guard={request.param}",)
    with running(control_plane, kubelet, "trn2.48xlarge", pod_uid="owner", flags=flags) as driver:
        try:
            yield driver
        finally:
            offer_legacy(control_plane.admin, kubelet.node, "0")


def held_back(driver: Driver, guard: str) -> bool:
    """Whether no new claim gets a device of the node."""
    devices = driver.devices()
    if guard == "Withhold":
        return bool(driver.slices()) and not devices
    marks = [[{key: taint.get(key) for key in TAINT} for taint in device.get("taints", ())] for device in devices]
    return len(devices) == 16 and all(each == [TAINT] for each in marks)


@pytest.mark.parametrize(
    ("guarded", "guard"),
    [pytest.param("Taint", "Taint", marks=pytest.mark.needs("taints")), ("Withhold", "Withhold")],
    indirect=["guarded"],
)
def test_allocatable_16_means_no_allocation_and_0_means_allocation(
    api: Api, namespace: str, kubelet: Kubelet, guarded: Driver, guard: str
) -> None:
    run_pod(api, namespace, "before", connected(4))
    wait_running(api, namespace, "before")

    began = time.monotonic()
    offer_legacy(api, kubelet.node, "16")
    eventually("the devices to be held back", lambda: held_back(guarded, guard), timeout=SECONDS)
    print(f"held back after {time.monotonic() - began:.2f} s")  # noqa: T201 - shown with -s
    run_pod(api, namespace, "waits", connected(4))
    unschedulable_message(api, namespace, "waits", "cannot allocate all claims")
    assert guarded.metric("device_plugin_active") == 1
    [said] = eventually("the event", lambda: events(api, EVENTS, kubelet.node, "DevicePluginActive")[-1:])
    assert f"allocatable {NEURON}: 16" in said
    assert api.get("Pod", "before", namespace)["status"]["phase"] == "Running"
    assert guarded.metric("prepared_devices") == 4, "what is prepared lives on"

    began = time.monotonic()
    offer_legacy(api, kubelet.node, "0")
    wait_running(api, namespace, "waits", timeout=SECONDS)
    print(f"running {time.monotonic() - began:.2f} s after the plugin left")  # noqa: T201 - shown with -s
    assert not any("taints" in device for device in guarded.devices())
    assert guarded.metric("device_plugin_active") == 0
    eventually("the event", lambda: events(api, EVENTS, kubelet.node, "DevicePluginGone"))
    for name in ("before", "waits"):
        wait_gone(api, namespace, name)
    wait_unprepared(kubelet, guarded)


@pytest.mark.needs("taints")
@pytest.mark.parametrize("guarded", ["Taint"], indirect=True)
def test_a_driver_that_starts_beside_a_device_plugin_allocates_nothing(
    api: Api, namespace: str, kubelet: Kubelet, guarded: Driver
) -> None:
    """The order of the installations does not matter."""
    guarded.process.stop()
    offer_legacy(api, kubelet.node, "16")
    run_pod(api, namespace, "waits", connected(4))
    unschedulable_message(api, namespace, "waits", "cannot allocate all claims")
    guarded.start()
    eventually("the devices to be held back", lambda: held_back(guarded, "Taint"), timeout=SECONDS)
    unschedulable_message(api, namespace, "waits", "cannot allocate all claims")
    offer_legacy(api, kubelet.node, "0")
    wait_running(api, namespace, "waits", timeout=SECONDS)
    wait_gone(api, namespace, "waits")
    wait_unprepared(kubelet, guarded)
