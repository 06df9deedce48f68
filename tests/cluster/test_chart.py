"""The chart on a real API server: installed, upgraded and removed by Helm's engine; its rights, and their limits."""

import asyncio
import base64
import copy
import json
import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import helm_python as helm_sdk
import httpx
import pytest
import yaml

from deploy import render as rendering
from runtime.api_transport import Connection, load_configuration
from tests.cluster.api import Api, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.helm import CHART, Helm
from tests.cluster.kubectl import KubectlError
from tests.cluster.manifests import generated_templates, is_converted, legacy_names, pod
from tests.cluster.nodes import DRIVER, INSTANCE_TYPE, resource_slice
from tests.cluster.processes import Process, eventually, free_ports
from tests.deploy.charts import EVERYTHING, find, render
from webhook.cluster.policy_entry import ENTRY
from webhook.serving_certificate.keeper import ManagedSecret

NAMESPACE = "neuron-system"
PLUGIN = "neuron-dra-kubelet-plugin"
CONFIGURATIONS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
FOREIGN = {
    "cert-manager.io": ["Issuer", "Certificate"],
    "monitoring.coreos.com": ["ServiceMonitor", "PodMonitor", "PrometheusRule"],
}
BUNDLE = base64.b64encode(b"-----BEGIN CERTIFICATE-----\nkept\n-----END CERTIFICATE-----\n").decode()


@pytest.fixture(scope="module")
def plane(own_control_plane: ControlPlane) -> ControlPlane:
    """With the release's namespace."""
    own_control_plane.admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    own_control_plane.wait_namespace_usable(NAMESPACE)
    return own_control_plane


@pytest.fixture(scope="module")
def admin(plane: ControlPlane) -> Api:
    return plane.admin


@pytest.fixture
def helm(plane: ControlPlane) -> Iterator[Helm]:
    """Helm in the release's namespace; nothing is left of the release afterwards."""
    engine = Helm(plane, NAMESPACE)
    try:
        yield engine
    finally:
        engine.uninstall()
        engine.close()


@pytest.fixture(scope="module")
def nodes(admin: Api) -> None:
    """Two nodes for the driver that are ready and full: no kubelet would let go of a pod that is bound."""
    names = ("node-1", "node-2")
    ready = {"conditions": [{"type": "Ready", "status": "True", "reason": "Fake", "message": "no kubelet here"}]}
    for name in names:
        labels = {INSTANCE_TYPE: "trn2.48xlarge"}
        admin.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
        admin.merge("Node", name, {"status": ready}, subresource="status")
    # A DaemonSet has no pods on nodes that its pods do not tolerate.
    eventually("nodes without taints", lambda: not any(admin.get("Node", name)["spec"].get("taints") for name in names))


def leftovers(plane: ControlPlane) -> list[str]:
    """Everything in the cluster that carries our label, and Helm's own records."""
    kubectl = plane.kubectl()
    kinds = kubectl.must("api-resources", "--verbs=list", "-o", "name").stdout.split()
    listed = kubectl.must("get", ",".join(kinds), "-A", "-l", "app.kubernetes.io/name=neuron-dra", "-o", "name")
    records = kubectl.must("get", "secrets", "-A", "-l", "owner=helm", "-o", "name")
    return listed.stdout.split() + records.stdout.split()


