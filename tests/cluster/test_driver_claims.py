"""Selection by attributes, the status of claims, and monitoring with adminAccess; the driver has its shipped rights."""

import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.cluster.api import Api, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.driver import Driver, indices, run_pod, started, wait_gone, wait_running, wait_unprepared
from tests.cluster.kubelet import Kubelet
from tests.cluster.manifests import container, devices_request, pod, unschedulable_message
from tests.cluster.nodes import DRIVER, INSTANCE_TYPE
from tests.cluster.processes import eventually
from tests.cluster.webhooks import MANIFESTS, load

ROOT = Path(__file__).parents[2]
OTHER = "gpu.example.com"
NAMESPACE, ACCOUNT = "neuron-dra", "neuron-dra-kubelet-plugin"


def memory(amount: str) -> tuple[str, ...]:
    return (f'device.capacity["{DRIVER}"].memory.compareTo(quantity("{amount}")) >= 0',)


def asking(*selectors: str, count: int = 1) -> Object:
    return {"devices": {"requests": [devices_request("one", count=count, selectors=selectors)]}}


def namespace_of(obj: Object) -> str:
    return str(obj["metadata"].get("namespace", "default"))


def reference(obj: Object) -> tuple[str, str]:
    return str(obj["kind"]), str(obj["metadata"]["name"])


@pytest.fixture
def account(control_plane: ControlPlane, kubelet: Kubelet) -> Iterator[Path]:
    """A kubeconfig with the token of a driver's pod on the kubelet's node, under the shipped rights and policies."""
    api = control_plane.admin
    made: list[Object] = []
    for each in (*load(MANIFESTS / "rbac.yaml"), *load(MANIFESTS / "kubelet-plugin.yaml")):
        name = each["metadata"]["name"]
        wanted = each["kind"] in {"ServiceAccount", "ClusterRole", "ClusterRoleBinding"} or "Policy" in each["kind"]
        if each["kind"] == "Namespace" or (wanted and name.startswith(ACCOUNT)):
            made.append(each)
    admin = control_plane.kubectl()
    made = [each for each in made if not admin.within(namespace_of(each)).run("get", *reference(each)).ok]
    for each in made:
        created = admin.within(namespace_of(each)).feed("create", each)
        assert created.ok, created.stderr
    driver_pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "driver"},
        "spec": {
            "nodeName": kubelet.node,
            "serviceAccountName": ACCOUNT,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "driver"}],
        },
    }
    api.create(driver_pod, NAMESPACE)
    kubectl = admin.within(NAMESPACE)
    bound = ("--bound-object-kind=Pod", "--bound-object-name=driver")
    token = kubectl.must("create", "token", ACCOUNT, *bound).stdout.strip()
    yield control_plane.token_kubeconfig("node-driver", token)
    api.delete("Pod", "driver", NAMESPACE)
    for each in reversed(made):
        if each["kind"] != "Namespace":
            admin.within(namespace_of(each)).must("delete", *reference(each))
    eventually("the pod to be gone", lambda: api.find("Pod", "driver", NAMESPACE) is None, timeout=60)


@pytest.fixture
def driver(control_plane: ControlPlane, kubelet: Kubelet, account: Path) -> Iterator[Driver]:
    made = Driver(control_plane, kubelet, "trn2.48xlarge", kubeconfig=account)
    try:
        made.start()
        yield made
    finally:
        made.process.stop()


def test_claims_select_by_memory_and_by_the_standard_attributes(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver
) -> None:
    device = driver.device("neuron-device-0")
    assert {name: each["value"] for name, each in device["capacity"].items()} == {"memory": "96Gi", "neuroncores": "8"}
    assert device["attributes"]["resource.kubernetes.io/numaNode"] == {"int": 1}
    run_pod(api, namespace, "large", asking(*memory("80Gi")))
    wait_running(api, namespace, "large")
    run_pod(api, namespace, "larger", asking(*memory("100Gi")))
    unschedulable_message(api, namespace, "larger", "cannot allocate all claims")
    near = {"matchAttribute": "resource.kubernetes.io/numaNode"}
    spec = asking('device.attributes["resource.kubernetes.io"].numaNode == 0', count=8)
    spec["devices"]["constraints"] = [near]
    run_pod(api, namespace, "near", spec)
    wait_running(api, namespace, "near")
    assert indices(started(kubelet, namespace, "near")) == list(range(4, 12))
    for name in ("large", "larger", "near"):
        wait_gone(api, namespace, name)
    wait_unprepared(kubelet, driver)


