"""Packs that guard other tenants' devices, with Deny, against a tenant whose pods request no device.

The configuration is that of the chart, with the values that `policy rules -o values` prints.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.api import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.kubectl import Kubectl, Result
from tests.cluster.nodes import DRIVER
from tests.cluster.processes import eventually
from tests.cluster.replicas import Installation
from tests.cluster.webhooks import CONFIGURATION_KINDS, install_rbac
from tests.deploy.charts import render
from tests.deploy.test_policy_checks import denying, needs

GUARDS = ("host-devices", "privileged", "device-limit")
TENANT = "tenant-of-guards"


def values() -> Object:
    files = {name: text for guard in GUARDS for name, text in denying(guard)["policies"]["files"].items()}
    wanted = [needs(guard) for guard in GUARDS]
    validation = {key: [item for each in wanted for item in each[key]] for key in ("extraRules", "podConditions")}
    return {"policies": {"files": files}, "validation": validation}


@pytest.fixture
def guarded(lent_control_plane: ControlPlane, tmp_path: Path) -> Iterator[Kubectl]:
    """kubectl; the tenant may create pods, Deployments, claims and PersistentVolumes."""
    plane, api = lent_control_plane, lent_control_plane.admin
    chosen = values()
    for name, text in chosen["policies"]["files"].items():
        (tmp_path / name).write_text(text)
    admin = plane.kubectl()
    resources = "pods,pods/ephemeralcontainers,persistentvolumes,deployments.apps,resourceclaims.resource.k8s.io"
    admin.must("create", "clusterrole", TENANT, "--verb=create,get,patch", f"--resource={resources}")
    admin.must("create", "clusterrolebinding", TENANT, f"--clusterrole={TENANT}", f"--user={TENANT}")
    with Installation(plane, install_rbac(plane)) as installation:
        replica = installation.replica(f"--policies={tmp_path}")
        for each in render(chosen):
            if each["kind"] in CONFIGURATION_KINDS:
                for webhook in each["webhooks"]:
                    path = webhook["clientConfig"]["service"]["path"]
                    webhook["clientConfig"] = {"url": f"https://127.0.0.1:{replica.port}{path}"}
                api.create(each)
        replica.wait_ready()
        installation.wait_configured()
        yield admin
    admin.must("delete", "clusterrolebinding,clusterrole", TENANT)


def plain_pod(name: str, *, container: Object | None = None, **spec: object) -> Object:
    containers = [{"name": "main", "image": "app:1", **(container or {})}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers, **spec}}


def mounting(path: str) -> Object:
    return plain_pod("mounts", volumes=[{"name": "v", "hostPath": {"path": path}}])


def volume(**source: object) -> Object:
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], **source}
    if "local" in source:
        term = {"matchExpressions": [{"key": "a", "operator": "Exists"}]}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [term]}}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "devices"}, "spec": spec}


def capable(*added: str) -> Object:
    return plain_pod("capable", container={"securityContext": {"capabilities": {"add": list(added)}}})


NEURON_NODE = {
    "tolerations": [{"key": "aws.amazon.com/neuron", "operator": "Exists"}],
    "nodeSelector": {"node.kubernetes.io/instance-type": "trn2.48xlarge"},
}
ATTACKS: dict[str, Object] = {
    "a device": mounting("/dev/neuron0"),
    "a device in another spelling": mounting("//dev//./neuron0"),
    "all devices": mounting("/dev"),
    "the root": mounting("/"),
    "CDI specs": mounting("/var/run/cdi"),
    "the kubelet": mounting("/var/lib/kubelet/pod-resources"),
    "a runtime's socket": mounting("/run/containerd/containerd.sock"),
    "the libraries": mounting("/var/lib"),
    "settings": mounting("/sys"),
    "a PersistentVolume": volume(hostPath={"path": "/dev"}),
    "a local PersistentVolume": volume(local={"path": "/var/lib/kubelet"}),
    "privileged": plain_pod("p", container={"securityContext": {"privileged": True}}, **NEURON_NODE),
    "privileged init container": plain_pod(
        "p", initContainers=[{"name": "init", "image": "a", "securityContext": {"privileged": True}}]
    ),
    "the right to mount": capable("SYS_ADMIN"),
    "the right to make device files": capable("cap_mknod"),
    "all rights": capable("all"),
    "the host's processes": plain_pod("p", hostPID=True),
}
FINE: dict[str, Object] = {
    "an ordinary pod": plain_pod("plain"),
    "logs": mounting("/var/log"),
    "a port": capable("NET_BIND_SERVICE"),
    "a disk": volume(local={"path": "/mnt/disks/a"}),
}


def test_a_tenant_without_claims_reaches_no_device(guarded: Kubectl) -> None:
    def create(each: Object) -> Result:
        return guarded.feed("create", each, flags=(f"--as={TENANT}", "--dry-run=server"))

    eventually("the configuration to be in force", lambda: "NEU801" in create(ATTACKS["a device"]).stderr, timeout=60)
    admitted = [name for name, each in ATTACKS.items() if "NEU801" not in create(each).stderr]
    assert admitted == []
    refused = {name: result.stderr for name, each in FINE.items() if not (result := create(each)).ok}
    assert refused == {}

    # A container for debugging, added to a pod that was admitted.
    assert guarded.feed("create", plain_pod("debugged"), flags=(f"--as={TENANT}",)).ok
    try:
        for context in ({"privileged": True}, {"capabilities": {"add": ["SYS_ADMIN"]}}):
            debug = {"name": "debug", "image": "a", "securityContext": context}
            patch = json.dumps({"spec": {"ephemeralContainers": [debug]}})
            added = guarded.run(
                *("patch", "pod", "debugged", "--subresource=ephemeralcontainers", "--patch", patch, f"--as={TENANT}")
            )
            assert "NEU801" in added.stderr, added.stdout + added.stderr
    finally:
        guarded.must("delete", "pod", "debugged", "--force", "--grace-period=0")

    # Four claims of one device are within the limit of 16. They could be replaced before the gate is removed.
    claims = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": f"one-{number}"},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": DRIVER, "count": 1}}]}},
        }
        for number in range(4)
    ]
    try:
        for claim in claims:
            made = guarded.feed("create", claim, flags=(f"--as={TENANT}",))
            assert made.ok, made.stderr
        entries = [{"name": f"c{number}", "resourceClaimName": f"one-{number}"} for number in range(4)]
        gates = [{"name": "example.com/wait"}]
        swapping = create(plain_pod("swaps", resourceClaims=entries, schedulingGates=gates))
        assert "the pod names 4 ResourceClaims" in swapping.stderr, swapping.stderr
        one = create(plain_pod("one", resourceClaims=entries[:1], schedulingGates=gates))
        assert one.ok, one.stderr
    finally:
        for claim in claims:
            guarded.must("delete", "resourceclaim", claim["metadata"]["name"])