def foreign_kinds(plane: ControlPlane, admin: Api) -> None:
    """The kinds of cert-manager and Prometheus's operator, without what is in them."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    for group, kinds in FOREIGN.items():
        for kind in kinds:
            plural = f"{kind.lower()}s"
            version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
            spec = {
                "group": group,
                "scope": "Namespaced",
                "names": {"plural": plural, "kind": kind},
                "versions": [version],
            }
            metadata = {"name": f"{plural}.{group}"}
            body = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
            admin.create({**body, "metadata": metadata, "spec": spec})
    plane.kubectl().must("wait", "--for=condition=Established", "crd", "--all")
    for group in FOREIGN:
        eventually(f"{group} to be served", lambda path=f"/apis/{group}/v1": admin.healthy(path))  # type: ignore[misc]


# --- install, refuse, remove ----------------------------------------------------------------------------------


def pods_of(admin: Api, component: str) -> list[Object]:
    return admin.list("Pod", NAMESPACE, labelSelector=f"app.kubernetes.io/component={component}")


@pytest.mark.usefixtures("nodes")
def test_the_api_server_accepts_every_object_and_the_pods_are_created(
    plane: ControlPlane, admin: Api, helm: Helm
) -> None:
    foreign_kinds(plane, admin)
    values = copy.deepcopy(EVERYTHING)
    del values["webhook"]["nodeSelector"]
    del values["audit"]["readKueue"]  # Its Role needs the namespace of Kueue: test_kueue.py has it.
    helm.install(values)
    assert len(eventually("the replicas", lambda: (p := pods_of(admin, "webhook"))[1:] and p, timeout=60)) == 2
    assert eventually("the driver on both nodes", lambda: len(pods_of(admin, "kubelet-plugin")) == 2, timeout=60)
    policy = eventually("the policy to be type-checked", lambda: type_checked(plane), timeout=60)
    assert policy["status"]["typeChecking"].get("expressionWarnings", []) == []
    helm.uninstall()
    assert eventually("nothing to be left", lambda: not leftovers(plane), timeout=60)


def type_checked(plane: ControlPlane) -> Object | None:
    policy = plane.kubectl().get("validatingadmissionpolicy", PLUGIN)
    return policy if "typeChecking" in policy.get("status", {}) else None


@pytest.mark.parametrize("openshift", [False, True], ids=["fixed users", "users of the platform"])
def test_a_restricted_namespace_is_enough_without_the_driver(admin: Api, helm: Helm, openshift: bool) -> None:
    label = "pod-security.kubernetes.io/enforce"
    admin.merge("Namespace", NAMESPACE, {"metadata": {"labels": {label: "restricted"}}})
    try:
        helm.install({"kubeletPlugin": {"enabled": False}, "openshift": {"enabled": openshift}})
        assert eventually("the replicas", lambda: len(pods_of(admin, "webhook")) == 2, timeout=60)
    finally:
        helm.uninstall()
        admin.merge("Namespace", NAMESPACE, {"metadata": {"labels": {label: None}}})


def test_the_install_yaml_of_a_release_creates_both_programs(plane: ControlPlane, admin: Api) -> None:
    text = rendering.install({"image": {"registry": "registry.example.com/neuron"}})
    objects = [each for each in yaml.safe_load_all(text) if each]
    try:
        applied = plane.kubectl().within("").feed("apply", *objects, flags=("--server-side",))
        assert applied.ok, applied.stderr
        for kind, name in (("Deployment", "neuron-dra"), ("DaemonSet", "neuron-dra-kubelet-plugin")):
            found = admin.find(kind, name, "neuron-dra")
            assert found
            [container] = found["spec"]["template"]["spec"]["containers"]
            assert container["image"].startswith(f"registry.example.com/neuron/{name}:")
    finally:
        plane.kubectl().within("").feed("delete", *reversed(objects), flags=("--wait=false", "--ignore-not-found"))


def test_a_second_release_is_refused_in_any_namespace(plane: ControlPlane, admin: Api, helm: Helm) -> None:
    if not admin.find("Namespace", "elsewhere"):
        admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "elsewhere"}})
    helm.install({})
    other = Helm(plane, "elsewhere")
    try:
        with pytest.raises(helm_sdk.HelmReleaseError, match=r'invalid ownership metadata.* must equal "elsewhere"'):
            other.install({})
        with pytest.raises(helm_sdk.HelmReleaseError, match="invalid ownership metadata"):
            helm.install({}, release="another")
        assert admin.find("Deployment", "neuron-dra", "elsewhere") is None
    finally:
        other.uninstall()
        other.close()
        helm.uninstall("another")


def test_a_cluster_that_is_too_old_is_refused_with_the_required_version(helm: Helm, tmp_path: Path) -> None:
    demanding = tmp_path / "neuron-dra"
    shutil.copytree(CHART, demanding)
    about = demanding / "Chart.yaml"
    about.write_text(about.read_text().replace(">=1.34.0-0", ">=9.9.0-0"))
    with pytest.raises(helm_sdk.HelmReleaseError, match=r"requires kubeVersion: >=9\.9\.0-0 which is incompatible"):
        helm.install({}, chart=demanding)


# --- upgrade --------------------------------------------------------------------------------------------------


def test_an_upgrade_applies_values_and_keeps_the_content_that_the_webhook_wrote(
    plane: ControlPlane, admin: Api, helm: Helm, tmp_path: Path
) -> None:
    previous = helm_sdk.package(CHART, destination=tmp_path, version="0.0.9", app_version="0.0.9")
    helm.install({"webhook": {"replicas": 1, "logLevel": "debug"}}, chart=Path(previous))
    keep_certificates(plane)
    helm.upgrade({"webhook": {"replicas": 3}, "conversion": {"mode": "convert"}})
    deployment = admin.get("Deployment", "neuron-dra", NAMESPACE)
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert deployment["spec"]["replicas"] == 3
    assert deployment["metadata"]["labels"]["helm.sh/chart"] == "neuron-dra-0.1.0"
    assert {"--mode=convert", "--log-level=debug"} <= set(container["args"])
    assert certificates_kept(plane) == [BUNDLE] * 6
    helm.upgrade({"admission": {"workloads": {"enabled": False}}, "validation": {"extraRules": [RULE]}})
    assert certificates_kept(plane) == [BUNDLE] * 5 + [None]


def test_an_upgrade_leaves_the_rules_that_the_webhook_writes(plane: ControlPlane, helm: Helm) -> None:
    values = {"policies": {"packs": ["privileged"]}, "validation": {"followPolicies": True}}
    helm.install(values)
    kubectl = plane.kubectl().within(NAMESPACE)
    entries = kubectl.get(CONFIGURATIONS[1], "neuron-dra")["webhooks"]
    assert "rules" not in entries[-1]
    rules = [{**RULE, "scope": "*"}]
    patch = [{"op": "add", "path": f"/webhooks/{len(entries) - 1}/rules", "value": rules}]
    kubectl.must("patch", CONFIGURATIONS[1], "neuron-dra", "--type=json", "--patch", json.dumps(patch))
    helm.upgrade({"validation": {"timeoutSeconds": 3}})
    entry = kubectl.get(CONFIGURATIONS[1], "neuron-dra")["webhooks"][-1]
    assert (entry["name"], entry["rules"], entry["timeoutSeconds"]) == (ENTRY, rules, 3)


def test_applying_the_chart_never_empties_the_secret(plane: ControlPlane, helm: Helm) -> None:
    helm.install({})
    keep_certificates(plane)
    helm.upgrade({"webhook": {"replicas": 3}})
    assert certificates_kept(plane)[0] == BUNDLE
    shipped = json.dumps(find(render(namespace=NAMESPACE), "Secret", "neuron-dra-tls"))
    kubectl = plane.kubectl().within(NAMESPACE)
    for flags in ((), ("--server-side", "--force-conflicts", "--field-manager=argocd-controller")):
        kubectl.must("apply", *flags, "-f", "-", stdin=shipped)
        assert certificates_kept(plane)[0] == BUNDLE, flags


def test_an_upgrade_creates_a_deleted_secret_and_a_replica_fills_it(plane: ControlPlane, helm: Helm) -> None:
    helm.install({})
    asyncio.run(filled_again(plane, lambda: helm.upgrade({"webhook": {"replicas": 3}})))
    assert certificates_kept(plane)[0] == BUNDLE
    labels = plane.kubectl().within(NAMESPACE).get("secret", "neuron-dra-tls")["metadata"]["labels"]
    assert labels["app.kubernetes.io/managed-by"] == "Helm"


async def filled_again(plane: ControlPlane, applied: Callable[[], None]) -> None:
    """Delete the Secret, apply the chart, and write the Secret with the rights of a replica."""
    kubeconfig = account(plane, "neuron-dra")
    connection = await Connection.open(lambda: load_configuration(kubeconfig))
    try:
        plane.kubectl().within(NAMESPACE).must("delete", "secret", "neuron-dra-tls")
        secret = ManagedSecret(connection, NAMESPACE, "neuron-dra-tls")
        assert await secret.read() is None
        await asyncio.to_thread(applied)
        empty = await secret.read()
        assert empty is not None
        assert empty.data == {}
        assert await secret.write(empty, {"ca.crt": base64.b64decode(BUNDLE)}, answered=False)
    finally:
        await connection.close()
        # TLS connections end a moment after their session (aiohttp's "Graceful Shutdown"), if the loop still runs.
        await asyncio.sleep(0.5)


RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["services"]}


def keep_certificates(plane: ControlPlane) -> None:
    """Write what the certificate keeper writes: the Secret's content, and caBundle into every entry."""
    kubectl = plane.kubectl().within(NAMESPACE)
    for kind in CONFIGURATIONS:
        entries = kubectl.get(kind, "neuron-dra")["webhooks"]
        path = "/webhooks/{}/clientConfig/caBundle"
        patch = [{"op": "add", "path": path.format(index), "value": BUNDLE} for index in range(len(entries))]
        kubectl.must("patch", kind, "neuron-dra", "--type=json", "--patch", json.dumps(patch))
    data = json.dumps({"data": {"ca.crt": BUNDLE}})
    kubectl.must("patch", "secret", "neuron-dra-tls", "--type=merge", "--patch", data)


