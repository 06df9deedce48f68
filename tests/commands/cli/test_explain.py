"""`neuron-dra explain`, as users call it: files, a fake API server, output and exit codes."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from click.testing import Result

from cluster.kinds.replicas import LABELS
from neuron import names
from neuron.codes import CODES
from tests.support.emulated import EmulatedCluster
from tests.support.explaining import Object, converted_pod, event, legacy_pod
from tests.support.fake_api import FakeApi, answer
from tests.support.invoking import invoke

POLICIES = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ConversionPolicy
metadata:
  name: trn-only
spec:
  order: 1
  match: {namespaces: [team-a]}
  families: [trn2]
  mode: convert
---
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ValidatingPolicy
metadata:
  name: owners
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
  validations:
  - expression: "'owner' in object.metadata.?labels.orValue({})"
    message: every pod needs the label owner
"""


class Api(FakeApi):
    """A server that also answers /version, and can refuse all credentials."""

    refuses = False

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if self.refuses:
            return await answer(401, "Unauthorized", "Unauthorized")(request)
        if request.path == "/version":
            return web.json_response({"gitVersion": "v1.36.3"})
        return await super()._handle(request)


@pytest.fixture
def api() -> Iterator[Api]:
    with Api().serve_in_thread() as served:
        yield served


@pytest.fixture
def kubeconfig(api: Api, tmp_path: Path) -> Path:
    return api.kubeconfig(tmp_path, namespace="team-a")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pod.yaml"
    path.write_text("# a comment\n" + yaml.safe_dump(legacy_pod(), sort_keys=False))
    return path


def explain(*arguments: object, stdin: str | None = None) -> Result:
    return invoke("explain", *arguments, stdin=stdin)


def deployment(*arguments: str, volumes: list[Object] | None = None) -> Object:
    container = {"name": "webhook", "command": ["neuron-dra-webhook"], "args": list(arguments)}
    spec = {"template": {"spec": {"containers": [container], "volumes": volumes or []}}}
    return {"metadata": {"name": "neuron-dra", "namespace": "neuron-dra", "labels": dict(LABELS)}, "spec": spec}


def installed(api: Api, *arguments: str, volumes: list[Object] | None = None) -> None:
    api.put("deployments", deployment(*arguments, volumes=volumes))
    entry = {
        "name": "mutate.neuron.aws.com",
        "clientConfig": {"service": {"namespace": "neuron-dra", "name": "neuron-dra"}},
    }
    api.put("mutatingwebhookconfigurations", {"metadata": {"name": "neuron-dra"}, "webhooks": [entry]})
    api.put("namespaces", {"metadata": {"name": "team-a"}})


# --- files ------------------------------------------------------------------------------------------------------


def test_a_file_is_explained_without_a_cluster(file: Path) -> None:
    result = explain("-f", file, "--families=trn2")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == f"Pod train ({file}:2)"
    assert lines[1] == "  asks      main: aws.amazon.com/neuron: 4"
    assert lines[2] == "  mode      convert: the default of this command (--mode); the webhook's may differ"
    assert lines[3] == "  result    converted"
    assert lines[4].startswith("  claim     neuron, generated template neuron-4-")
    assert lines[5] == "              n0: 4 devices of neuron.aws.com, connected (devicegroup4_id)"
    assert lines[6] == "  patch     remove  /spec/containers/0/resources/limits"
    assert "nodes" not in result.stdout
    assert "\x1b" not in result.stdout


def test_a_refused_pod_ends_with_1_and_shows_the_error(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(yaml.safe_dump(legacy_pod({names.RESOURCE_NEURON: "7"})))
    result = explain("-f", path, "--families=trn2")
    assert result.exit_code == 1
    assert "  result    refused\n" in result.stdout
    assert "  error     NEU105 Instance type trn2.48xlarge does not support requests for device: 7." in result.stdout


def test_matching_policies_are_listed_with_file_and_line(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "team.yaml").write_text(POLICIES)
    result = explain("-f", file, "-n", "team-a", "--policies", folder)
    assert result.exit_code == 1
    place = folder / "team.yaml"
    assert f"mode      convert: ConversionPolicy trn-only ({place}:5)\n" in result.stdout
    assert f"policies  ConversionPolicy trn-only ({place}:5) sets mode, families\n" in result.stdout
    assert f"  x ValidatingPolicy owners ({place}:15) denies it\n" in result.stdout
    assert "every pod needs the label owner" in result.stdout


@pytest.mark.parametrize(
    ("annotations", "namespace", "mode"),
    [
        ({names.ANNOTATION_CONVERT: "shadow"}, {}, "shadow: the pod's annotation neuron.aws.com/convert"),
        ({}, {names.ANNOTATION_CONVERT: "off"}, "off: annotation neuron.aws.com/convert of Namespace team-a"),
    ],
)
def test_the_source_of_the_mode_is_shown(
    tmp_path: Path, annotations: dict[str, str], namespace: dict[str, str], mode: str
) -> None:
    found = legacy_pod(namespace="team-a")
    found["metadata"]["annotations"] = annotations
    place = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a", "annotations": namespace}}
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump_all([place, found]))
    result = explain("-f", path)
    assert f"  mode      {mode}\n" in result.stdout


