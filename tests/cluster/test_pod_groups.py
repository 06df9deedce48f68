"""PodGroups with claims (KEP-5729), with their feature gates on: what commands say of the claims that pods share."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.api import Api, Object
from tests.cluster.controlplane import Assets, ControlPlane
from tests.cluster.manifests import pod, wait_scheduled
from tests.cluster.nodes import Fleet
from tests.cluster.planes import with_gates
from tests.cluster.processes import eventually
from tests.cluster.webhooks import Webhook, install_rbac

GATES = {"GenericWorkload": True, "GangScheduling": True, "DRAWorkloadResourceClaims": True}
NAMESPACE = "team"
TEMPLATE = "ResourceClaimTemplate"

pytestmark = [pytest.mark.needs("pod-groups"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def plane(assets: Assets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with with_gates(assets, tmp_path_factory.mktemp("plane"), GATES, NAMESPACE) as plane:
        fleet = Fleet(plane.admin, "node")
        fleet.add("trn2.48xlarge")
        yield plane


@pytest.fixture(scope="module")
def webhook(plane: ControlPlane) -> Iterator[Webhook]:
    webhook = Webhook(plane, install_rbac(plane))
    try:
        webhook.start()
        webhook.install()
        for configuration in webhook.configurations("validating.yaml"):
            plane.admin.create(configuration)
        yield webhook
    finally:
        webhook.stop()


def command(plane: ControlPlane, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "commands", *arguments, f"--kubeconfig={plane.admin_kubeconfig}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def group(name: str, template: str, least: int = 1) -> Object:
    claims = [{"name": "neuron", "resourceClaimTemplateName": template}]
    spec = {"schedulingPolicy": {"gang": {"minCount": least}}, "resourceClaims": claims}
    return {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}


def member(name: str, of: str, template: str) -> Object:
    container = {"name": "main", "image": "x", "resources": {"claims": [{"name": "neuron"}]}}
    claims = [{"name": "neuron", "resourceClaimTemplateName": template}]
    return pod(name, container, resourceClaims=claims, schedulingGroup={"podGroupName": of})


def create_template(api: Api, name: str, count: int) -> None:
    exactly = {"deviceClassName": "neuron.aws.com", "count": count}
    match = {"matchAttribute": f"resource.aws.com/devicegroup{count}_id"}
    spec = {"spec": {"devices": {"requests": [{"name": "n", "exactly": exactly}], "constraints": [match]}}}
    version = "resource.k8s.io/v1"
    api.create({"apiVersion": version, "kind": TEMPLATE, "metadata": {"name": name}, "spec": spec}, NAMESPACE)


def holders(plane: ControlPlane) -> dict[str, tuple[list[str], list[str], int]]:
    """Of each claim of the map: PodGroups, pods, devices."""
    found: dict[str, tuple[list[str], list[str], int]] = {}
    for node in json.loads(command(plane, "map", "-o", "json"))["nodes"]:
        for device in node["devices"]:
            for each in device["holders"]:
                groups, pods, count = found.get(each["claim"], (each["podGroups"], each["pods"], 0))
                found[each["claim"]] = (groups, pods, count + 1)
    return found


def test_the_map_names_the_pods_that_share_a_claim(plane: ControlPlane) -> None:
    api = plane.admin
    create_template(api, "four", 4)
    api.create(group("gang", "four", 2), NAMESPACE)
    for name in "ab":
        api.create(member(name, "gang", "four"), NAMESPACE)
    for name in "ab":
        wait_scheduled(api, NAMESPACE, name)
    [claim] = api.list("ResourceClaim", NAMESPACE)
    assert [each["resource"] for each in claim["status"]["reservedFor"]] == ["podgroups"]
    assert holders(plane) == {claim["metadata"]["name"]: (["gang"], ["a", "b"], 4)}
    explained = command(plane, "explain", "pod/a", "-n", NAMESPACE)
    assert "claim     neuron, template four, shared by the pods of PodGroup gang" in explained


@pytest.mark.parametrize(
    ("name", "of", "case"), [("lost", "nothing", "group-missing"), ("early", "waiting", "gang")], ids=["none", "gang"]
)
def test_a_pod_that_waits_for_its_group_is_explained(plane: ControlPlane, name: str, of: str, case: str) -> None:
    api = plane.admin
    if of == "waiting":
        create_template(api, "one", 4)
        api.create(group(of, "one", 3), NAMESPACE)
    api.create(member(name, of, "one"), NAMESPACE)

    def explained() -> Any:
        [found] = json.loads(command(plane, "explain", f"pod/{name}", "-n", NAMESPACE, "-o", "json"))
        return found["diagnosis"]["case"]

    eventually(f"the diagnosis {case}", lambda: explained() == case)


def test_prune_keeps_a_template_that_only_a_pod_group_names(plane: ControlPlane, webhook: Webhook) -> None:
    api = plane.admin
    assert webhook.running
    made: dict[int, str] = {}
    for devices in (1, 8):
        container = {"name": "main", "image": "x", "resources": {"limits": {"aws.amazon.com/neuron": devices}}}
        body = api.create(pod(f"legacy-{devices}", container), NAMESPACE).body
        [entry] = body["spec"]["resourceClaims"]
        made[devices] = entry["resourceClaimTemplateName"]
        api.delete("Pod", f"legacy-{devices}", NAMESPACE, force=True)
    api.create(group("later", made[8]), NAMESPACE)
    arguments = ("templates", "prune", "-n", NAMESPACE, "--older-than=0s", "--grace=1s", "-ojson")
    outcome = {each["name"]: each["outcome"] for each in json.loads(command(plane, *arguments))["templates"]}
    assert outcome == {made[1]: "removed"}
    listed = json.loads(command(plane, "templates", "list", "-n", NAMESPACE, "-ojson"))["templates"]
    assert [(each["name"], each["groups"]) for each in listed] == [(made[8], ["PodGroup later"])]


def test_the_webhook_warns_of_a_template_that_does_not_exist(plane: ControlPlane, webhook: Webhook) -> None:
    webhook.wait_warning("NEU705", group("hopeful", "nowhere"), NAMESPACE)