def claim_of(api: Api, namespace: str, name: str) -> Object:
    [status] = api.get("Pod", name, namespace)["status"]["resourceClaimStatuses"]
    return api.get("ResourceClaim", status["resourceClaimName"], namespace)


def entries(api: Api, namespace: str, name: str) -> list[Any]:
    return list(claim_of(api, namespace, name)["status"].get("devices", ()))


def test_the_claim_status_has_the_devices_and_their_health(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver
) -> None:
    run_pod(api, namespace, "two", asking(count=2))
    wait_running(api, namespace, "two")
    found = eventually("the entries", lambda: entries(api, namespace, "two"), timeout=30)
    # Other tests' claims may still hold some of the first devices.
    first, second = indices(started(kubelet, namespace, "two"))
    assert [(each["driver"], each["pool"], each["device"]) for each in found] == [
        (DRIVER, kubelet.node, f"neuron-device-{first}"),
        (DRIVER, kubelet.node, f"neuron-device-{second}"),
    ]
    assert [each["data"]["deviceIds"] for each in found] == [[first], [second]]
    told = {each["type"]: each["status"] for each in found[0]["conditions"]}
    assert told == {"Ready": "True", "Healthy": "True"}

    counter = driver.sysfs / "devices/virtual/neuron_device" / f"neuron{second}" / "stats/hardware/mem_ecc_uncorrected"
    counter.write_text("1\n")

    def healthy() -> list[str]:
        conditions = [each["conditions"] for each in entries(api, namespace, "two")]
        return [each["status"] for device in conditions for each in device if each["type"] == "Healthy"]

    eventually("the sick device to be seen", lambda: healthy() == ["True", "False"], timeout=30)
    counter.write_text("0\n")
    eventually("it to be well again", lambda: healthy() == ["True", "True"], timeout=30)
    version = claim_of(api, namespace, "two")["metadata"]["resourceVersion"]
    driver.process.stop()
    driver.start()
    time.sleep(3)
    assert claim_of(api, namespace, "two")["metadata"]["resourceVersion"] == version, "a restart writes nothing"
    wait_gone(api, namespace, "two")
    wait_unprepared(kubelet, driver)
    assert "claim status not written" not in driver.process.log.read_text()