def test_shadow_mode_shows_the_result_of_mode_convert(file: Path) -> None:
    result = explain("-f", file, "--mode=shadow")
    assert "  mode      shadow: --mode of this command\n" in result.stdout
    assert "  result    not changed, because of shadow mode: in mode convert it would be converted\n" in result.stdout


def test_a_quota_in_the_files_is_shown(tmp_path: Path) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "devices", "namespace": "team-a"},
        "spec": {"hard": {"neuron.aws.com.deviceclass.resource.k8s.io/devices": "2"}},
    }
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump_all([quota, legacy_pod(namespace="team-a")]))
    result = explain("-f", path)
    told = "devices: neuron.aws.com.deviceclass.resource.k8s.io/devices: 4 of 2, exceeded: the claim cannot be created"
    assert told in result.stdout
    assert result.exit_code == 1


def test_a_pod_without_neuron_is_explained_in_three_lines(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(yaml.safe_dump(legacy_pod({"cpu": "1"})))
    result = explain("-f", path)
    assert result.stdout.splitlines()[1:] == [
        "  asks      no Neuron resource of the device plugin",
        "  result    not changed: there is nothing to convert",
    ]


def test_each_pod_template_of_a_workload_is_explained() -> None:
    template = {key: value for key, value in legacy_pod().items() if key in ("metadata", "spec")}
    workload = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"template": template},
    }
    result = explain("-f", "-", stdin=yaml.safe_dump(workload))
    assert result.stdout.startswith("pods of spec.template in Deployment d (<stdin>:1)\n")


