"""`neuron-dra map` on a real control plane, with its shipped rights: an emulated node, the scheduler's allocations."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api import Api
from tests.cluster.controlplane import ControlPlane
from tests.cluster.driver import Driver, bare_node, install_rbac
from tests.cluster.manifests import container, pod, scheduled_devices
from tests.cluster.nodes import Fleet
from tests.cluster.processes import eventually
from tests.cluster.webhooks import MANIFESTS, Webhook, load

NAMESPACE = "neuron-dra"
KINDS = "nodes,resourceslices,resourceclaims,pods"
FAULT = "devices/virtual/neuron_device/neuron{}/stats/hardware/mem_ecc_uncorrected"


@pytest.fixture
def driver(control_plane: ControlPlane, fleet: Fleet) -> Iterator[Driver]:
    """The driver of an emulated trn2 node that is only an object."""
    install_rbac(control_plane.admin)
    directory = Path(tempfile.mkdtemp(prefix="map-"))  # paths of sockets are short
    node = bare_node(fleet.add("trn2.48xlarge", publish=False), directory / "k")
    driver = Driver(control_plane, node, "trn2.48xlarge", flags=("--registration-wait=0",))
    try:
        driver.start_alone()
        yield driver
    finally:
        driver.process.stop()
        for each in driver.slices():
            control_plane.admin.delete("ResourceSlice", each["metadata"]["name"])
        shutil.rmtree(directory)


@pytest.fixture
def reader(control_plane: ControlPlane) -> Iterator[Path]:
    """A kubeconfig with the rights of the map's Deployment."""
    admin = control_plane.kubectl().within(NAMESPACE)
    namespace = next(each for each in load(MANIFESTS / "rbac.yaml") if each["kind"] == "Namespace")
    assert admin.feed("apply", namespace).ok
    made = [each for each in load(MANIFESTS / "map.yaml") if each["kind"] != "Deployment"]
    for each in made:
        assert admin.feed("apply", each).ok
    yield control_plane.token_kubeconfig("map", admin.must("create", "token", "neuron-dra-map").stdout.strip())
    for each in reversed(made):
        admin.must("delete", each["kind"], each["metadata"]["name"])


def command(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "commands", "map", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(api: Api, namespace: str, name: str, devices: int) -> list[int]:
    api.create(pod(name, container(neuron=devices), terminationGracePeriodSeconds=0), namespace)
    return sorted(scheduled_devices(api, namespace, name))


@pytest.mark.timeout(300)
@pytest.mark.needs("taints")
def test_the_map_shows_what_the_scheduler_allocated(
    control_plane: ControlPlane,
    api: Api,
    namespace: str,
    driver: Driver,
    webhook: Webhook,
    reader: Path,
    tmp_path: Path,
) -> None:
    assert webhook.running
    held = {name: run(api, namespace, name, count) for name, count in (("train-0", 4), ("old", 4), ("infer-0", 1))}
    held["train-1"] = run(api, namespace, "train-1", 4)
    api.delete("Pod", "old", namespace)
    free = held.pop("old")
    (driver.sysfs / FAULT.format(10)).write_text("3\n")
    cluster = f"--kubeconfig={reader}"

    def node() -> Any:
        document = json.loads(command(cluster, "-o", "json", driver.node))
        assert document["problems"] == []
        [found] = document["nodes"]
        assert found["devices"][10]["state"] == "unhealthy", found["devices"][10]
        assert found["largestFree"] == free
        return found

    found = eventually("the freed and the faulty devices to be seen", node, timeout=60)
    holders: dict[str, list[int]] = {}
    for device in found["devices"]:
        for holder in device["holders"]:
            assert holder["namespace"] == namespace
            for name in holder["pods"]:
                holders.setdefault(name, []).append(device["index"])
    assert holders == held
    assert found["devices"][10]["fault"] == "hbm-ecc"
    listed = control_plane.kubectl().must("get", KINDS, "--all-namespaces", "-o", "json").stdout
    (tmp_path / "cluster.json").write_text(listed)
    assert command("-f", str(tmp_path / "cluster.json"), driver.node) == command(cluster, driver.node)
