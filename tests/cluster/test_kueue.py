"""`neuron-dra status` and `report` beside Kueue's objects, on a real control plane.

Kueue itself does not run: its ConfigMap, the Deployment of its manager and a CRD of its group are all that is read.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from commands.status.kueue import CONFIG, FILE, MANAGER, NAMESPACE
from tests.cluster.api import Api, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.manifests import container, pod, workload
from tests.cluster.nodes import INSTANCE_TYPE
from tests.cluster.processes import eventually
from tests.cluster.statuses import status
from tests.cluster.test_report import Command
from tests.deploy.charts import AUDIT, render

PAGE = Path(__file__).parents[2] / "docs" / "migrate.md"
BLOCKS = re.findall(r"```yaml\n(apiVersion: config\.kueue\.x-k8s\.io/v1beta2\n.*?)```", PAGE.read_text(), re.DOTALL)

ACCOUNT = "neuron-dra-audit"
RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
TRN2 = {INSTANCE_TYPE: "trn2.48xlarge"}
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NAMES = {"kind": "LocalQueue", "plural": "localqueues", "singular": "localqueue", "listKind": "LocalQueueList"}
SCHEMA = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
CRD: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "localqueues.kueue.x-k8s.io",
        # The API server wants it for this group.
        "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
    },
    "spec": {
        "group": "kueue.x-k8s.io",
        "scope": "Namespaced",
        "names": NAMES,
        "versions": [{"name": "v1beta2", "served": True, "storage": True, "schema": {"openAPIV3Schema": SCHEMA}}],
    },
}


def config_map(settings: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CONFIG},
        "data": {FILE: settings},
    }


def manager(image: str) -> Object:
    return workload("Deployment", MANAGER, {"metadata": {}, "spec": {"containers": [{"name": "m", "image": image}]}})


@pytest.fixture(scope="module")
def plane(lent_control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """A control plane that serves Kueue's group, with the namespace of its manager."""
    api = lent_control_plane.admin
    api.request("POST", CRDS, json=CRD)
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    eventually("the group to be served", lambda: api.healthy("/apis/kueue.x-k8s.io"))
    lent_control_plane.wait_namespace_usable(NAMESPACE)
    yield lent_control_plane
    api.delete("Deployment", MANAGER, NAMESPACE)
    api.delete("ConfigMap", CONFIG, NAMESPACE)
    api.request("DELETE", f"{CRDS}/{CRD['metadata']['name']}")
    api.delete("Namespace", NAMESPACE)


@pytest.fixture
def namespace(plane: ControlPlane) -> str:
    name = "test-kueue"
    if plane.admin.find("Namespace", name) is None:
        plane.admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        plane.wait_namespace_usable(name)
    return name


def set_up(api: Api, image: str, settings: str) -> None:
    api.delete("Deployment", MANAGER, NAMESPACE)
    api.delete("ConfigMap", CONFIG, NAMESPACE)
    api.create(manager(image), NAMESPACE)
    api.create(config_map(settings), NAMESPACE)


def texts(plane: ControlPlane) -> list[str]:
    return [line["text"] for line in status(plane.admin_kubeconfig).checks if line["check"] == "Kueue"]


def test_status_follows_the_set_up(plane: ControlPlane) -> None:
    set_up(plane.admin, "registry.k8s.io/kueue/kueue:v0.18.1", "resources: {}")
    assert texts(plane) == [
        "Kueue 0.18.1 refuses claims with constraints or device settings, so those for connected devices.",
        "Kueue 0.18.1 has no mapping for neuron.aws.com: it admits no workload with such claims.",
    ]
    for block, counted in zip(BLOCKS, ("aws.amazon.com/neuron", "neuron.aws.com/neuroncores by capacity"), strict=True):
        set_up(plane.admin, "registry.k8s.io/kueue/kueue:v0.19.2", block)
        assert texts(plane) == [f"Kueue 0.19.2 counts claims of neuron.aws.com as {counted}."]


def test_report_names_kueue_only_if_it_does_not_count_claims(plane: ControlPlane, namespace: str) -> None:
    api = plane.admin
    train = workload("Deployment", "train", pod("p", container(neuron=4), nodeSelector=TRN2), replicas=0)
    train["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "training"}
    api.create(train, namespace)
    found = {}
    for name, settings in (("mapped", BLOCKS[0]), ("not-mapped", "{}")):
        set_up(api, "registry.k8s.io/kueue/kueue:v0.19.2", settings)
        (made,) = Command(plane.admin_kubeconfig).json("-n", namespace)["workloads"]
        found[name] = "NEU232" in [each["code"] for each in made["obstacles"]]
    api.delete("Deployment", "train", namespace)
    assert found == {"mapped": False, "not-mapped": True}


def test_the_audit_reads_the_set_up_where_the_chart_gives_the_right(plane: ControlPlane, namespace: str) -> None:
    set_up(plane.admin, "registry.k8s.io/kueue/kueue:v0.19.2", "{}")
    kubectl, found = plane.kubectl().within(""), {}
    for given in (False, True):
        rendered = render({**AUDIT, "audit": {"enabled": True, "readKueue": given}})
        account = [each for each in rendered if each["metadata"]["name"] == ACCOUNT and each["kind"] in RIGHTS]
        assert kubectl.feed("apply", *account).ok
        token = kubectl.must("create", "token", ACCOUNT, "--namespace=neuron-dra").stdout.strip()
        notes = Command(plane.token_kubeconfig(ACCOUNT, token)).json("-n", namespace, "--no-webhook-records")["notes"]
        found[given] = [note.partition(":")[0].partition(" in namespace")[0] for note in notes]
        assert kubectl.feed("delete", *account).ok
    assert found == {
        False: ["you are not allowed to get configmaps"],
        True: ["Kueue 0.19.2 has no mapping for neuron.aws.com"],
    }


def test_a_user_without_the_right_gets_the_rule(plane: ControlPlane) -> None:
    (line,) = [line for line in status(plane.user_kubeconfig("curious")).checks if line["check"] == "Kueue"]
    assert (line["verdict"], "resources: [configmaps]" in line["fix"]) == ("unknown", True)


def test_the_api_server_takes_the_selector_of_the_page(plane: ControlPlane) -> None:
    (mapping,) = yaml.safe_load(BLOCKS[1])["resources"]["deviceClassMappings"]
    selector = mapping["sources"][0]["capacity"]["deviceSelector"]
    spec = {"selectors": [selector]}
    plane.admin.create(
        {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "x"}, "spec": spec},
        dry_run=True,
    )
