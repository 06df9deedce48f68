"""From an earlier commit to this build and back, both at once: `make upgrade-test BASE=<commit>`."""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cluster.api import Api, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.driver import (
    Driver,
    connected,
    indices,
    install_rbac,
    neuron_environment,
    opaque,
    run_pod,
    started,
    wait_gone,
    wait_running,
    wait_unprepared,
)
from tests.cluster.helm import Helm
from tests.cluster.kubelet import Kubelet
from tests.cluster.manifests import LNC, container, generated_templates, pod, template_names
from tests.cluster.nodes import Fleet
from tests.cluster.processes import eventually
from tests.cluster.webhooks import Webhook
from tests.cluster.webhooks import install_rbac as install_webhook_rbac

ROOT: Final = Path(__file__).resolve().parents[2]
BASE: Final = os.environ.get("NEURON_DRA_UPGRADE_BASE", "")
RELEASE: Final = "neuron-dra-upgrade"
TYPE: Final = "trn2.48xlarge"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code of the earlier commit, from the history."""
    if not BASE:
        pytest.skip("no earlier commit is named: make upgrade-test BASE=<commit>")
    folder = tmp_path_factory.mktemp("base")
    with (folder / "base.tar").open("wb") as out:
        subprocess.run(["git", "-C", str(ROOT), "archive", BASE], stdout=out, check=True)
    with tarfile.open(folder / "base.tar") as tar:
        tar.extractall(folder / "code", filter="data")
    return folder / "code"


# --- the webhook ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def webhooks(control_plane: ControlPlane, base: Path) -> Iterator[tuple[Webhook, Webhook]]:
    """The earlier build and this one, both running; the API server calls the earlier one."""
    kubeconfig = install_webhook_rbac(control_plane)
    before, now = Webhook(control_plane, kubeconfig, base), Webhook(control_plane, kubeconfig)
    try:
        for each in (before, now):
            each.start()
        before.install()
        yield before, now
    finally:
        for each in (before, now):
            each.stop()
        before.uninstall()


def call(plane: ControlPlane, webhook: Webhook) -> None:
    """Have the API server call this build; return when it does, and the build knows the instance type."""
    for configuration in webhook.configurations():
        name = configuration["metadata"]["name"]
        plane.admin.merge(configuration["kind"], name, {"webhooks": configuration["webhooks"]})

    def called() -> bool:
        seen = webhook.reviews()
        converted = webhook.preview(pod("canary", container(neuron=1))).body
        return webhook.reviews() > seen and TYPE in json.dumps(converted["spec"])

    eventually("the API server to call the other build", called)


WORKLOADS: Final = {
    "one": pod("one", container(neuron=1)),
    "four": pod("four", container(neuron=4)),
    "sixteen": pod("sixteen", container(neuron=16)),
    "lnc": pod("lnc", container(neuron=4), annotations={LNC: "1"}),
    "cores": pod("cores", container(neuroncore=4)),
    "core": pod("core", container(neuroncore=1)),
    "two": pod("two", container(neuron=4), container("side", neuron=8)),
}


def created(api: Api, namespace: str, build: str) -> dict[str, list[str]]:
    """Workload -> the templates of a new pod."""
    made: dict[str, list[str]] = {}
    for name, manifest in WORKLOADS.items():
        named = manifest | {"metadata": {**manifest["metadata"], "name": f"{name}-{build}"}}
        made[name] = template_names(api.create(named, namespace).body)
        assert made[name], f"{name} was not converted"
    return made


def test_an_unchanged_workload_keeps_its_template_and_old_ones_are_pruned(
    control_plane: ControlPlane, api: Api, namespace: str, fleet: Fleet, webhooks: tuple[Webhook, Webhook]
) -> None:
    before, now = webhooks
    fleet.add(TYPE)
    call(control_plane, before)
    first = created(api, namespace, "before")
    call(control_plane, now)
    assert created(api, namespace, "now") == first
    # Pods of the earlier build are updated, and refused what cannot be changed, by this one.
    for name in WORKLOADS:
        api.merge("Pod", f"{name}-before", {"metadata": {"labels": {"team": "a"}}}, namespace)
    call(control_plane, before)
    assert created(api, namespace, "back") == first
    names = set(generated_templates(api, namespace))
    assert names == {name for each in first.values() for name in each}
    api.delete_all("Pod", namespace, force=True)
    assert pruned(control_plane, namespace) == dict.fromkeys(names, "removed")


def pruned(plane: ControlPlane, namespace: str) -> dict[str, str]:
    flags = (f"--namespace={namespace}", f"--kubeconfig={plane.admin_kubeconfig}", "--older-than=0s", "--grace=1s")
    argv = [sys.executable, "-m", "commands", "templates", "prune", *flags, "-ojson"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {each["name"]: each["outcome"] for each in json.loads(done.stdout)["templates"]}


def test_policies_of_the_earlier_build_are_loaded(base: Path) -> None:
    argv = [sys.executable, "-m", "commands", "policy", "test", str(base / "policies" / "packs")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# --- the driver -------------------------------------------------------------------------------------------------------


@pytest.fixture
def drivers(control_plane: ControlPlane, kubelet: Kubelet, base: Path) -> Iterator[tuple[Driver, Driver]]:
    """The earlier build and this one."""
    install_rbac(control_plane.admin)
    made = [
        Driver(
            control_plane,
            kubelet,
            TYPE,
            pod_uid=uid,
            flags=("--sweep-interval=2",),
            environment={"PYTHONPATH": str(code), "PYTHONSAFEPATH": "1"},
        )
        for uid, code in (("before", base), ("now", ROOT))
    ]
    try:
        yield made[0], made[1]
    finally:
        for each in made:
            each.process.stop()


def with_lnc(count: int) -> Object:
    spec = connected(count)
    spec["devices"]["config"] = [opaque("NeuronConfig", logicalNeuronCore=1)]
    return spec


def seen(kubelet: Kubelet, namespace: str, names: tuple[str, ...]) -> dict[str, tuple[list[int], dict[str, str]]]:
    """Pod -> its devices and variables."""
    found = {name: started(kubelet, namespace, name) for name in names}
    return {name: (indices(each), neuron_environment(each)) for name, each in found.items()}


def test_prepared_claims_survive_the_upgrade_and_the_rollback(
    api: Api, namespace: str, kubelet: Kubelet, drivers: tuple[Driver, Driver]
) -> None:
    before, now = drivers
    before.start()
    running: tuple[str, ...] = ()
    for name, spec in (("four", connected(4)), ("lnc", with_lnc(4)), ("goes", connected(4))):
        run_pod(api, namespace, name, spec)
        wait_running(api, namespace, name)
        running += (name,)
    known = seen(kubelet, namespace, running)
    for other, leaving, gone, new in ((now, before, "goes", "during"), (before, now, "during", "after")):
        other.start()
        leaving.process.stop()
        eventually("its claims to be known", lambda d=other: d.metric("prepared_claims") == 3)  # type: ignore[misc]
        wait_gone(api, namespace, gone)
        eventually("a claim to be unprepared", lambda d=other: d.metric("prepared_claims") == 2)  # type: ignore[misc]
        run_pod(api, namespace, new, connected(4))
        wait_running(api, namespace, new)
        now_seen = seen(kubelet, namespace, ("four", "lnc", new))
        assert {name: now_seen[name] for name in ("four", "lnc")} == {name: known[name] for name in ("four", "lnc")}
        held = [device for devices, _ in now_seen.values() for device in devices]
        assert len(held) == len(set(held)) == 12
        assert {each["name"] for each in other.devices()} >= {f"neuron-device-{index}" for index in range(16)}
    for each in api.list("Pod", namespace):
        wait_gone(api, namespace, each["metadata"]["name"])
    wait_unprepared(kubelet, before)


# --- the chart --------------------------------------------------------------------------------------------------------


def specs(admin: Api) -> dict[str, Any]:
    return {
        name: admin.get(kind, name, RELEASE)["spec"]["template"]["spec"]["containers"][0]["args"]
        for kind, name in (("Deployment", "neuron-dra"), ("DaemonSet", "neuron-dra-kubelet-plugin"))
    }


def test_the_release_is_upgraded_with_its_values_and_rolled_back(own_control_plane: ControlPlane, base: Path) -> None:
    plane = own_control_plane
    plane.admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": RELEASE}})
    plane.wait_namespace_usable(RELEASE)
    helm = Helm(plane, RELEASE)
    values = {"conversion": {"mode": "convert"}, "policies": {"packs": ["privileged"]}, "webhook": {"replicas": 3}}
    try:
        helm.install(values, chart=base / "deploy" / "chart")
        before = specs(plane.admin)
        helm.upgrade({})
        now = specs(plane.admin)
        assert "--mode=convert" in now["neuron-dra"]
        assert plane.admin.get("Deployment", "neuron-dra", RELEASE)["spec"]["replicas"] == 3
        helm.rollback()
        assert specs(plane.admin) == before
        helm.upgrade({"webhook": {"workers": 2}})
        assert specs(plane.admin) == now, "a value that was removed changes nothing"
    finally:
        helm.uninstall()
        helm.close()
