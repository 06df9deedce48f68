"""Restarts, kills and upgrades lose nothing; sick devices are seen by users and avoided by the scheduler."""

from collections.abc import Iterator

import pytest

from tests.cluster.api import Api, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.driver import (
    Driver,
    connected,
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
from tests.cluster.manifests import claim_template, container, devices_request, pod, unschedulable_message
from tests.cluster.nodes import DRIVER
from tests.cluster.processes import eventually

OLD, NEW = "old", "new"


@pytest.fixture
def driver(control_plane: ControlPlane, kubelet: Kubelet) -> Iterator[Driver]:
    with running(control_plane, kubelet, "trn2.48xlarge", pod_uid=OLD) as driver:
        yield driver


def single(index: int = -1) -> Object:
    selectors = (f'device.attributes["{DRIVER}"].deviceId == {index}',) if index >= 0 else ()
    return {"devices": {"requests": [devices_request("one", selectors=selectors)]}}


def wait_published(driver: Driver) -> None:
    eventually("the slices to be back", lambda: bool(driver.slices()), timeout=60)


def check_claim_goes_on(api: Api, namespace: str, kubelet: Kubelet, driver: Driver) -> None:
    """The pod `four` still has its devices, no other pod gets them, and they are free when it has ended."""
    assert driver.metric("prepared_devices") == 4
    run_pod(api, namespace, "twelve", {"devices": {"requests": [devices_request("n", count=12)]}})
    wait_running(api, namespace, "twelve")
    assert indices(started(kubelet, namespace, "twelve")) == list(range(4, 16))
    for name in ("four", "twelve"):
        wait_gone(api, namespace, name)
    wait_unprepared(kubelet, driver)


def test_a_restarted_kubelet_keeps_claims_and_slices(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver
) -> None:
    run_pod(api, namespace, "four", connected(4))
    wait_running(api, namespace, "four")
    [before] = driver.slices()

    def made_again() -> bool:
        """The kubelet wipes the slices when it starts, so what is there may still be the old one, or nothing."""
        found = driver.slices()
        return bool(found) and found[0]["metadata"]["uid"] != before["metadata"]["uid"]

    kubelet.restart()
    eventually("the wiped slice to be made again", made_again, timeout=60)
    wait_published(driver)
    assert driver.slices()[0]["spec"]["devices"] == before["spec"]["devices"]
    check_claim_goes_on(api, namespace, kubelet, driver)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_restarted_driver_keeps_claims_and_slices(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver, how: str
) -> None:
    run_pod(api, namespace, "four", connected(4))
    wait_running(api, namespace, "four")
    before = driver.slices()
    getattr(driver.process, how)()
    if how == "stop":
        assert driver.slices() == [], "no driver could prepare claims that are allocated meanwhile"
    driver.start()
    if how == "kill":
        assert driver.slices() == before, "nothing was written: all was as it should be"
    assert [each["spec"]["devices"] for each in driver.slices()] == [each["spec"]["devices"] for each in before]
    assert api.get("Pod", "four", namespace)["status"]["containerStatuses"][0]["restartCount"] == 0
    check_claim_goes_on(api, namespace, kubelet, driver)


def test_a_pod_deleted_while_the_driver_is_absent_is_unprepared_later(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver
) -> None:
    run_pod(api, namespace, "four", connected(4))
    wait_running(api, namespace, "four")
    driver.process.kill()
    api.delete("Pod", "four", namespace)
    driver.start()
    wait_unprepared(kubelet, driver)


def test_two_instances_overlap_during_an_upgrade(
    api: Api, namespace: str, kubelet: Kubelet, control_plane: ControlPlane, driver: Driver
) -> None:
    run_pod(api, namespace, "four", connected(4))
    wait_running(api, namespace, "four")
    before = driver.slices()
    upgraded = Driver(control_plane, kubelet, "trn2.48xlarge", pod_uid=NEW)
    try:
        upgraded.start()
        assert driver.slices() == before
        run_pod(api, namespace, "meanwhile", connected(4))
        wait_running(api, namespace, "meanwhile")
        assert upgraded.metric('claims_total{operation="prepare",result="success"}') == 1, "the newest is called"
        driver.process.stop()
        assert upgraded.slices() == before
        wait_gone(api, namespace, "meanwhile")
        eventually("the pod to be unprepared", lambda: upgraded.metric("prepared_devices") == 4)
        assert [path.name for path in sorted(kubelet.plugins_registry.iterdir())] == [f"{DRIVER}-{NEW}-reg.sock"]
        for each in upgraded.slices():
            api.delete("ResourceSlice", each["metadata"]["name"])
        wait_published(upgraded)
        check_claim_goes_on(api, namespace, kubelet, upgraded)
    finally:
        upgraded.process.stop()


def test_a_restart_of_the_api_server_does_not_affect_claims(
    api: Api, namespace: str, kubelet: Kubelet, control_plane: ControlPlane, driver: Driver
) -> None:
    before = driver.slices()
    control_plane.restart_apiserver()
    run_pod(api, namespace, "four", connected(4))
    wait_running(api, namespace, "four")
    assert driver.slices() == before
    api.delete("ResourceSlice", before[0]["metadata"]["name"])
    wait_published(driver)
    wait_gone(api, namespace, "four")
    wait_unprepared(kubelet, driver)


def resource_health(api: Api, namespace: str, name: str) -> list[str]:
    statuses = api.get("Pod", name, namespace)["status"]["containerStatuses"][0]
    return [each["health"] for entry in statuses.get("allocatedResourcesStatus", []) for each in entry["resources"]]


@pytest.mark.needs("taints", "health-in-status")
def test_an_unhealthy_device_is_reported_tainted_avoided_and_used_again_later(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver
) -> None:
    run_pod(api, namespace, "user", single(2))
    wait_running(api, namespace, "user")
    eventually("the pod to show health", lambda: resource_health(api, namespace, "user") == ["Healthy"], timeout=60)
    counter = driver.sysfs / "devices/virtual/neuron_device/neuron2/stats/hardware/sram_ecc_uncorrected"
    counter.write_text("1\n")
    eventually("the taint", lambda: "taints" in driver.device("neuron-device-2"))
    [taint] = driver.device("neuron-device-2")["taints"]
    assert (taint["key"], taint["value"], taint["effect"]) == (f"{DRIVER}/unhealthy", "sram-ecc", "NoSchedule")
    eventually("the pod to show it", lambda: resource_health(api, namespace, "user") == ["Unhealthy"], timeout=60)
    wait_gone(api, namespace, "user")
    wait_unprepared(kubelet, driver)
    run_pod(api, namespace, "next", single(2))
    unschedulable_message(api, namespace, "next", "cannot allocate all claims")
    counter.write_text("0\n")
    wait_running(api, namespace, "next")
    assert "taints" not in driver.device("neuron-device-2")
    wait_gone(api, namespace, "next")
    wait_unprepared(kubelet, driver)


@pytest.mark.needs("taints")
def test_pods_of_an_unhealthy_device_are_stopped_where_that_is_asked_for(
    control_plane: ControlPlane, api: Api, namespace: str, kubelet: Kubelet
) -> None:
    with running(control_plane, kubelet, "trn2.48xlarge", flags=("--unhealthy-taint=NoExecute",)) as driver:
        for index in (2, 3):
            run_pod(api, namespace, f"user-{index}", single(index))
            wait_running(api, namespace, f"user-{index}")
        counter = driver.sysfs / "devices/virtual/neuron_device/neuron2/stats/hardware/sram_ecc_uncorrected"
        counter.write_text("1\n")
        eventually("the pod to be deleted", lambda: api.find("Pod", "user-2", namespace) is None, timeout=120)
        assert api.get("Pod", "user-3", namespace)["status"]["phase"] == "Running"
        wait_gone(api, namespace, "user-3")
        wait_unprepared(kubelet, driver)
        counter.write_text("0\n")  # The next driver of this kubelet has the same emulated devices.


def test_a_monitor_with_admin_access_sees_all_devices_beside_their_users(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver
) -> None:
    api.merge("Namespace", namespace, {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}})
    run_pod(api, namespace, "four", connected(4))
    wait_running(api, namespace, "four")
    request = {"deviceClassName": DRIVER, "allocationMode": "All", "adminAccess": True}
    run_pod(api, namespace, "monitor", {"devices": {"requests": [{"name": "all", "exactly": request}]}})
    wait_running(api, namespace, "monitor")
    assert indices(started(kubelet, namespace, "monitor")) == list(range(16))
    assert driver.metric("prepared_devices") == 4, "a claim with adminAccess holds nothing"
    wait_gone(api, namespace, "monitor")
    eventually("the monitor to be unprepared", lambda: len(list(kubelet.cdi_directory.glob("*.json"))) == 1)
    assert driver.metric("prepared_devices") == 4
    check_claim_goes_on(api, namespace, kubelet, driver)