def certificates_kept(plane: ControlPlane) -> list[Any]:
    """ca.crt of the Secret, then caBundle of every entry."""
    kubectl = plane.kubectl().within(NAMESPACE)
    found = [kubectl.get("secret", "neuron-dra-tls").get("data", {}).get("ca.crt")]
    for kind in CONFIGURATIONS:
        found += [entry["clientConfig"].get("caBundle") for entry in kubectl.get(kind, "neuron-dra")["webhooks"]]
    return found


# --- the webhook's rights -------------------------------------------------------------------------------------


class Replica:
    """The container of the chart's Deployment as a process on this machine, with a token of its ServiceAccount."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        serving = plane.authority.issue("chart-webhook", "neuron-dra", hosts=["127.0.0.1"])
        for source, name in ((serving.certificate, "tls.crt"), (serving.key, "tls.key")):
            (directory / name).write_bytes(source.read_bytes())
        self.authority = plane.authority.files.certificate
        self.port, metrics = free_ports(2)
        deployment = plane.admin.get("Deployment", "neuron-dra", NAMESPACE)
        [container] = deployment["spec"]["template"]["spec"]["containers"]
        here = {
            "--port": self.port,
            "--metrics-port": metrics,
            "--tls-dir": directory,
            "--drain-delay": 0,
            "--kubeconfig": account(plane, "neuron-dra"),
            "--host": "127.0.0.1",
        }
        flags = [flag for flag in container["args"] if flag.partition("=")[0] not in here]
        flags += [f"{flag}={value}" for flag, value in here.items()]
        program = Path(sys.executable).parent / container["command"][0]
        self.process = Process("replica", [program, *container["command"][1:], *flags], directory / "replica.log")

    def start(self) -> None:
        self.process.start()
        context = ssl.create_default_context(cafile=str(self.authority))
        with httpx.Client(verify=context, trust_env=False, timeout=2) as client:
            self.process.wait_ready(lambda: ready(client, f"https://127.0.0.1:{self.port}/readyz"))


def ready(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(url).is_success
    except httpx.HTTPError:
        return False


def account(plane: ControlPlane, name: str) -> Path:
    """A kubeconfig of a ServiceAccount of the release."""
    token = plane.kubectl().within(NAMESPACE).must("create", "token", name, "--duration=1h").stdout.strip()
    return plane.token_kubeconfig(name, token)


def point_at(admin: Api, replica: Replica) -> None:
    """Have the API server call the process: no kube-proxy makes the Service lead anywhere here."""
    bundle = base64.b64encode(replica.authority.read_bytes()).decode()
    for kind in CONFIGURATIONS:
        entries = admin.get(kind, "neuron-dra")["webhooks"]
        for entry in entries:
            path = entry["clientConfig"].pop("service")["path"]
            entry["clientConfig"] = {"url": f"https://127.0.0.1:{replica.port}{path}", "caBundle": bundle}
        admin.merge(kind, "neuron-dra", {"webhooks": entries})


def probe(kubeconfig: Path, timeout: int = 30) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / "neuron-dra"
    command = [program, "probe", f"--kubeconfig={kubeconfig}", f"--timeout={timeout}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)


def test_a_replica_works_with_the_rights_of_its_account(
    plane: ControlPlane, admin: Api, helm: Helm, tmp_path: Path
) -> None:
    bundle = base64.b64encode(plane.authority.files.certificate.read_bytes()).decode()
    helm.install({"certificates": {"mode": "secret", "caBundle": bundle}})
    replica = Replica(plane, tmp_path)
    try:
        replica.start()
        point_at(admin, replica)
        for hook in render(namespace=NAMESPACE):
            if "helm.sh/hook" in hook["metadata"].get("annotations", {}) and hook["kind"] != "Pod":
                within = plane.kubectl().within(hook["metadata"]["namespace"])
                within.must("apply", "-f", "-", stdin=json.dumps(hook))
        tested = probe(account(plane, "neuron-dra-test"))
        assert (tested.returncode, tested.stderr) == (0, ""), replica.process.tail()
        assert tested.stdout.startswith("converted: the pod would use ResourceClaimTemplate neuron-1-")
        assert generated_templates(admin, "default") == []
        watched = admin.create(pod("watched"), "default")
        assert legacy_names(watched.body)
        assert any("NEU208" in warning for warning in watched.warnings)
        asking = {"neuron.aws.com/convert": "convert"}
        converted = admin.create(pod("converted", annotations=asking), "default")
        assert is_converted(converted.body), replica.process.tail()
        assert generated_templates(admin, "default")
        left_alone = admin.create(
            pod("own", annotations={"neuron.aws.com/convert": "convert"}), NAMESPACE, dry_run=True
        )
        assert legacy_names(left_alone.body)
    finally:
        replica.process.stop()
        admin.delete_all("Pod", "default", force=True)
        plane.kubectl().run("delete", "-n", "default", "role,rolebinding", "neuron-dra-test")
        plane.kubectl().run("delete", "-n", NAMESPACE, "serviceaccount", "neuron-dra-test")


def test_the_probe_reports_why_a_cluster_does_not_convert(plane: ControlPlane) -> None:
    done = probe(plane.admin_kubeconfig, timeout=0)
    assert (done.returncode, done.stdout) == (1, "")
    assert "admitted the pod without conversion: the MutatingWebhookConfiguration neuron-dra is missing" in done.stderr
    nobody = probe(plane.user_kubeconfig("nobody"), timeout=30)
    assert nobody.returncode == 1
    assert 'User "nobody" cannot create resource "pods"' in nobody.stderr


WEBHOOK, PRUNE = "neuron-dra", "neuron-dra-prune"
OWN, ANYWHERE = NAMESPACE, "default"


def test_accounts_have_exactly_the_required_rights(plane: ControlPlane, helm: Helm) -> None:
    helm.install({"prune": {"enabled": True}})
    table = [
        (WEBHOOK, OWN, "get patch list watch create", "secrets/neuron-dra-tls", True),
        (WEBHOOK, OWN, "get create update list delete", "secrets", False),
        (WEBHOOK, OWN, "get", "secrets/other", False),
        (WEBHOOK, ANYWHERE, "get create", "secrets/neuron-dra-tls", False),
        (WEBHOOK, OWN, "get", "configmaps/neuron-dra-rendered", True),
        (WEBHOOK, OWN, "update patch delete", "configmaps/neuron-dra-rendered", False),
        (WEBHOOK, OWN, "list watch create patch delete", "leases.coordination.k8s.io", True),
        (WEBHOOK, ANYWHERE, "get create", "leases.coordination.k8s.io", False),
        (WEBHOOK, ANYWHERE, "create patch", "events.events.k8s.io", True),
        (WEBHOOK, ANYWHERE, "get list watch create patch", "resourceclaimtemplates", True),
        (WEBHOOK, ANYWHERE, "update delete", "resourceclaimtemplates", False),
        (WEBHOOK, ANYWHERE, "list create", "pods", False),
        *(
            (WEBHOOK, "", verbs, f"{kind}/{name}", allowed)
            for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
            for verbs, name, allowed in (
                ("get list watch patch", "neuron-dra", True),
                ("update delete", "neuron-dra", False),
                ("get patch", "another", False),
            )
        ),
        (PRUNE, ANYWHERE, "list", "pods", True),
        (PRUNE, ANYWHERE, "list patch delete create", "resourceclaimtemplates", True),
        (PRUNE, ANYWHERE, "delete", "pods", False),
        (PLUGIN, ANYWHERE, "get", "resourceclaims", True),
        (PLUGIN, ANYWHERE, "list update delete", "resourceclaims", False),
        (PLUGIN, "", "get list watch patch", "nodes", True),
        (PLUGIN, "", "create update delete", "nodes", False),
    ]
    wrong = [
        f"{who} {verb} {what} in {where}: {not allowed}"
        for who, where, verbs, what, allowed in table
        for verb in verbs.split()
        if may(plane.admin, who, where, verb, what) is not allowed
    ]
    assert wrong == []


def may(admin: Api, who: str, where: str, verb: str, what: str) -> bool:
    """Whether RBAC lets a ServiceAccount of the release do something, by a SubjectAccessReview."""
    resource, _, name = what.partition("/")
    plural, _, group = resource.partition(".")
    groups = {"resource": "resource.k8s.io", "webhook": "admissionregistration.k8s.io"}
    group = group or next((groups[part] for part in groups if part in plural), "")
    attributes = {"verb": verb, "group": group, "resource": plural, "name": name, "namespace": where}
    spec = {"user": f"system:serviceaccount:{NAMESPACE}:{who}", "resourceAttributes": attributes}
    spec["groups"] = ["system:serviceaccounts", "system:authenticated"]
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = admin.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", json=review).body
    return bool(answer["status"]["allowed"])


# --- the driver's slices --------------------------------------------------------------------------------------


@pytest.fixture
def driver_token(plane: ControlPlane, admin: Api, helm: Helm, nodes: None) -> Iterator[str]:
    """A token as the driver's pod on node-1 has it, once the API server acts on the policy."""
    helm.install({"webhook": {"replicas": 1}, "admission": {"claims": {"enabled": False}}})
    name = eventually("the driver on node-1", lambda: bound_to(admin, "node-1"), timeout=60)
    kubectl = plane.kubectl().within(NAMESPACE)
    bound = ("--bound-object-kind=Pod", f"--bound-object-name={name}")
    token = kubectl.must("create", "token", PLUGIN, *bound).stdout.strip()
    canary = resource_slice("node-2", "trn2.48xlarge")
    eventually(
        "the policy to be in force",
        lambda: write_error(plane, token, "create", canary, "--dry-run=server"),
        timeout=60,
    )
    yield token
    helm.uninstall()
    # No kubelet lets go of the pod that was bound by hand.
    admin.delete_all("Pod", NAMESPACE, force=True)


