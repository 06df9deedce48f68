"""`cordon`, `drain` and `uncordon` on a real control plane, with a real kubelet and the driver.

With DeviceTaintRules enabled; served and not enabled; and as Kubernetes is by default before 1.37. Where they are
enabled on 1.36.0 to 1.36.2, the scheduler ignores them (kubernetes#139651), and no rule is written.
"""

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.api import Api
from tests.cluster.controlplane import Assets, ControlPlane
from tests.cluster.driver import Driver, indices, run_pod, running, started, wait_gone, wait_running
from tests.cluster.kubelet import Kubelet
from tests.cluster.manifests import devices_request, unschedulable_message
from tests.cluster.nodes import DRIVER, INSTANCE_TYPE
from tests.cluster.planes import with_gates
from tests.cluster.processes import eventually

GATES: dict[str, dict[str, bool] | None] = {
    "rules": {"DRADeviceTaints": True, "DRADeviceTaintRules": True},
    "served only": {"DRADeviceTaints": True, "DRADeviceTaintRules": False},
    "annotation": None,
}
TYPE = "trn2.48xlarge"
NODE = "node-1"
NAMESPACE = "team"
DEVICE = "neuron-device-3"
TARGET = f"{NODE}/{DEVICE}"
ONLY = {"devices": {"requests": [devices_request("n", selectors=(f'device.attributes["{DRIVER}"].deviceId == 3',))]}}
"""A claim for one device."""
REFUSED = "cannot allocate all claims"