@pytest.mark.needs("subsets")
def test_each_container_gets_the_devices_of_its_request_or_alternative(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver
) -> None:
    """Requests of one claim go to different containers; an alternative is referred to by its request."""
    big = devices_request("big", count=17)["exactly"]
    small = devices_request("small", count=2)["exactly"]
    alternatives = {"name": "any", "firstAvailable": [{"name": "big", **big}, {"name": "small", **small}]}
    config = {
        "requests": ["any/small"],
        "opaque": {
            "driver": DRIVER,
            "parameters": {"apiVersion": f"{DRIVER}/v1", "kind": "NeuronConfig", "logicalNeuronCore": 1},
        },
    }
    spec = {"devices": {"requests": [alternatives, devices_request("one")], "config": [config]}}
    api.create(claim_template("both", spec), namespace)
    claims = [{"name": "neuron", "resourceClaimTemplateName": "both"}]

    def uses(name: str, request: str) -> Object:
        return container(name, resources={"claims": [{"name": "neuron", "request": request}]})

    containers = (uses("a", "any"), uses("b", "one"))
    api.create(pod("p", *containers, resourceClaims=claims, terminationGracePeriodSeconds=0), namespace)
    wait_running(api, namespace, "p")
    made = kubelet.runtime.created(namespace, "p")
    assert (len(indices(made["a"])), len(indices(made["b"]))) == (2, 1)
    assert not set(indices(made["a"])) & set(indices(made["b"]))
    assert neuron_environment(made["a"]) == {"NEURON_LOGICAL_NC_CONFIG": "1"}
    assert neuron_environment(made["b"]) == {}
    wait_gone(api, namespace, "p")
    wait_unprepared(kubelet, driver)
