"""adminAccess: a tenant who may change their own Namespace gets no device of other tenants.

The chart's policies are in force, and the tenant has the role `edit` in the namespace and may label it.
"""

import re
from collections.abc import Iterator

import pytest

from tests.cluster.api import Api, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.driver import run_pod, running, wait_gone
from tests.cluster.kubectl import Kubectl, Result
from tests.cluster.kubelet import Kubelet
from tests.cluster.manifests import events
from tests.cluster.nodes import DRIVER
from tests.cluster.processes import eventually
from tests.cluster.webhooks import MANIFESTS, load

LABEL = "resource.kubernetes.io/admin-access"
TENANT = "tenant-of-admin-access"
POLICIES = "neuron-dra-admin-access"
DENIED = "adminAccess to Neuron devices is not allowed"
OTHER = "gpu.example.com"


def admin_claim(version: str = "v1", device_class: str = DRIVER) -> Object:
    fields: Object = {"deviceClassName": device_class, "allocationMode": "All", "adminAccess": True}
    request: Object = {"name": "all", **fields} if version == "v1beta1" else {"name": "all", "exactly": fields}
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceClaim",
        "metadata": {"generateName": "looks-"},
        "spec": {"devices": {"requests": [request]}},
    }


def admin_template(version: str) -> Object:
    claim = admin_claim(version)
    return {**claim, "kind": "ResourceClaimTemplate", "spec": {"spec": claim["spec"]}}


@pytest.fixture
def tenant(api: Api, namespace: str) -> Iterator[str]:
    """A user with the role `edit`, with claims, who may also change the Namespace."""
    group = "rbac.authorization.k8s.io"
    subjects = [{"kind": "User", "apiGroup": group, "name": TENANT}]
    own = {"resources": ["namespaces", "namespaces/status"], "resourceNames": [namespace]}
    rules = [{"apiGroups": [""], **own, "verbs": ["*"]}]
    claims = [{"apiGroups": ["resource.k8s.io"], "resources": ["*"], "verbs": ["*"]}]
    name = f"{TENANT}-{namespace}"
    version = f"{group}/v1"
    for where, kind, allowed in (("", "ClusterRole", rules), (namespace, "Role", claims)):
        api.create({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "rules": allowed}, where)
        reference = {"apiGroup": group, "kind": kind, "name": name}
        api.create(
            {
                "apiVersion": version,
                "kind": f"{kind}Binding",
                "metadata": {"name": name},
                "subjects": subjects,
                "roleRef": reference,
            },
            where,
        )
    yield f"--as={TENANT}"
    for kind in ("ClusterRoleBinding", "ClusterRole"):
        api.delete(kind, name)


@pytest.fixture
def in_force(api: Api, kubectl: Kubectl) -> Iterator[None]:
    manifests = load(MANIFESTS / "kubelet-plugin.yaml")
    shipped = [each for each in manifests if each["metadata"]["name"].startswith(POLICIES)]
    assert len(shipped) == 4, "two policies with their bindings"
    for each in shipped:
        kubectl.feed("create", each)
    probe = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "probe", "labels": {LABEL: "true"}}}
    api.create(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "namespaces-only"},
            "rules": [{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["create"]}],
        }
    )
    kubectl.must("create", "clusterrolebinding", "namespaces-only", "--clusterrole=namespaces-only", "--user=maker")
    eventually(
        "the policies to be in force",
        lambda: POLICIES in kubectl.feed("create", probe, flags=("--as=maker", "--dry-run=server")).stderr,
        timeout=60,
    )
    # Without the label, the API server refuses the claim itself, whether the policy is in force or not.
    kubectl.must("label", "namespace", kubectl.namespace, f"{LABEL}=true")
    eventually(
        "the policy on claims to be in force",
        lambda: DENIED in kubectl.feed("create", admin_claim(), flags=("--dry-run=server",)).stderr,
        timeout=60,
    )
    kubectl.must("label", "namespace", kubectl.namespace, f"{LABEL}-")
    yield
    kubectl.must("delete", "clusterrolebinding", "namespaces-only")
    api.delete("ClusterRole", "namespaces-only")
    for each in reversed(shipped):
        kubectl.must("delete", each["kind"], each["metadata"]["name"])


def error_of(result: Result) -> str:
    assert not result.ok, result.stdout
    return " ".join(result.stderr.split())


def test_the_driver_refuses_admin_access_elsewhere(
    control_plane: ControlPlane, api: Api, namespace: str, kubelet: Kubelet
) -> None:
    """Without the chart's policies, as in a cluster that does not have them."""
    api.merge("Namespace", namespace, {"metadata": {"labels": {LABEL: "true"}}})
    with running(control_plane, kubelet, "trn2.48xlarge", admin_access="neuron-monitoring"):
        run_pod(api, namespace, "looks", admin_claim()["spec"])

        def told() -> str:
            found = events(api, namespace, "looks", "FailedPrepareDynamicResources")
            return next((each for each in found if "admin" in each), "")

        message = eventually("the kubelet to report the refusal", told, timeout=90)
        assert re.search(rf"ResourceClaim {namespace}/\S+ has adminAccess, which the driver refuses", message)
        assert not list(kubelet.cdi_directory.glob("*.json"))
        wait_gone(api, namespace, "looks")


@pytest.mark.usefixtures("in_force")
def test_a_tenant_gets_no_admin_access(kubectl: Kubectl, namespace: str, tenant: str) -> None:
    patch = f'{{"metadata": {{"labels": {{"{LABEL}": "true"}}}}}}'
    told = error_of(kubectl.run("label", "namespace", namespace, f"{LABEL}=true", tenant))
    assert f"user {TENANT} may not set the label {LABEL} of namespace {namespace}" in told
    merged = ("patch", "namespace", namespace, "--type=merge", f"--patch={patch}", tenant)
    assert "may not set the label" in error_of(kubectl.run(*merged))
    assert "may not set the label" in error_of(kubectl.run(*merged, "--subresource=status"))
    kubectl.must("label", "namespace", namespace, "team=a", tenant)
    # An administrator may set it, for the driver of other devices. Then claims for Neuron devices are still denied.
    kubectl.must("label", "namespace", namespace, f"{LABEL}=true")
    kubectl.must("label", "namespace", namespace, "team=b", "--overwrite", tenant)
    for version in ("v1", "v1beta2", "v1beta1"):
        for each in (admin_claim(version), admin_template(version)):
            told = error_of(kubectl.feed("create", each, flags=(tenant,)))
            assert f"{DENIED} in namespace {namespace}" in told
    created = kubectl.feed("create", admin_claim(device_class=OTHER), flags=(tenant,))
    assert created.ok, created.stderr