@dataclasses.dataclass(frozen=True)
class World:
    """A cluster with one Neuron node.

    Attributes:
        served: whether it serves DeviceTaintRules.
        rules: whether they are used.
        taints: whether the API server keeps taints of slices.
        why: what is said if they are served and not used.
    """

    plane: ControlPlane
    kubelet: Kubelet
    driver: Driver
    served: bool
    rules: bool
    taints: bool
    why: str

    @property
    def api(self) -> Api:
        return self.plane.admin

    def command(self, *arguments: str, code: int = 0, kubeconfig: Path | None = None) -> tuple[str, str]:
        """Standard output and standard error of the program."""
        done = subprocess.run(
            [sys.executable, "-m", "commands", *arguments, f"--kubeconfig={kubeconfig or self.plane.admin_kubeconfig}"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stdout, done.stderr

    def run(self, name: str) -> None:
        run_pod(self.api, NAMESPACE, name, ONLY)

    def waits(self, name: str) -> None:
        unschedulable_message(self.api, NAMESPACE, name, REFUSED)

    def taint_rules(self) -> list[str]:
        if not self.served:
            return []
        version = "v1beta2" if self.plane.assets.version >= (1, 36, 0) else "v1alpha3"
        found = self.api.request("GET", f"/apis/resource.k8s.io/{version}/devicetaintrules").body["items"]
        return sorted(each["metadata"]["name"] for each in found)

    def annotation(self) -> str | None:
        annotations = self.api.get("Node", NODE)["metadata"].get("annotations") or {}
        found: str | None = annotations.get("neuron.aws.com/cordoned")
        return found


@pytest.fixture(scope="module", params=GATES)
def at(request: pytest.FixtureRequest, assets: Assets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    if not assets.has("kubelet"):
        pytest.skip(f"no kubelet to test on: {assets.folder} lacks kubelet; set KUBEBUILDER_ASSETS")
    version, gates = assets.version, GATES[request.param]
    if gates is not None and version < (1, 35, 0):
        pytest.skip("Kubernetes 1.34 has another gate for DeviceTaintRules")
    faulty = (1, 36, 0) <= version < (1, 36, 3)
    served = version >= (1, 36, 0) or gates is not None
    rules = request.param == "rules" and not faulty
    taints = gates is not None or version >= (1, 36, 0)
    why = "ignores DeviceTaintRules" if faulty else "does not act on DeviceTaintRules" if served and not rules else ""
    with with_gates(assets, tmp_path_factory.mktemp("plane"), gates, NAMESPACE) as plane:
        kubelet = Kubelet(plane, tmp_path_factory.mktemp("node"), NODE, {INSTANCE_TYPE: TYPE})
        try:
            kubelet.start()
            with running(plane, kubelet, TYPE) as driver:
                yield World(plane, kubelet, driver, served, rules, taints, why)
        finally:
            kubelet.stop()


@pytest.fixture(autouse=True)
def clean(at: World) -> Iterator[None]:
    yield
    at.command("uncordon", NODE)
    at.command("uncordon", TARGET)
    for kind in ("Deployment", "ReplicaSet"):
        at.api.delete_all(kind, NAMESPACE)
    for each in at.api.list("Pod", NAMESPACE):
        wait_gone(at.api, NAMESPACE, each["metadata"]["name"])
    at.api.delete_all("ResourceClaimTemplate", NAMESPACE)
    at.api.delete_all("PodDisruptionBudget", NAMESPACE)


def closed(at: World) -> Callable[[], bool]:
    """Whether the driver taints the device, or does not publish it."""

    def look() -> bool:
        found = [each for each in at.driver.devices() if each["name"] == DEVICE]
        taints = {taint["key"] for each in found for taint in each.get("taints", ())}
        return "neuron.aws.com/cordoned" in taints if at.taints else not found

    return look


def test_a_new_pod_gets_a_device_only_while_it_is_not_cordoned(at: World) -> None:
    at.run("first")
    wait_running(at.api, NAMESPACE, "first")
    said, told = at.command("cordon", TARGET)
    assert at.why in told
    assert bool(told) is bool(at.why)
    assert said.startswith(f"Cordoned {DEVICE} of {NODE} (")
    assert f"1 pod uses them and goes on: {NAMESPACE}/first." in said
    if at.rules:
        assert at.taint_rules() == [f"neuron-cordon-{NODE}.{DEVICE}"]
        assert at.annotation() is None
    else:
        assert at.annotation() == DEVICE
        assert closed(at)()
    wait_gone(at.api, NAMESPACE, "first")
    at.run("second")
    at.waits("second")
    if at.rules or at.taints:
        shown, _ = at.command("map", NODE, "-o", "json")
        assert '"neuron.aws.com/cordoned=admin:NoSchedule"' in shown
    said, _ = at.command("uncordon", TARGET)
    assert said == f"Uncordoned {DEVICE} of {NODE}.\n"
    assert (at.taint_rules(), at.annotation()) == ([], None)
    wait_running(at.api, NAMESPACE, "second")
    assert indices(started(at.kubelet, NAMESPACE, "second")) == [3]


def test_a_drain_lists_the_pods_first_and_evicts_them_only_after_confirmation(at: World) -> None:
    at.run("victim")
    wait_running(at.api, NAMESPACE, "victim")
    shown, said = at.command("drain", f"{NODE}/3", code=1)
    assert shown.splitlines()[0] == f"A drain of {DEVICE} of {NODE} evicts 1 pod:"
    assert shown.splitlines()[1].split() == ["NAMESPACE", "POD", "OWNER", "CLAIM", "DEVICES"]
    assert shown.splitlines()[2].split()[:2] == [NAMESPACE, "victim"]
    assert ("PodDisruptionBudgets do not count" in shown) is (at.rules or "act on" in at.why)
    assert f"Nothing creates these pods again: {NAMESPACE}/victim." in shown
    assert said == "Nothing was changed. Add --yes to drain.\n"
    assert (at.taint_rules(), at.annotation()) == ([], None)
    shown, said = at.command("drain", f"{NODE}/3", "--yes", "--timeout=90")
    assert f"Drained {DEVICE} of {NODE} (" in shown
    assert said.splitlines()[-1] == f"{NAMESPACE}/victim is gone."
    assert at.api.find("Pod", "victim", NAMESPACE) is None
    at.api.delete_all("ResourceClaimTemplate", NAMESPACE)
    at.run("next")
    at.waits("next")
    at.command("uncordon", TARGET)
    wait_running(at.api, NAMESPACE, "next")


def test_a_drained_node_keeps_pods_of_other_devices_away_and_a_budget_counts_without_rules(at: World) -> None:
    labels = {"app": "kept"}
    at.run("victim")
    at.api.merge("Pod", "victim", {"metadata": {"labels": labels}}, NAMESPACE)
    wait_running(at.api, NAMESPACE, "victim")
    budget = {"minAvailable": 1, "selector": {"matchLabels": labels}}
    at.plane.kubectl().within(NAMESPACE).feed(
        "apply",
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "kept"}, "spec": budget},
    )
    eventually(
        "the budget to be computed",
        lambda: (
            at.api.request("GET", f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets/kept")
            .body.get("status", {})
            .get("currentHealthy")
            == 1
        ),
    )
    if at.rules:
        at.command("drain", NODE, "--yes", "--timeout=90")
        assert at.api.find("Pod", "victim", NAMESPACE) is None
    else:
        shown, _ = at.command("drain", NODE, "--yes", "--timeout=3", code=1)
        assert f"after 3 s 1 pod is still there: {NAMESPACE}/victim. A PodDisruptionBudget may forbid" in shown
        assert at.api.get("Pod", "victim", NAMESPACE)["status"]["phase"] == "Running"
    any_device = {"devices": {"requests": [devices_request("n")]}}
    run_pod(at.api, NAMESPACE, "any", any_device)
    at.waits("any")
    said, _ = at.command("uncordon", TARGET)
    assert said == (
        f"No cordon of {DEVICE} of {NODE} was found.\nNode {NODE} is still cordoned: neuron-dra uncordon {NODE}\n"
    )
    at.command("uncordon", NODE)
    wait_running(at.api, NAMESPACE, "any")


def test_a_cordon_without_rights_changes_nothing_and_reports_the_missing_rule(at: World) -> None:
    nobody = at.plane.user_kubeconfig("someone")
    _, said = at.command("drain", NODE, "--yes", code=2, kubeconfig=nobody)
    assert "You are not allowed to list resourceslices.resource.k8s.io." in said
    assert "resources: [resourceslices], verbs: [list]" in said


def test_a_misspelt_device_is_reported(at: World) -> None:
    _, said = at.command("cordon", f"{NODE}/neuron-devise-3", code=2)
    assert f"Node {NODE} publishes no device 'neuron-devise-3'. Did you mean 'neuron-device-3'?" in said
    _, said = at.command("cordon", "node-2", code=2)
    assert "Node 'node-2' does not exist." in said
    assert (at.taint_rules(), at.annotation()) == ([], None)
