"""What is told of the devices of a pod: to its containers, at the path of Kubernetes, and to Prometheus."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.discover import emulate
from tests.cluster.api import Api
from tests.cluster.controlplane import ControlPlane
from tests.cluster.driver import Driver, indices, run_pod, started, wait_gone, wait_running, wait_unprepared
from tests.cluster.kubelet import Kubelet
from tests.cluster.manifests import container, devices_request, pod
from tests.cluster.nodes import DRIVER
from tests.cluster.processes import eventually

ROOT = "/var/run/kubernetes.io/dra-device-attributes"
CLAIM = {"devices": {"requests": [devices_request("one", count=2)]}}


@pytest.fixture
def driver(control_plane: ControlPlane, kubelet: Kubelet) -> Iterator[Driver]:
    made = Driver(control_plane, kubelet, "trn2.48xlarge")
    try:
        made.start()
        yield made
    finally:
        made.process.stop()


def mounted(kubelet: Kubelet, namespace: str, name: str) -> dict[str, Path]:
    """Metadata files that a container sees -> their paths on the host."""
    found = started(kubelet, namespace, name).sees.mounts
    assert all("ro" in options for path, (_, options) in found.items() if path.startswith(ROOT))
    return {path: Path(source) for path, (source, _) in found.items() if path.startswith(ROOT)}


def devices_of(path: Path) -> list[dict[str, Any]]:
    [request] = json.loads(path.read_text())["requests"]
    return list(request["devices"])


def test_a_container_reads_the_metadata_of_its_devices(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver
) -> None:
    run_pod(api, namespace, "made", CLAIM)
    wait_running(api, namespace, "made")
    own = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "own"}, "spec": CLAIM}
    api.create(own, namespace)
    uses = container(resources={"claims": [{"name": "mine", "request": "one"}]})
    entry = [{"name": "mine", "resourceClaimName": "own"}]
    api.create(pod("direct", uses, resourceClaims=entry, terminationGracePeriodSeconds=0), namespace)
    wait_running(api, namespace, "direct")
    paths = {
        "made": f"{ROOT}/resourceclaimtemplates/neuron/one/{DRIVER}-metadata.json",
        "direct": f"{ROOT}/resourceclaims/own/one/{DRIVER}-metadata.json",
    }
    sources = []
    for name, path in paths.items():
        found = mounted(kubelet, namespace, name)
        assert list(found) == [path]
        seen = devices_of(found[path])
        assert sorted(each["attributes"]["deviceId"]["int"] for each in seen) == indices(
            started(kubelet, namespace, name)
        )
        for each in seen:
            published = driver.device(each["name"])["attributes"]
            assert published.items() <= each["attributes"].items()
            assert each["attributes"]["neuroncores"] == {"int": 8}
        sources.append(found[path])
    for name in paths:
        wait_gone(api, namespace, name)
    api.delete("ResourceClaim", "own", namespace)
    wait_unprepared(kubelet, driver)
    assert not any(source.exists() for source in sources)


def memory(driver: Driver, namespace: str, name: str) -> dict[int, float]:
    """Bytes by device, as the series name the container of a pod."""
    labels = rf'container="main",cores="0-7",device="neuron-device-(\d+)",namespace="{namespace}",pod="{name}"'
    found = re.findall(rf"^neuron_dra_device_memory_used_bytes{{[^}}]*{labels}}} (\S+)$", driver.scrape(), re.MULTILINE)
    return {int(index): float(value) for index, value in found}


def test_series_tell_which_devices_of_a_pod_are_idle(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver
) -> None:
    run_pod(api, namespace, "lazy", CLAIM)
    wait_running(api, namespace, "lazy")
    used, idle = indices(started(kubelet, namespace, "lazy"))
    emulate.write_use(driver.sysfs, used, range(8), memory=1 << 20)
    eventually("the memory", lambda: memory(driver, namespace, "lazy") == {used: 8 << 20, idle: 0})
    wait_gone(api, namespace, "lazy")
    wait_unprepared(kubelet, driver)
    eventually("no series", lambda: memory(driver, namespace, "lazy") == {})