@pytest.fixture
def foreign_claim(api: Api, namespace: str, kubelet: Kubelet) -> Iterator[str]:
    """A claim with a device of this driver on the node, one on another node, and one of another driver.

    Yields the path that changes its status, in a dry run.
    """
    spec = {"devices": {"requests": [devices_request("r", count=3)]}}
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "mixed"}, "spec": spec}
    api.create(claim, namespace)
    node = kubelet.node
    places = [(DRIVER, node, "neuron-device-0"), (DRIVER, "another-node", "neuron-device-0"), (OTHER, node, "gpu-0")]
    entries = [dict(zip(("driver", "pool", "device"), place, strict=True)) for place in places]
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    allocation = {
        "devices": {"results": [{"request": "r", **each} for each in entries]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    }
    # Without a pod that holds it, the controller would deallocate the claim.
    api.create(pod("holder", container(), schedulingGates=[{"name": "example.com/never"}]), namespace)
    holder = api.get("Pod", "holder", namespace)["metadata"]["uid"]
    reserved = [{"resource": "pods", "name": "holder", "uid": holder}]
    status = {"allocation": allocation, "reservedFor": reserved, "devices": entries}
    api.merge("ResourceClaim", "mixed", {"status": status}, namespace, subresource="status")
    yield f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/mixed/status?dryRun=All"
    # It holds a device that other tests need.
    api.delete("ResourceClaim", "mixed", namespace)
    eventually("the claim to be gone", lambda: api.find("ResourceClaim", "mixed", namespace) is None)


def patch_error(address: str, credentials: Path, *patch: Object) -> str:
    """The API server's message for a JSON patch in a dry run; empty: it would be applied."""
    config = yaml.safe_load(credentials.read_text())
    server, token = config["clusters"][0]["cluster"], config["users"][0]["user"]["token"]
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json-patch+json"}
    trust = ssl.create_default_context(cafile=server["certificate-authority"])
    answer = httpx.patch(server["server"] + address, json=patch, headers=headers, verify=trust, trust_env=False)
    return "" if answer.is_success else str(answer.json()["message"])


def note(entry: int) -> Object:
    """A patch that adds a condition to an entry."""
    condition = {"type": "Note", "status": "True", "reason": "Test", "message": ""}
    value = [condition | {"lastTransitionTime": "2026-01-01T00:00:00Z"}]
    return {"op": "add", "path": f"/status/devices/{entry}/conditions", "value": value}


UNRESERVED: Object = {"op": "add", "path": "/status/reservedFor", "value": []}


@pytest.mark.needs("status-rights")
def test_the_drivers_token_writes_only_its_own_entries(
    control_plane: ControlPlane, foreign_claim: str, account: Path
) -> None:
    address = foreign_claim
    assert patch_error(address, account, note(0)) == ""
    assert 'changing status.devices requires resource="resourceclaims/driver"' in patch_error(address, account, note(2))
    assert 'requires resource="resourceclaims/binding"' in patch_error(address, account, UNRESERVED)
    unbound = control_plane.kubectl().within(NAMESPACE).must("create", "token", ACCOUNT).stdout.strip()
    assert "arbitrary-node:patch" in patch_error(address, control_plane.token_kubeconfig("unbound", unbound), note(0))


def test_the_admission_policy_checks_status_writes_that_the_api_server_does_not_check(
    control_plane: ControlPlane, api: Api, kubelet: Kubelet, foreign_claim: str, account: Path
) -> None:
    """With the rights that `resourceclaims/status` implies before Kubernetes 1.36."""
    group, name = "rbac.authorization.k8s.io", "as-before-1.36"
    rules = [
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/driver"], "verbs": ["arbitrary-node:patch"]},
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/binding"], "verbs": ["patch"]},
    ]
    role = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
    }
    for each in (role, binding):
        api.create(each)
    address = foreign_claim
    try:
        said = "may write status.devices of a ResourceClaim only for its own devices of that node"
        eventually("the policy to be in force", lambda: said in patch_error(address, account, note(2)), timeout=60)
        assert f"the Neuron DRA driver on node {kubelet.node} {said}" in patch_error(address, account, note(1))
        assert "may not change the reservations" in patch_error(address, account, UNRESERVED)
        forgotten: Object = {"op": "remove", "path": "/status/allocation"}
        assert "may not change the allocation" in patch_error(address, account, UNRESERVED, forgotten)
        unbound = control_plane.kubectl().within(NAMESPACE).must("create", "token", ACCOUNT).stdout.strip()
        assert "names no node" in patch_error(address, control_plane.token_kubeconfig("unbound", unbound), note(0))
        assert patch_error(address, account, note(0)) == ""
    finally:
        for each in (role, binding):
            api.delete(each["kind"], name)


def test_monitoring_with_admin_access_sees_every_device_and_holds_none(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver
) -> None:
    """The example's DaemonSet, on a node of which other pods use every device."""
    run_pod(api, namespace, "all", asking(count=8))
    run_pod(api, namespace, "rest", asking(count=8))
    for name in ("all", "rest"):
        wait_running(api, namespace, name)
    example = ROOT / "deploy/examples/monitoring-daemonset/daemonset.yaml"
    objects = [each for each in yaml.safe_load_all(example.read_text()) if each]
    where = objects[0]["metadata"]["name"]
    api.merge("Node", kubelet.node, {"metadata": {"labels": {INSTANCE_TYPE: "trn2.48xlarge"}}})
    try:
        for each in objects:
            api.create(each, each["metadata"].get("namespace", ""))

        def monitor() -> str:
            pods = [each for each in api.list("Pod", where) if each["status"]["phase"] == "Running"]
            return str(pods[0]["metadata"]["name"]) if pods else ""

        name = eventually("the monitor to run", monitor, timeout=90)
        seen = kubelet.runtime.created(where, name)["monitor"]
        assert indices(seen) == list(range(16))
        assert not any(variable.startswith("NEURON") for variable in seen.sees.env)
        assert driver.metric("prepared_devices") == 16, "the monitor holds none"
        wait_gone(api, namespace, "all")
        run_pod(api, namespace, "next", asking(count=8))
        wait_running(api, namespace, "next")
    finally:
        for each in reversed(objects):
            api.delete(each["kind"], each["metadata"]["name"], where)
        api.delete_all("Pod", where, force=True)
    for name in ("rest", "next"):
        wait_gone(api, namespace, name)
    wait_unprepared(kubelet, driver)
