"""The emergency steps of docs/operations.md: each alone, with its way back, as Helm 3 and as Helm 4 apply."""

import base64
import gzip
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cluster import guide, statuses
from tests.cluster.controlplane import ControlPlane
from tests.cluster.helm import Helm
from tests.cluster.kubectl import Kubectl
from tests.cluster.manifests import container, is_converted, pod
from tests.cluster.processes import eventually
from tests.cluster.webhooks import CONFIGURATION_KINDS, Webhook

ROOT: Final = Path(__file__).resolve().parents[2]
NAMESPACE: Final = "neuron-dra"
[SECTION] = [
    step
    for step in guide.read(ROOT / "docs" / "operations.md")
    if step.title.startswith("When Neuron pods are refused")
]
IN_NAMESPACE, BY_DEFAULT, FAIL_OPEN, REMOVE = SECTION.parts
POLICIES: Final = {"policies": {"packs": ["privileged"]}}


class Admin:
    """A shell with kubectl and helm, and a release in a cluster without a replica that answers.

    Attributes:
        way: `Helm 3`: Helm's objects are as a client-side apply leaves them, and its releases do not say how they were
            applied. Then Helm's engine makes three-way patches in the client, as Helm 3 does.
    """

    def __init__(self, plane: ControlPlane, directory: Path, way: str) -> None:
        self.plane, self.way = plane, way
        self._helm = Helm(plane, NAMESPACE)
        self._directory = directory
        (directory / "deploy").symlink_to(ROOT / "deploy")
        commands = {
            "helm": f"{shlex.quote(sys.executable)} -m tests.cluster.helm_command",
            "kubectl": shlex.quote(str(plane.assets.kubectl)),
        }
        for name, command in commands.items():
            (directory / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            (directory / name).chmod(0o755)

    def install(self, values: Any) -> None:
        self._apply("install", values)

    def upgrade(self, values: Any) -> None:
        self._apply("upgrade --reset-then-reuse-values", values)

    def _apply(self, command: str, values: Any) -> None:
        """In a process like those of the page: Helm's engine names its field manager after the process."""
        (self._directory / "values.yaml").write_text(json.dumps(values))
        self.run(f"helm {command} neuron-dra deploy/chart --namespace {NAMESPACE} --values values.yaml")

    def remove(self) -> None:
        self._helm.uninstall()
        self._helm.close()

    def run(self, script: str) -> None:
        """Run a block of the page as it stands."""
        env = os.environ | {
            "PATH": f"{self._directory}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "KUBECONFIG": str(self.plane.admin_kubeconfig),
        }
        shell = ["bash", "-euo", "pipefail", "-c", script]
        done = subprocess.run(shell, cwd=self._directory, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        if "helm" in script:
            self._as_helm_3()

    def failure_policies(self) -> dict[str, str]:
        """Entry -> its failurePolicy."""
        found = [self.plane.admin.find(kind, "neuron-dra") for kind in CONFIGURATION_KINDS]
        return {entry["name"]: entry["failurePolicy"] for each in found if each for entry in each["webhooks"]}

    def managers(self) -> set[str]:
        found = self.plane.kubectl().must(
            "get", ",".join(CONFIGURATION_KINDS), "neuron-dra", "--output=json", "--show-managed-fields"
        )
        return {
            f"{field['manager']} {field['operation']}"
            for each in json.loads(found.stdout)["items"]
            for field in each["metadata"]["managedFields"]
        }

    def _as_helm_3(self) -> None:
        if self.way != "Helm 3":
            return
        admin = self.plane.admin
        for secret in admin.list("Secret", NAMESPACE, labelSelector="owner=helm"):
            release = json.loads(gzip.decompress(base64.b64decode(base64.b64decode(secret["data"]["release"]))))
            release.pop("apply_method", None)
            packed = base64.b64encode(base64.b64encode(gzip.compress(json.dumps(release).encode()))).decode()
            admin.merge("Secret", secret["metadata"]["name"], {"data": {"release": packed}}, NAMESPACE)
        for kind in CONFIGURATION_KINDS:
            fields = admin.get(kind, "neuron-dra")["metadata"]["managedFields"]
            for field in fields:
                if field["operation"] == "Apply" and field["manager"] != "emergency":
                    field |= {"operation": "Update", "manager": "helm"}
            admin.merge(kind, "neuron-dra", {"metadata": {"managedFields": fields}})


@pytest.fixture(scope="module")
def plane(own_control_plane: ControlPlane) -> ControlPlane:
    own_control_plane.admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    own_control_plane.wait_namespace_usable(NAMESPACE)
    return own_control_plane


@pytest.fixture(params=["Helm 3", "Helm 4"])
def admin(plane: ControlPlane, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Admin]:
    made = Admin(plane, tmp_path, request.param)
    try:
        yield made
    finally:
        made.remove()


def is_pod_refused(admin: Admin) -> bool:
    """Whether a Neuron pod is refused because no replica answers."""
    urgent = json.dumps(pod("urgent", container(neuron=1)))
    done = admin.plane.kubectl().run("create", "--dry-run=server", "--namespace=default", "-f", "-", stdin=urgent)
    assert done.ok or "failed calling webhook" in done.stderr, done.stderr
    return not done.ok


def later_upgrades_work(admin: Admin) -> None:
    """A later release changes the same fields, in both directions."""
    for policy in ("Ignore", "Fail"):
        admin.upgrade({"admission": {"conversion": {"failurePolicy": policy}, "claims": {"failurePolicy": policy}}})
        found = admin.failure_policies()
        assert {found["mutate.neuron.aws.com"], found["claims.validate.neuron.aws.com"]} == {policy}


@pytest.mark.parametrize("values", [{}, POLICIES], ids=["no policies", "policies"])
def test_calls_fail_open_and_back(admin: Admin, values: Any) -> None:
    admin.install(values)
    before = admin.failure_policies()
    assert set(before.values()) == {"Fail", "Ignore"}
    eventually("the webhook to be called", lambda: is_pod_refused(admin))
    do, back = SECTION.parts[FAIL_OPEN]
    admin.run(do)
    assert set(admin.failure_policies().values()) == {"Ignore"}
    eventually("the pod to be admitted", lambda: not is_pod_refused(admin))
    admin.run(back)
    assert admin.failure_policies() == before
    eventually("the webhook to be called", lambda: is_pod_refused(admin))
    assert not any("emergency" in each for each in admin.managers())
    admin.upgrade({})
    assert admin.failure_policies() == before
    later_upgrades_work(admin)


def test_removed_configurations_come_back(admin: Admin) -> None:
    admin.install({})
    before = admin.failure_policies()
    eventually("the webhook to be called", lambda: is_pod_refused(admin))
    do, back = SECTION.parts[REMOVE]
    admin.run(do)
    assert admin.failure_policies() == {}
    eventually("the pod to be admitted", lambda: not is_pod_refused(admin))
    admin.run(back)
    assert admin.failure_policies() == before
    later_upgrades_work(admin)


def test_conversion_is_off_by_default_and_on_again(admin: Admin) -> None:
    admin.install({"conversion": {"mode": "convert"}})
    do, back = SECTION.parts[BY_DEFAULT]
    admin.run(do)
    assert mode(admin) == "--mode=off"
    admin.run(back)
    assert mode(admin) == "--mode=convert"
    later_upgrades_work(admin)


def mode(admin: Admin) -> str:
    [spec] = admin.plane.admin.get("Deployment", "neuron-dra", NAMESPACE)["spec"]["template"]["spec"]["containers"]
    return next(str(each) for each in spec["args"] if each.startswith("--mode="))


def test_conversion_is_off_in_a_namespace_and_on_again(
    webhook: Webhook, kubectl: Kubectl, namespace: str, tmp_path: Path, control_plane: ControlPlane
) -> None:
    do, back = (block.replace("team-a", namespace) for block in SECTION.parts[IN_NAMESPACE])

    def converted() -> bool:
        return is_converted(control_plane.admin.create(pod("p", container(neuron=1)), namespace, dry_run=True).body)

    shell = Admin(control_plane, tmp_path, "Helm 4")
    assert converted()
    shell.run(do)
    eventually("conversion to be off", lambda: not converted())
    shell.run(back)
    eventually("conversion to be on", converted)


def test_every_step_has_a_command_and_a_way_back() -> None:
    assert {len(blocks) for blocks in SECTION.parts.values()} == {2}


EDITS: Final[dict[str, Any]] = {
    "failurePolicy": {"failurePolicy": "Ignore"},
    "selector": {"objectSelector": {"matchLabels": {"no": "pod"}}},
    "rules": {"rules": []},
    "condition": {"matchConditions": [{"name": "none", "expression": "false"}]},
    "Service": {"clientConfig": {"service": {"name": "other", "namespace": NAMESPACE, "path": "/mutate"}}},
}


def wrong(admin: Admin) -> list[Any]:
    found = statuses.status(admin.plane.admin_kubeconfig)
    return [each for each in found.checks if each["check"] == "webhooks" and each["verdict"] == "wrong"]


def test_the_fix_that_status_prints_for_edited_configurations_works(admin: Admin) -> None:
    """`kubectl patch` owns the fields then, so that Helm 4 alone refuses to change them."""
    admin.install({})
    kubectl = admin.plane.kubectl()
    before = wrong(admin)
    for name, edit in EDITS.items():
        patch = [{"op": "add", "path": f"/webhooks/0/{field}", "value": value} for field, value in edit.items()]
        done = kubectl.must(
            "patch", CONFIGURATION_KINDS[0], "neuron-dra", "--type=json", f"--patch={json.dumps(patch)}"
        )
        assert "patched" in done.stdout
        told = [each for each in wrong(admin) if each not in before]
        assert told, name
        [fix] = {each["fix"].partition(" Choose other")[0] for each in told}
        found = re.search(r"(kubectl delete [^;]+); (helm upgrade .*--reset-then-reuse-values)", fix)
        assert found, fix
        admin.run(f"{found[1]}\n{found[2].replace('<chart>', 'deploy/chart')}")
        assert wrong(admin) == before, name
        assert not any("kubectl-patch" in each for each in admin.managers())
    admin.upgrade({})
    later_upgrades_work(admin)
