"""Kubernetes 1.34 and 1.35: no shared counters and no device taints. A node offers one kind of device, or none."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.api import Api, ApiError, Object
from tests.cluster.controlplane import Assets, ControlPlane
from tests.cluster.driver import Driver, bare_node, install_rbac, offer_legacy, opaque, run_pod, whole_node
from tests.cluster.manifests import (
    ULTRASERVER_MODE,
    container,
    devices_request,
    pod,
    unschedulable_message,
    wait_scheduled,
)
from tests.cluster.nodes import DRIVER, Fleet
from tests.cluster.planes import with_gates
from tests.cluster.processes import eventually
from tests.cluster.webhooks import Webhook
from tests.cluster.webhooks import install_rbac as install_webhook_rbac

TYPE = "trn2u.48xlarge"
LABEL = "neuron.aws.com/ultraserver-publish"
GATES = {"DRAPartitionableDevices": False, "DRADeviceTaints": False, "DRAConsumableCapacity": False}
NAMESPACE = "team"


@pytest.fixture(scope="module")
def plane(assets: Assets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with with_gates(assets, tmp_path_factory.mktemp("plane"), GATES, NAMESPACE) as plane:
        yield plane


@pytest.fixture
def admin(plane: ControlPlane) -> Api:
    return plane.admin


@pytest.fixture
def driver(plane: ControlPlane) -> Iterator[Driver]:
    """The driver of one UltraServer node that is only an object."""
    install_rbac(plane.admin)
    fleet = Fleet(plane.admin, "node")
    directory = Path(tempfile.mkdtemp(prefix="gates-"))
    node = bare_node(fleet.add(TYPE, publish=False), directory / "k")
    driver = Driver(plane, node, TYPE, flags=("--registration-wait=0",))
    try:
        driver.start_alone()
        yield driver
    finally:
        driver.process.stop()
        plane.admin.delete_all("Pod", NAMESPACE, force=True)
        fleet.clear()
        shutil.rmtree(directory)


def published(driver: Driver) -> set[str]:
    return {device["name"] for device in driver.devices()}


DEVICES = {f"neuron-device-{index}" for index in range(16)}
WHOLE = {"neuron-node"}


def label(api: Api, node: str, value: str | None) -> None:
    api.merge("Node", node, {"metadata": {"labels": {LABEL: value}}})


def test_the_label_switches_the_node_and_the_documented_claim_runs(admin: Api, driver: Driver) -> None:
    eventually("the devices", lambda: published(driver) == DEVICES)
    run_pod(admin, NAMESPACE, "whole", whole_node(opaque("UltraServerConfig", ultraserverMode=4)))
    unschedulable_message(admin, NAMESPACE, "whole", "cannot allocate all claims")
    label(admin, driver.node, "node")
    wait_scheduled(admin, NAMESPACE, "whole")
    assert published(driver) == WHOLE
    assert driver.metric('ultraserver_publish{offer="node"}') == 1
    label(admin, driver.node, None)
    eventually("the devices again", lambda: published(driver) == DEVICES)
    assert driver.metric('ultraserver_publish{offer="devices"}') == 1


def test_no_device_is_published_beside_a_device_plugin_without_device_taints(admin: Api, driver: Driver) -> None:
    eventually("the devices", lambda: published(driver) == DEVICES)
    offer_legacy(admin, driver.node, "16")
    eventually("the devices to go", lambda: bool(driver.slices()) and not published(driver), timeout=10)
    run_pod(admin, NAMESPACE, "one", {"devices": {"requests": [devices_request("one")]}})
    unschedulable_message(admin, NAMESPACE, "one", "cannot allocate all claims")
    driver.process.stop()
    driver.process.start()
    driver.process.wait_ready(lambda: bool(driver.slices()))
    assert published(driver) == set(), "not even for a moment after a start"
    offer_legacy(admin, driver.node, "0")
    wait_scheduled(admin, NAMESPACE, "one", timeout=10)


def test_the_webhook_denies_requests_for_devices_that_nodes_do_not_publish(
    plane: ControlPlane, admin: Api, driver: Driver
) -> None:
    eventually("the devices", lambda: published(driver) == DEVICES)
    webhook = Webhook(plane, install_webhook_rbac(plane))

    def ultraserver(name: str) -> Object:
        return pod(name, container(neuron=16), annotations={ULTRASERVER_MODE: "4"})

    def refused(made: Object, text: str) -> bool:
        try:
            admin.create(made, NAMESPACE, dry_run=True)
        except ApiError as error:
            return text in str(error)
        return False

    def admitted(made: Object) -> bool:
        try:
            admin.create(made, NAMESPACE, dry_run=True)
        except ApiError:
            return False
        return True

    single = pod("four", container(neuron=4), nodeSelector={"node.kubernetes.io/instance-type": TYPE})
    try:
        webhook.start()
        webhook.install()
        eventually(
            "UltraServer pods to be refused",
            lambda: refused(ultraserver("us"), f"NEU118: No node of type {TYPE} publishes the whole node"),
        )
        assert admitted(single)
        label(admin, driver.node, "node")
        eventually("UltraServer pods to be admitted", lambda: admitted(ultraserver("us")))
        eventually(
            "single devices to be refused",
            lambda: refused(single, f"NEU118: The nodes of type {TYPE} publish only the whole node"),
        )
        admin.create(ultraserver("us"), NAMESPACE)
        found = wait_scheduled(admin, NAMESPACE, "us")
        assert found["spec"]["nodeName"] == driver.node
        assert DRIVER in str(admin.list("ResourceSlice"))
    finally:
        webhook.stop()
