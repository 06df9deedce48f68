"""ClaimTemplates on a real API server: one policy file, three namespaces, tenants' own templates, versions, devices."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.api import Api, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.driver import indices, running, wait_gone, wait_running
from tests.cluster.kubectl import Kubectl
from tests.cluster.kubelet import Kubelet
from tests.cluster.manifests import pod
from tests.cluster.processes import eventually
from tests.cluster.pruning import Prune
from tests.cluster.webhooks import MANIFESTS, Webhook, load
from tests.deploy.charts import find, render

EXAMPLES = Path(__file__).parents[2] / "deploy/policy-examples/claim-templates.yaml"
RIGHTS = (("ClusterRole", "neuron-dra"), ("ValidatingAdmissionPolicy", "neuron-dra-templates"))
TEMPLATE = "ResourceClaimTemplate"
VERSION = "neuron.aws.com/template-version"
TRIES = 100


def named(name: str, template: str = "xl-trn2") -> Object:
    made = pod(name, {"name": "main", "image": "registry.invalid/a", "resources": {"claims": [{"name": "neurons"}]}})
    made["spec"]["resourceClaims"] = [{"name": "neurons", "resourceClaimTemplateName": template}]
    return made


def annotated(name: str, value: str = "l-trn2") -> Object:
    made = pod(name, {"name": "main", "image": "registry.invalid/a"})
    made["metadata"]["annotations"] = {"neuron.aws.com/template": value}
    return made


def own_template(name: str = "xl-trn2", count: int = 1) -> Object:
    exactly = {"deviceClassName": "neuron.aws.com", "count": count}
    devices = {"requests": [{"name": "neurons", "exactly": exactly}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": TEMPLATE,
        "metadata": {"name": name},
        "spec": {"spec": {"devices": devices}},
    }


def version_of(obj: Object) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(VERSION, ""))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("policies")
    (found / "templates.yaml").write_text(EXAMPLES.read_text())
    return found


@pytest.fixture
def with_templates(webhook: Webhook, control_plane: ControlPlane, folder: Path) -> Iterator[Webhook]:
    """The webhook with the shipped file, and what the chart then gives it: rights, policies and entries."""
    kubectl = control_plane.kubectl().within("")
    shipped = render({"policies": {"files": {"templates.yaml": EXAMPLES.read_text()}}})
    before = [find(load(MANIFESTS / "rbac.yaml"), kind, name) for kind, name in RIGHTS]
    for kind, name in RIGHTS:
        applied = kubectl.feed("apply", find(shipped, kind, name))
        assert applied.ok, applied.stderr
    for configuration in webhook.pointed(shipped):
        replaced = kubectl.feed("apply", configuration)
        assert replaced.ok, replaced.stderr
    with webhook.running_with(f"--policies={folder}"):
        yield webhook
    kubectl.must("delete", "validatingwebhookconfiguration", "neuron-dra")
    for each in (*before, *webhook.configurations()):
        kubectl.feed("apply", each)


def sent(api: Api, namespace: str) -> None:
    """Wait until the API server sends pods that name a template."""
    eventually(
        "pods that name a template to be sent",
        lambda: bool(version_of(api.create(named("canary"), namespace, dry_run=True).body)),
    )


@pytest.mark.usefixtures("with_templates")
def test_one_file_makes_the_template_in_three_namespaces(api: Api, namespace: str) -> None:
    sent(api, namespace)
    assert api.find(TEMPLATE, "xl-trn2", namespace) is None, "a dry run makes nothing"
    names = [f"{namespace}-{letter}" for letter in "abc"]
    for each in names:
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": each}})
    try:
        for each in names:
            stored = api.create(named("p"), each).body
            assert version_of(stored) == "xl-trn2=1"
            made = api.get(TEMPLATE, "xl-trn2", each)
            assert version_of(made) == "1"
            (request,) = made["spec"]["spec"]["devices"]["requests"]
            assert request["exactly"]["count"] == 16
            again = api.create(named("q"), each).body
            assert version_of(again) == "xl-trn2=1"
        # Names that no policy has are untouched.
        assert version_of(api.create(named("other", "huge"), names[0]).body) == ""
        assert api.find(TEMPLATE, "huge", names[0]) is None
    finally:
        for each in names:
            api.delete("Namespace", each)


@pytest.mark.usefixtures("with_templates")
def test_a_template_of_the_tenant_wins_and_the_pod_is_told(api: Api, namespace: str) -> None:
    sent(api, namespace)
    mine = api.create(own_template(), namespace).body
    answer = api.create(named("p"), namespace)
    assert any("NEU721" in each and "of its own" in each for each in answer.warnings), answer.warnings
    assert version_of(answer.body) == "xl-trn2=own"
    assert api.get(TEMPLATE, "xl-trn2", namespace)["metadata"]["uid"] == mine["metadata"]["uid"]


def test_a_new_version_replaces_the_template_and_no_other(
    api: Api, namespace: str, folder: Path, with_templates: Webhook
) -> None:
    sent(api, namespace)
    api.create(own_template("l-trn2"), namespace)
    api.create(named("first"), namespace)
    before = api.get(TEMPLATE, "xl-trn2", namespace)
    text = EXAMPLES.read_text()
    try:
        changed = text.replace("version: 1\n", "version: 2\n").replace("count: 16", "count: 8")
        (folder / "templates.yaml").write_text(changed)
        with_templates.restart(f"--policies={folder}")
        answer = api.create(named("second"), namespace)
        assert version_of(answer.body) == "xl-trn2=2"
        after = api.get(TEMPLATE, "xl-trn2", namespace)
        assert after["metadata"]["uid"] != before["metadata"]["uid"]
        assert after["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] == 8
        assert version_of(after) == "2"
        assert version_of(api.get("Pod", "first", namespace)) == "xl-trn2=1"
        assert version_of(api.create(named("tenants", "l-trn2"), namespace).body) == "l-trn2=own"
        assert version_of(api.get(TEMPLATE, "l-trn2", namespace)) == ""
        # The earlier file again: the later version stays.
        (folder / "templates.yaml").write_text(text)
        with_templates.restart(f"--policies={folder}")
        answer = api.create(named("third"), namespace)
        assert version_of(answer.body) == "xl-trn2=2"
        assert any("has version 2, and policy 'xl-trn2' has only 1" in each for each in answer.warnings)
    finally:
        (folder / "templates.yaml").write_text(text)


@pytest.mark.usefixtures("with_templates")
def test_a_workload_gets_its_template_early(api: Api, namespace: str) -> None:
    sent(api, namespace)
    template = named("unused", "1x4-connected-neurons")
    template = {"metadata": {"labels": {"app": "a"}}, "spec": template["spec"]}
    body = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "a"}}, "template": template},
    }
    dry = api.create(body, namespace, dry_run=True)
    assert not any("NEU705" in each for each in dry.warnings), dry.warnings
    assert api.find(TEMPLATE, "1x4-connected-neurons", namespace) is None
    api.create(body, namespace)
    eventually("the template", lambda: api.find(TEMPLATE, "1x4-connected-neurons", namespace) is not None)


@pytest.mark.usefixtures("with_templates")
def test_a_pod_asks_by_annotation_and_apply_again_changes_nothing(kubectl: Kubectl, api: Api) -> None:
    sent(api, kubectl.namespace)
    for _ in range(2):
        applied = kubectl.feed("apply", annotated("p"))
        assert applied.ok, applied.stderr
    stored = api.get("Pod", "p", kubectl.namespace)
    assert version_of(stored) == "l-trn2=1"
    assert stored["spec"]["resourceClaims"] == [{"name": "neuron", "resourceClaimTemplateName": "l-trn2"}]
    assert stored["spec"]["containers"][0]["resources"]["claims"] == [{"name": "neuron"}]
    refused = kubectl.feed("create", annotated("q", "xxl-trn2"))
    assert not refused.ok
    assert "NEU722" in refused.stderr


@pytest.mark.usefixtures("with_templates")
def test_an_unused_template_is_pruned_and_made_again(api: Api, namespace: str, prune: Prune) -> None:
    sent(api, namespace)
    api.create(named("p"), namespace)
    api.create(annotated("q"), namespace)
    api.delete("Pod", "p", namespace, force=True)
    assert prune.must(namespace) == {"xl-trn2": "removed"}
    assert api.find(TEMPLATE, "l-trn2", namespace) is not None, "a pod uses it"
    assert version_of(api.create(named("later"), namespace).body) == "xl-trn2=1"
    assert version_of(api.get(TEMPLATE, "xl-trn2", namespace)) == "1"


@pytest.mark.usefixtures("with_templates")
def test_prune_leaves_a_template_of_the_tenant(api: Api, namespace: str, prune: Prune) -> None:
    sent(api, namespace)
    api.create(own_template(), namespace)
    assert prune.must(namespace) == {}
    assert api.find(TEMPLATE, "xl-trn2", namespace) is not None


@pytest.mark.usefixtures("with_templates")
def test_a_tenant_makes_none_elsewhere(control_plane: ControlPlane, api: Api, namespace: str) -> None:
    """With the rights of a namespace's editor: the webhook acts in the namespace of the pod only."""
    sent(api, namespace)
    kubectl = control_plane.kubectl().within(namespace)
    kubectl.must("create", "serviceaccount", "tenant")
    kubectl.must("create", "rolebinding", "tenant", "--clusterrole=edit", f"--serviceaccount={namespace}:tenant")
    account = f"--as=system:serviceaccount:{namespace}:tenant"
    elsewhere = kubectl.run("create", account, "-n", "default", "-f", "-", stdin=yaml.safe_dump(named("p")))
    assert not elsewhere.ok
    assert "forbidden" in elsewhere.stderr
    assert api.find(TEMPLATE, "xl-trn2", "default") is None
    here = kubectl.run("create", account, "-f", "-", stdin=yaml.safe_dump(named("p")))
    assert here.ok, here.stderr
    assert api.find(TEMPLATE, "xl-trn2", namespace) is not None


@pytest.mark.usefixtures("with_templates")
def test_pods_get_the_devices(api: Api, namespace: str, control_plane: ControlPlane, kubelet: Kubelet) -> None:
    sent(api, namespace)
    with running(control_plane, kubelet, "trn2.48xlarge"):
        for made, devices in ((annotated("by-annotation"), 8), (named("by-claim"), 16)):
            name = made["metadata"]["name"]
            api.create(made, namespace)
            wait_running(api, namespace, name)
            [seen] = kubelet.runtime.created(namespace, name).values()
            assert len(indices(seen)) == devices
            wait_gone(api, namespace, name)