def test_files_without_pods_are_reported() -> None:
    result = explain("-f", "-", stdin="{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "Nothing to explain: the files contain no pod, and no workload with pods.\n"


def test_a_pod_that_is_not_readable_is_an_error() -> None:
    result = explain("-f", "-", stdin="{apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {containers: 7}}")
    assert result.exit_code == 1
    assert "NEU114 the object contains no readable Pod: Expected `array" in result.stdout


def test_a_file_that_cannot_be_read_ends_with_2(tmp_path: Path) -> None:
    result = explain("-f", tmp_path / "nowhere.yaml")
    assert result.exit_code == 2
    assert "nowhere.yaml: No such file or directory." in result.stderr


def test_json_has_everything(file: Path) -> None:
    [found] = json.loads(explain("-f", file, "-o", "json", "--families=trn2").stdout)
    assert found["mode"] == {
        "value": "convert",
        "decidedBy": "the default of this command (--mode); the webhook's may differ",
    }
    assert found["result"] == {"outcome": "converted", "reason": "legacy-resources", "refused": False}
    assert found["patch"][0] == {"op": "remove", "path": "/spec/containers/0/resources/limits"}
    assert found["templates"][0]["metadata"]["name"] == found["claims"][0]["object"]
    assert "nodes" not in found


# --- arguments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Name a pod or a workload (pod/NAME, deployment/NAME), or files, or a code (NEU105)."),
        (("pod/",), "pod/ has no name."),
        (("job",), "job is a type: add the name of an object, as in job/NAME."),
        (
            ("configmap/web",),
            "configmap/web: configmap is no type of objects with pods that is known here. For another object: kubectl"
            " get configmap/web -o yaml | neuron-dra explain -f -",
        ),
        (("pod/a", "deploy/"), "deploy/ has no name."),
    ],
)
def test_wrong_arguments_are_usage_errors(arguments: tuple[str, ...], message: str) -> None:
    result = explain(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


# --- a cluster --------------------------------------------------------------------------------------------------


def test_a_file_against_a_cluster_names_nodes_devices_and_reasons(api: Api, kubeconfig: Path, file: Path) -> None:
    installed(api, "--mode=convert")
    cluster = EmulatedCluster()
    for name in ("free", "full", "plugin"):
        cluster.node(name)
    cluster.claim("big", "full", range(16))
    cluster.node("plugin", driver=False, allocatable={names.RESOURCE_NEURON: "16"})
    cluster.slices = [each for each in cluster.slices if not each["metadata"]["name"].startswith("plugin")]
    cluster.put_into(api)
    result = explain("-f", file, "--kubeconfig", kubeconfig)
    assert result.exit_code == 0, result.output
    told = result.stdout[result.stdout.index("  nodes") :].splitlines()
    assert told == [
        "  nodes     1 of 3 Neuron nodes could take it now",
        "            + free (trn2.48xlarge): neuron-device-0, neuron-device-1, neuron-device-2, neuron-device-3",
        "            - full: 0 of 16 devices free, the pod needs 4; held by team-a/big (16)",
        "            - plugin: the device plugin still owns its devices, and the driver does not run",
    ]
    assert "mode      convert: the webhook's default (Deployment neuron-dra/neuron-dra, --mode)" in result.stdout


def test_flags_override_the_settings_of_the_webhook(api: Api, kubeconfig: Path, file: Path) -> None:
    installed(api, "--mode=shadow", "--exclude-namespace=kube-system", "--no-hint-affinity")
    EmulatedCluster().put_into(api)
    result = explain("-f", file, "--kubeconfig", kubeconfig)
    assert "  mode      shadow: the webhook's default (Deployment neuron-dra/neuron-dra, --mode)\n" in result.stdout
    result = explain("-f", file, "--kubeconfig", kubeconfig, "--mode=convert")
    assert "  mode      convert: --mode of this command\n" in result.stdout
    assert "/spec/affinity" not in result.stdout


def test_the_policies_of_the_webhook_count(api: Api, kubeconfig: Path, file: Path) -> None:
    source = {"configMap": {"name": "neuron-dra-policies"}}
    installed(api, volumes=[{"name": "policies", "projected": {"sources": [source]}}])
    metadata = {"name": "neuron-dra-policies", "namespace": "neuron-dra"}
    api.put("configmaps", {"metadata": metadata, "data": {"team.yaml": POLICIES}})
    EmulatedCluster().put_into(api)
    result = explain("-f", file, "--kubeconfig", kubeconfig)
    assert "ConversionPolicy trn-only (neuron-dra-policies/team.yaml:5) sets mode, families" in result.stdout


def test_policies_of_the_webhook_that_cannot_be_read_are_left_out(api: Api, kubeconfig: Path, file: Path) -> None:
    source = {"configMap": {"name": "neuron-dra-policies"}}
    installed(api, volumes=[{"name": "policies", "projected": {"sources": [source]}}])
    metadata = {"name": "neuron-dra-policies", "namespace": "neuron-dra"}
    api.put("configmaps", {"metadata": metadata, "data": {"team.yaml": "kind: [}"}})
    EmulatedCluster().put_into(api)
    result = explain("-f", file, "--kubeconfig", kubeconfig)
    assert result.exit_code == 0
    assert (
        "The policies of the webhook cannot be read, and are left out: neuron-dra-policies/team.yaml:1: "
        in result.stderr
    )


def waiting(api: Api, cluster: EmulatedCluster, **status: Any) -> Object:
    """A converted pod in the API server, whose claim is not allocated."""
    found, own = converted_pod()
    found["status"] |= {"resourceClaimStatuses": [{"name": "neuron", "resourceClaimName": "train-claim"}], **status}
    spec = own.data["spec"]["spec"]
    cluster.claims.append({"metadata": {"name": "train-claim", "namespace": "team-a", "uid": "c"}, "spec": spec})
    cluster.put_into(api)
    api.put("resourceclaimtemplates", {"metadata": {"name": own.name, "namespace": "team-a"}, "spec": own.data["spec"]})
    api.put("pods", copy.deepcopy(found))
    return found


def test_a_pending_pod_is_explained_with_cause_and_fix(api: Api, kubeconfig: Path) -> None:
    installed(api, "--mode=convert")
    cluster = EmulatedCluster()
    cluster.node("full")
    cluster.claim("big", "full", range(16))
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    waiting(api, cluster, conditions=[condition])
    result = explain("pod/train", "--kubeconfig", kubeconfig)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0] == "Pod team-a/train"
    assert lines[1] == (
        "  state     waits: None of 1 Neuron node can take it now. Closest: full: 0 of 16 devices free, the pod needs "
        "4 (held by team-a/big (16))."
    )
    assert lines[2].startswith("  do        Wait until pods that hold devices end")
    assert lines[3] == "  because   condition PodScheduled Unschedulable of the pod: '0/1 nodes'"
    assert "  asks      main: aws.amazon.com/neuron: 4" in lines
    for form in (("pod", "train"), ("train",)):
        assert explain(*form, "--kubeconfig", kubeconfig).stdout == result.stdout