def bound_to(admin: Api, node: str) -> str:
    """The driver's pod that is meant for a node; it is bound by hand where the scheduler finds no room."""
    for each in pods_of(admin, "kubelet-plugin"):
        terms = each["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        fields = [field for term in terms["nodeSelectorTerms"] for field in term.get("matchFields", ())]
        if fields and fields[0]["values"] == [node] and "deletionTimestamp" not in each["metadata"]:
            name = str(each["metadata"]["name"])
            if not each["spec"].get("nodeName"):
                target = {"apiVersion": "v1", "kind": "Node", "name": node}
                metadata = {"name": name, "namespace": NAMESPACE}
                binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
                admin.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/binding", json=binding)
            return name
    return ""


def write_error(plane: ControlPlane, token: str, verb: str, obj: Object, *flags: str) -> str:
    """kubectl's error when the driver's token writes an object; empty: the write was allowed."""
    kubectl = plane.kubectl(plane.token_kubeconfig("driver", token))
    result = kubectl.feed(verb, obj, flags=flags)
    return "" if result.ok else result.stderr


def with_spec(obj: Object, **spec: Any) -> Object:
    made = copy.deepcopy(obj)
    made["spec"] |= spec
    return made


def test_the_drivers_token_writes_slices_of_its_own_node_and_driver_only(
    plane: ControlPlane, admin: Api, driver_token: str
) -> None:
    own, other = (resource_slice(node, "trn2.48xlarge") for node in ("node-1", "node-2"))
    admin.create(other)
    try:
        assert write_error(plane, driver_token, "create", own) == ""
        said = "the Neuron DRA driver on node node-1 may not write ResourceSlices of node node-2"
        for verb in ("delete", "replace"):
            assert said in write_error(plane, driver_token, verb, other)
        everywhere = with_spec(own, allNodes=True)
        del everywhere["spec"]["nodeName"]
        everywhere["metadata"]["name"] = "everywhere"
        assert "may not write ResourceSlices of no single node" in write_error(
            plane, driver_token, "create", everywhere
        )
        foreign = with_spec(own, driver="gpu.example.com")
        foreign["metadata"]["name"] = "foreign"
        assert "of the driver neuron.aws.com only" in write_error(plane, driver_token, "create", foreign)
        unbound = plane.kubectl().within(NAMESPACE).must("create", "token", PLUGIN).stdout.strip()
        assert "the token of the Neuron DRA driver names no node" in write_error(plane, unbound, "delete", own)
        assert write_error(plane, driver_token, "delete", own) == ""
    finally:
        for each in (own, other):
            admin.delete("ResourceSlice", each["metadata"]["name"])


def test_the_drivers_token_changes_the_ultraserver_labels_of_its_own_node_only(
    plane: ControlPlane, admin: Api, driver_token: str
) -> None:
    def patch(node: str, body: Object) -> str:
        kubectl = plane.kubectl(plane.token_kubeconfig("driver", driver_token))
        result = kubectl.run("patch", "node", node, "--type=merge", "-p", json.dumps(body))
        return "" if result.ok else result.stderr

    def label(key: str, value: str | None) -> Object:
        return {"metadata": {"labels": {key: value}}}

    ours = "neuron.amazonaws.com/ultraserver-server-id-4"
    for value in ("0123456789abcdef", "fedcba9876543210", None):
        assert patch("node-1", label(ours, value)) == ""
    other = "the Neuron DRA driver on node node-1 may not change node node-2"
    assert other in patch("node-2", label(ours, "0123456789abcdef"))
    assert patch("node-1", label("neuron.amazonaws.com/present", "true")) == ""
    bounded = "may change the UltraServer labels (neuron.amazonaws.com/ultraserver-*) and the label"
    for body in (
        label("team", "a"),
        label("node.kubernetes.io/instance-type", "trn1.2xlarge"),
        label("node.kubernetes.io/instance-type", None),
        label("neuron.amazonaws.com/ultraserver-rack", "a"),
        {"metadata": {"annotations": {"a": "b"}}},
        {"metadata": {"finalizers": ["example.com/kept"]}},
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}},
    ):
        assert bounded in patch("node-1", body), body
    kubectl = plane.kubectl(plane.token_kubeconfig("driver", driver_token))
    assert "cannot delete resource" in kubectl.run("delete", "node", "node-1").stderr
    status = kubectl.run("patch", "node", "node-1", "--subresource=status", "--type=merge", "-p", '{"status": {}}')
    assert 'resource "nodes/status"' in status.stderr


