"""`neuron-dra report` on a real control plane: its rights, its objects, and what real controllers make."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commands.report.publish import ReportApi
from tests.cluster.api import Api, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.kubectl import Kubectl
from tests.cluster.manifests import container, pod, workload
from tests.cluster.nodes import INSTANCE_TYPE
from tests.cluster.processes import eventually
from tests.cluster.webhooks import MANIFESTS, Webhook
from tests.commands.report.test_policy_reports import OLDER, OPEN, SCHEMAS

TRN1 = {INSTANCE_TYPE: "trn1.32xlarge"}
POLICY = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ValidatingPolicy
metadata: {name: few}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
  validations: [{expression: "neuron.devices <= 2", message: too many devices}]
  validationActions: [Audit]
  severity: critical
"""


@dataclasses.dataclass(frozen=True)
class Command:
    """The command, as a user of the cluster."""

    kubeconfig: Path

    def run(self, *arguments: str | Path, stdin: str | None = None) -> "subprocess.CompletedProcess[str]":
        binary = Path(sys.executable).parent / "neuron-dra"
        argv = [str(binary), "report", f"--kubeconfig={self.kubeconfig}", *map(str, arguments)]
        return subprocess.run(argv, capture_output=True, text=True, timeout=90, check=False, input=stdin)

    def json(self, *arguments: str | Path) -> dict[str, Any]:
        done = self.run("-o", "json", *arguments)
        assert done.returncode in (0, 1), done.stderr
        assert done.stdout, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def crd(api: ReportApi, kind: str, plural: str, scope: str) -> Object:
    schema = {**SCHEMAS[api], "properties": {**SCHEMAS[api]["properties"], "metadata": {"type": "object"}}}
    version = {"name": api.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": _structural(schema)}}
    names = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
    spec = {"group": api.group, "scope": scope, "names": names, "versions": [version]}
    meta = {"name": f"{plural}.{api.group}"}
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": meta, "spec": spec}


def _structural(schema: Any) -> Any:
    """The schema as a CustomResourceDefinition takes it: with types, and without `additionalProperties: false`."""
    if isinstance(schema, list):
        return [_structural(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _structural(value) for key, value in schema.items() if (key, value) != ("additionalProperties", False)}
    return {"type": "string", **made} if "enum" in made and isinstance(made["enum"], list) else made


@pytest.fixture(scope="module")
def auditor(control_plane: ControlPlane, installed_webhook: Webhook) -> Iterator[Command]:
    """The ServiceAccount of the audit."""
    kubectl = control_plane.kubectl().within("neuron-dra")
    kubectl.must("apply", "-f", str(MANIFESTS / "audit.yaml"))
    token = kubectl.must("create", "token", "neuron-dra-audit", "--duration=2h").stdout.strip()
    try:
        yield Command(control_plane.token_kubeconfig("neuron-dra-audit", token))
    finally:
        kubectl.must("delete", "-f", str(MANIFESTS / "audit.yaml"), "--wait")


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "few.yaml").write_text(POLICY)
    return folder


@pytest.fixture
def older_api(control_plane: ControlPlane) -> Iterator[ReportApi]:
    yield from _installed(control_plane.kubectl(), OLDER, ("PolicyReport", "ClusterPolicyReport"))


@pytest.fixture
def open_api(control_plane: ControlPlane) -> Iterator[ReportApi]:
    yield from _installed(control_plane.kubectl(), OPEN, ("Report", "ClusterReport"))


def _installed(kubectl: Kubectl, api: ReportApi, kinds: tuple[str, str]) -> Iterator[ReportApi]:
    made = [
        crd(api, kind, f"{kind.lower()}s", scope) for kind, scope in zip(kinds, ("Namespaced", "Cluster"), strict=True)
    ]
    kubectl.feed("apply", *made)
    for each in made:
        kubectl.must("wait", "--for=condition=Established", f"crd/{each['metadata']['name']}", "--timeout=30s")
    try:
        yield api
    finally:
        for each in made:
            kubectl.must("delete", "crd", each["metadata"]["name"], "--wait")


def test_real_controllers_objects_are_one_workload(
    api: Api, namespace: str, kubectl: Kubectl, auditor: Command
) -> None:
    kubectl.must("annotate", "namespace", namespace, "neuron.aws.com/convert=off")
    kubectl.feed("apply", workload("Deployment", "serve", pod("x", container(neuron=4)), replicas=2))
    kubectl.feed(
        "apply",
        workload("Job", "train", pod("x", container(neuron=7), nodeSelector=TRN1), parallelism=3, completions=3),
    )
    eventually("five pods", lambda: len(api.list("Pod", namespace)) == 5)
    found = auditor.json("-n", namespace, "--no-webhook-records")
    assert [(each["kind"], each["name"], each["pods"], each["fate"]) for each in found["workloads"]] == [
        ("Deployment", "serve", 2, "stays"),
        ("Job", "train", 3, "stays"),
    ]
    assert [each["podsNow"] for each in found["workloads"]] == [
        {"plugin": 2, "converted": 0, "withoutNode": 2},
        {"plugin": 3, "converted": 0, "withoutNode": 3},
    ]
    kubectl.must("annotate", "namespace", namespace, "--overwrite", "neuron.aws.com/convert=shadow")

    def in_shadow() -> bool | None:
        again = auditor.json("-n", namespace, "--no-webhook-records")
        return [(each["fate"], each["mode"]) for each in again["workloads"]] == [
            ("refused", "shadow (namespace)"),
            ("converts", "shadow (namespace)"),
        ] or None

    eventually("shadow mode", in_shadow)


def test_a_migrated_namespace_is_reported(api: Api, namespace: str, kubectl: Kubectl, auditor: Command) -> None:
    kubectl.feed("apply", workload("Deployment", "serve", pod("x", container(neuron=4)), replicas=2))
    eventually("two pods", lambda: len(api.list("Pod", namespace)) == 2)
    found = auditor.json("-n", namespace, "--no-webhook-records")
    assert [(each["fate"], each["podsNow"]["converted"]) for each in found["workloads"]] == [("converted", 2)]
    assert found["steps"] == []


@pytest.mark.usefixtures("webhook")
def test_refusals_are_read_from_events(control_plane: ControlPlane, namespace: str, kubectl: Kubectl) -> None:
    kubectl.feed("apply", workload("Deployment", "odd", pod("x", container(neuron=7), nodeSelector=TRN1)))
    admin = Command(control_plane.admin_kubeconfig)

    def told() -> bool | None:
        seen = admin.json("-n", namespace)["shadow"]
        return any(each["outcome"] == "denied" and "NEU105" in each["codes"] for each in seen) or None

    eventually("the Event", told)


def test_a_missing_api_for_reports_is_an_error_with_the_fix(auditor: Command, policies: Path) -> None:
    done = auditor.run("--policies", policies, "--write-policy-reports", "--no-webhook-records")
    assert done.returncode == 2
    assert "the cluster serves no API for policy reports: install the CustomResourceDefinitions" in done.stderr


def test_reports_are_written_with_the_older_api(
    api: Api, namespace: str, kubectl: Kubectl, auditor: Command, policies: Path, older_api: ReportApi
) -> None:
    kubectl.feed("apply", workload("Deployment", "serve", pod("x", container(neuron=4))))
    done = auditor.run("--policies", policies, "--write-policy-reports", "--no-webhook-records")
    assert done.returncode == 0, done.stderr
    stored = kubectl.get("policyreports.wgpolicyk8s.io", "neuron-dra")
    [result] = stored["results"]
    assert (result["policy"], result["result"], result["severity"]) == ("few", "fail", "high")
    assert result["resources"][0]["uid"] == kubectl.get("deployment", "serve")["metadata"]["uid"]
    assert stored["summary"]["fail"] == 1


def test_the_open_reports_api_is_preferred_and_results_follow_deleted_objects(
    namespace: str,
    kubectl: Kubectl,
    auditor: Command,
    policies: Path,
    older_api: ReportApi,
    open_api: ReportApi,
) -> None:
    kubectl.feed("apply", workload("Deployment", "serve", pod("x", container(neuron=4))))
    write = ("--policies", policies, "--write-policy-reports", "--no-webhook-records")
    first = auditor.run(*write)
    assert first.returncode == 0, first.stderr
    assert "Report objects of openreports.io/v1alpha1: " in first.stderr
    stored = kubectl.get("reports.openreports.io", "neuron-dra")
    assert [each["severity"] for each in stored["results"]] == ["critical"]
    assert stored["configuration"]["limits"]["statusFilter"] == ["fail", "warn", "error", "skip"]
    assert "0 created, 0 updated" in auditor.run(*write).stderr
    assert (
        kubectl.get("reports.openreports.io", "neuron-dra")["metadata"]["resourceVersion"]
        == (stored["metadata"]["resourceVersion"])
    )
    kubectl.must("delete", "deployment", "serve", "--wait")
    kubectl.must("wait", "--for=delete", "pods", "--all", "--timeout=30s")

    def gone() -> bool | None:
        assert auditor.run(*write).returncode == 0
        return not kubectl.run("get", "reports.openreports.io", "neuron-dra").ok or None

    eventually("the report to be deleted", gone)


def test_rights_that_are_missing_are_named(control_plane: ControlPlane, namespace: str) -> None:
    done = Command(control_plane.user_kubeconfig("report-nobody")).run("-n", namespace)
    assert done.returncode == 2
    assert 'give "report-nobody" a ClusterRole with this rule' in done.stderr