def test_a_running_pod_ends_with_0(api: Api, kubeconfig: Path) -> None:
    installed(api)
    cluster = EmulatedCluster()
    cluster.node("a")
    found, _ = converted_pod()
    cluster.claim("train-claim", "a", range(4), pods=["train"])
    found["spec"]["nodeName"] = "a"
    found["status"] = {
        "phase": "Running",
        "resourceClaimStatuses": [{"name": "neuron", "resourceClaimName": "train-claim"}],
        "containerStatuses": [{"name": "main", "state": {"running": {}}}],
    }
    cluster.put_into(api)
    api.put("pods", found)
    result = explain("pod/train", "--kubeconfig", kubeconfig)
    assert result.exit_code == 0, result.output
    assert "state     well: It runs on node a with neuron-device-0, neuron-device-1" in result.stdout
    assert "  nodes" not in result.stdout


def test_events_are_read_for_the_pod_alone(api: Api, kubeconfig: Path) -> None:
    installed(api)
    cluster = EmulatedCluster()
    found, own = converted_pod()
    cluster.put_into(api)
    api.put("pods", found)
    api.put("resourceclaimtemplates", {"metadata": {"name": own.name, "namespace": "team-a"}, "spec": own.data["spec"]})
    told = event("FailedResourceClaimCreation", "exceeded quota: devices, requested: 4, used: 14, limited: 16")
    told["metadata"] = {"name": "e", "namespace": "team-a"}
    api.put("events", told)
    [document] = json.loads(explain("pod/train", "--kubeconfig", kubeconfig, "-o", "json").stdout)
    assert document["diagnosis"]["case"] == "quota"
    [call] = api.calls("list", "events")
    assert (call.namespace, call.query["fieldSelector"]) == ("team-a", "involvedObject.uid=uid")