def test_the_drivers_token_writes_events_about_its_own_node_only(
    plane: ControlPlane, admin: Api, driver_token: str
) -> None:
    def about(kind: str, name: str, namespace: str = "default") -> str:
        metadata = {"name": f"{kind}.{name}".lower(), "namespace": namespace}
        regarding = {"kind": kind, "name": name} | ({"namespace": namespace} if kind == "Pod" else {})
        event = {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "involvedObject": regarding}
        source = {"component": PLUGIN}
        body = event | {"reason": "DevicePluginGone", "message": "x", "type": "Normal", "source": source}
        kubectl = plane.kubectl(plane.token_kubeconfig("driver", driver_token)).within(namespace)
        result = kubectl.feed("create", body)
        return "" if result.ok else result.stderr

    assert about("Node", "node-1") == ""
    bounded = "the Neuron DRA driver may write Events about its own node only"
    assert bounded in about("Node", "node-2")
    assert bounded in about("Pod", "node-1")
    assert "cannot create resource" in about("Node", "node-1", NAMESPACE)


def test_the_driver_itself_publishes_under_this_policy(
    plane: ControlPlane, admin: Api, driver_token: str, tmp_path: Path
) -> None:
    spec = find(render(namespace=NAMESPACE), "DaemonSet", PLUGIN)["spec"]["template"]["spec"]
    metrics, health = free_ports(2)
    here: dict[str, Any] = {
        "--metrics-port": metrics,
        "--health-port": health,
        "--kubeconfig": plane.token_kubeconfig("driver", driver_token),
        "--node-name": "node-1",
        "--emulate": "trn2.48xlarge",
        "--bind-address": "127.0.0.1",
        # No kubelet registers this driver.
        "--registration-wait": 0,
    }
    for flag, name in (("--cdi-dir", "cdi"), ("--kubelet-plugins-dir", "p"), ("--kubelet-registry-dir", "r")):
        (tmp_path / name).mkdir()
        here[flag] = tmp_path / name
    flags = [flag for flag in spec["containers"][0]["args"] if flag.partition("=")[0] not in here]
    flags += [f"{flag}={value}" for flag, value in here.items()]
    program = Path(sys.executable).parent / spec["containers"][0]["command"][0]
    process = Process("driver", [program, *flags], tmp_path / "driver.log")
    try:
        process.start()
        selector = f"spec.nodeName=node-1,spec.driver={DRIVER}"
        process.wait_ready(lambda: bool(admin.list("ResourceSlice", fieldSelector=selector)))
    except KubectlError:
        pytest.fail(process.tail())
    finally:
        process.stop()
        for each in admin.list("ResourceSlice"):
            admin.delete("ResourceSlice", each["metadata"]["name"])
