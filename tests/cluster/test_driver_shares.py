"""Containers on Inferentia nodes get consecutive devices and their own cores, from a real scheduler and kubelet."""

import itertools
from collections.abc import Iterator

import pytest

from neuron.hardware import windows
from tests.cluster.api import Api, Object
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
from tests.cluster.manifests import devices_request, unschedulable_message
from tests.cluster.nodes import DRIVER
from tests.cluster.processes import eventually

pytestmark = pytest.mark.needs("shares")


@pytest.fixture(scope="module")
def driver(control_plane: ControlPlane, kubelet: Kubelet) -> Iterator[Driver]:
    """Four devices with four cores each, in a chain."""
    with running(control_plane, kubelet, "inf1.6xlarge", flags=("--share-cores=on",)) as driver:
        yield driver


@pytest.fixture(autouse=True)
def emptied(api: Api, namespace: str, kubelet: Kubelet, driver: Driver) -> Iterator[None]:
    yield
    for each in api.list("Pod", namespace):
        wait_gone(api, namespace, each["metadata"]["name"])
    wait_unprepared(kubelet, driver)


def share(name: str = "c", cores: int = 1) -> Object:
    request = devices_request(name)
    request["exactly"]["capacity"] = {"requests": {"neuroncores": str(cores)}}
    return request


def nine_cores() -> Object:
    """Two whole devices, and one core of a device beside them."""
    alternatives, constraints = [], []
    pairs = itertools.product((windows.attribute(3, shift) for shift in (0, 1)), map(windows.attribute, (2, 2), (0, 1)))
    for number, (outer, inner) in enumerate(pairs):
        alternatives.append({"name": f"s{number}", "deviceClassName": DRIVER, "count": 2})
        constraints.append({"requests": [f"w/s{number}", "c"], "matchAttribute": outer})
        constraints.append({"requests": [f"w/s{number}"], "matchAttribute": inner})
    requests = [{"name": "w", "firstAvailable": alternatives}, share()]
    return {"devices": {"requests": requests, "constraints": constraints}}


def test_devices_are_published_with_windows_and_cores(driver: Driver) -> None:
    device = driver.device("neuron-device-1")
    assert device["allowMultipleAllocations"] is True
    assert device["capacity"]["neuroncores"] == {
        "value": "4",
        "requestPolicy": {"default": "4", "validValues": ["0", "1", "2", "4"]},
    }
    assert device["attributes"][f"{DRIVER}/window3_1"] == {"string": "window-1"}
    assert driver.metric("slice_dropped_fields") == 0


def test_nine_cores_are_two_devices_and_one_core_and_the_rest_is_free(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver
) -> None:
    run_pod(api, namespace, "nine", nine_cores())
    wait_running(api, namespace, "nine")
    seen = started(kubelet, namespace, "nine")
    assert (indices(seen), neuron_environment(seen)) == ([0, 1, 2], {"NEURON_RT_VISIBLE_CORES": "0-8"})
    cores = set()
    for number in range(7):
        # One after the other: while an allocation is written, the scheduler can count its share twice. Then it refuses
        # the pod that takes the last core, and looks at it again only after another change of the cluster.
        run_pod(api, namespace, f"one-{number}", {"devices": {"requests": [share()]}})
        wait_running(api, namespace, f"one-{number}")
        cores.add(neuron_environment(started(kubelet, namespace, f"one-{number}"))["NEURON_RT_VISIBLE_CORES"])
    assert cores == {str(core) for core in range(9, 16)}
    run_pod(api, namespace, "one-more", {"devices": {"requests": [share()]}})
    unschedulable_message(api, namespace, "one-more", "cannot allocate all claims")


def test_a_restarted_driver_gives_no_core_twice(api: Api, namespace: str, kubelet: Kubelet, driver: Driver) -> None:
    run_pod(api, namespace, "first", {"devices": {"requests": [share(cores=2)]}})
    wait_running(api, namespace, "first")
    before = driver.slices()
    driver.process.kill()
    driver.start()
    assert driver.slices() == before, "nothing was written: all was as it should be"
    run_pod(api, namespace, "second", {"devices": {"requests": [share(cores=2)]}})
    wait_running(api, namespace, "second")
    variables = [neuron_environment(started(kubelet, namespace, name)) for name in ("first", "second")]
    assert variables == [{"NEURON_RT_VISIBLE_CORES": "0-1"}, {"NEURON_RT_VISIBLE_CORES": "2-3"}]


def test_a_request_without_cores_gets_whole_devices_beside_shares(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver
) -> None:
    run_pod(api, namespace, "one", {"devices": {"requests": [share()]}})
    wait_running(api, namespace, "one")
    run_pod(api, namespace, "whole", {"devices": {"requests": [devices_request("n", count=3)]}})
    wait_running(api, namespace, "whole")
    seen = started(kubelet, namespace, "whole")
    assert (indices(seen), neuron_environment(seen)) == ([1, 2, 3], {})


def everything() -> Object:
    request = devices_request("all")
    request["exactly"] = {"deviceClassName": DRIVER, "allocationMode": "All"}
    return {"devices": {"requests": [request]}}


def set_sharing(api: Api, driver: Driver, label: str | None, shared: bool) -> None:
    api.merge("Node", driver.node, {"metadata": {"labels": {"neuron.aws.com/share-cores": label}}})
    wanted = [shared] * 4
    eventually("slices", lambda: [bool(e.get("allowMultipleAllocations")) for e in driver.devices()] == wanted)


def test_all_waits_for_all_devices_only_where_the_label_of_the_node_switches_sharing_off(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver
) -> None:
    one = {"devices": {"requests": [devices_request("one")]}}
    run_pod(api, namespace, "one", one)
    wait_running(api, namespace, "one")
    run_pod(api, namespace, "rest", everything())
    wait_running(api, namespace, "rest")
    assert len(indices(started(kubelet, namespace, "rest"))) == 3, "what is used up is left out"
    for name in ("one", "rest"):
        wait_gone(api, namespace, name)
    wait_unprepared(kubelet, driver)
    set_sharing(api, driver, "off", shared=False)
    try:
        run_pod(api, namespace, "first", one)
        wait_running(api, namespace, "first")
        run_pod(api, namespace, "all", everything())
        unschedulable_message(api, namespace, "all", "cannot allocate all claims")
        wait_gone(api, namespace, "first")
        wait_running(api, namespace, "all")
        assert indices(started(kubelet, namespace, "all")) == [0, 1, 2, 3]
        wait_gone(api, namespace, "all")
        wait_unprepared(kubelet, driver)
    finally:
        set_sharing(api, driver, None, shared=True)