def test_a_workload_is_explained_with_its_pods_that_are_not_ready(api: Api, kubeconfig: Path) -> None:
    installed(api, "--mode=convert")
    cluster = EmulatedCluster()
    cluster.node("free")
    cluster.put_into(api)
    labels = {"app": "train"}
    spec = {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": legacy_pod()["spec"]},
    }
    metadata = {"name": "train", "namespace": "team-a", "uid": "d"}
    api.kinds.append(("apps", "v1", "Deployment", "deployments", True))
    api.put("deployments", {"metadata": metadata, "spec": spec})
    for at in range(5):
        found = legacy_pod(name=f"train-{at}", namespace="team-a")
        found["metadata"] |= {"uid": f"uid-{at}", "labels": labels if at else {"app": "other"}}
        found["status"] = {"phase": "Pending"}
        api.put("pods", found)
    ready = legacy_pod(name="train-ready", namespace="team-a")
    ready["metadata"] |= {"uid": "ready", "labels": labels}
    ready["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    api.put("pods", ready)
    result = explain("deployment/train", "--kubeconfig", kubeconfig)
    heads = [line for line in result.stdout.splitlines() if line and not line.startswith(" ")]
    assert heads[:4] == [
        "pods of spec.template in Deployment team-a/train",
        "Pod team-a/train-1",
        "Pod team-a/train-2",
        "Pod team-a/train-3",
    ]
    assert result.stdout.splitlines()[3] == "  result    converted"
    assert "4 pods of Deployment train are not ready: the first 3 are explained." in result.stderr
    assert result.exit_code == 1
    for form in (("deploy", "train"), ("Deployments", "train"), ("deployments.apps/train",)):
        assert explain(*form, "--kubeconfig", kubeconfig).stdout == result.stdout


def test_a_workload_of_an_operator_is_read_in_the_version_that_is_served(api: Api, kubeconfig: Path) -> None:
    installed(api, "--mode=convert")
    EmulatedCluster().put_into(api)
    api.kinds.append(("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets", True))
    job = {"spec": {"template": {"spec": legacy_pod()["spec"]}}}
    spec = {"replicatedJobs": [{"name": "workers", "template": job}]}
    api.put("jobsets", {"metadata": {"name": "big", "namespace": "team-b"}, "spec": spec})
    result = explain("jobset", "big", "--kubeconfig", kubeconfig, "-n", "team-b")
    assert result.stdout.startswith("pods of spec.replicatedJobs[0].template.spec.template in JobSet team-b/big\n")
    assert result.exit_code == 0
    gone = explain("jobset/gone", "--kubeconfig", kubeconfig)
    assert "JobSet team-a/gone does not exist. -n names another namespace." in gone.stderr
    unserved = explain("mpijob/x", "--kubeconfig", kubeconfig)
    assert "cannot be read: it serves no MPIJob of kubeflow.org." in unserved.stderr
    assert (gone.exit_code, unserved.exit_code) == (2, 2)


def test_a_pod_that_does_not_exist_ends_with_2(api: Api, kubeconfig: Path) -> None:
    installed(api)
    EmulatedCluster().put_into(api)
    result = explain("pod/nobody", "--kubeconfig", kubeconfig, "-n", "team-b")
    assert result.exit_code == 2
    assert "Pod team-b/nobody does not exist. -n names another namespace." in result.stderr


def test_a_user_of_one_namespace_gets_readable_facts_and_the_missing_rules(api: Api, kubeconfig: Path) -> None:
    EmulatedCluster().put_into(api)
    found, own = converted_pod()
    api.put("pods", found)
    api.put("resourceclaimtemplates", {"metadata": {"name": own.name, "namespace": "team-a"}, "spec": own.data["spec"]})
    for plural, group in (
        ("nodes", ""),
        ("resourceslices", "resource.k8s.io"),
        ("deployments", "apps"),
        ("mutatingwebhookconfigurations", "admissionregistration.k8s.io"),
    ):
        api.forbid("list", plural, group)
    api.forbid("get", "namespaces")
    result = explain("pod/train", "--kubeconfig", kubeconfig)
    assert result.exit_code == 1
    notes = result.stdout[result.stdout.index("  note") :]
    assert (
        "You are not allowed to list nodes. Nodes cannot be judged. Add this rule to your Role or ClusterRole" in notes
    )
    assert "Devices cannot be judged." in notes
    assert "The webhook's settings are not known." in notes
    assert "The annotations of Namespace team-a are not known." in notes
    assert "  nodes" not in result.stdout


def test_a_pod_that_may_not_be_read_ends_with_2(api: Api, kubeconfig: Path) -> None:
    EmulatedCluster().put_into(api)
    api.forbid("get", "pods")
    result = explain("pod/train", "--kubeconfig", kubeconfig)
    assert result.exit_code == 2
    assert "cannot be read: you are not allowed to get pods in namespace team-a." in result.stderr


def test_a_cluster_that_refuses_the_credentials_ends_with_2(api: Api, kubeconfig: Path, file: Path) -> None:
    api.refuses = True
    result = explain("-f", file, "--kubeconfig", kubeconfig)
    said = f"Error: {api.url} cannot be read: the API server does not accept these credentials: renew them\n"
    assert (result.exit_code, result.stderr) == (2, said)


def test_credentials_that_only_lists_refuse_end_with_2(api: Api, kubeconfig: Path, file: Path) -> None:
    api.tokens = {"another"}
    result = explain("-f", file, "--kubeconfig", kubeconfig)
    said = f"Error: {api.url} cannot be read: the API server does not accept these credentials: renew them\n"
    assert (result.exit_code, result.stderr) == (2, said)


def test_a_cluster_that_does_not_answer_ends_with_2(kubeconfig: Path, file: Path) -> None:
    config = yaml.safe_load(kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:1"
    kubeconfig.write_text(yaml.safe_dump(config))
    result = explain("-f", file, "--kubeconfig", kubeconfig)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: cannot connect to http://127.0.0.1:1: ")


@pytest.mark.parametrize("word", ["NEU105", "neu105"])
def test_a_code_is_explained_with_the_texts_of_the_book(word: str) -> None:
    result = invoke("explain", word, "NEU216")
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    for code in ("NEU105", "NEU216"):
        found = CODES[code]
        for part in (f"{code}: {found.title}.", found.why, found.fix, f"Example: {found.message}"):
            assert " ".join(part.split()) in text


@pytest.mark.parametrize(
    ("word", "near"), [("NEU1055", "NEU105"), ("NEU0", "NEU"), ("NEU999999999999", "none")], ids=str
)
def test_an_unknown_code_is_named_with_codes_like_it(word: str, near: str) -> None:
    result = invoke("explain", word)
    assert result.exit_code == 2
    assert f"{word} is no code of neuron-dra. Codes like it: " in " ".join(result.stderr.split())
    assert near in result.stderr
