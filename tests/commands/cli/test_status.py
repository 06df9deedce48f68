"""`neuron-dra status` with a fake API server: requests, missing permissions, exit codes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from click.testing import Result

from cluster.kinds.replicas import LABELS
from commands.status.probe import probe_pod
from tests.support import installation
from tests.support.fake_api import FakeApi, Handler, answer
from tests.support.invoking import invoke

VERSION = {"gitVersion": "v1.36.2"}
GROUP = {"versions": [{"groupVersion": "resource.k8s.io/v1", "version": "v1"}]}
OURS = frozenset({"services", "endpointslices", "configmaps"})
"""Collections of the webhook's namespace."""

EVERYWHERE = (
    "mutatingwebhookconfigurations",
    "validatingwebhookconfigurations",
    "deployments",
    "daemonsets",
    "deviceclasses",
    "resourceslices",
    "resourceclaimtemplates",
    "nodes",
    "namespaces",
)


def plain(body: Any) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.json_response(body)

    return handle


class Api(FakeApi):
    """A server that also answers paths that are not collections."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed = True
        self.fixed: dict[str, Handler] = {"/version": plain(VERSION), "/apis/resource.k8s.io": plain(GROUP)}

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path in self.fixed:
            return await self.fixed[request.path](request)
        if request.path.endswith("subjectaccessreviews"):
            return web.json_response({"status": {"allowed": self.allowed}}, status=201)
        return await super()._handle(request)


@pytest.fixture
def api() -> Iterator[Api]:
    with Api().serve_in_thread() as served:
        yield served


CONVERTED = probe_pod() | {
    "metadata": {"labels": {"neuron.aws.com/converted": "true"}},
    "spec": {"resourceClaims": [{"name": "neuron", "resourceClaimTemplateName": "neuron-1-ab"}]},
}
NODES = (("n1", "trn1.32xlarge"), ("n2", "trn1.32xlarge"), ("cpu", "m5.large"))


@pytest.fixture
def installed(api: Api) -> Api:
    """An installation without errors."""
    found = installation.well()
    for plural, items in (
        ("mutatingwebhookconfigurations", found.mutating),
        ("validatingwebhookconfigurations", found.validating),
        ("deployments", found.deployments),
        ("services", found.service),
        ("configmaps", found.rendered),
        ("pods", found.driver_pods),
        ("endpointslices", found.endpoint_slices),
        ("deviceclasses", found.device_classes),
        ("resourceslices", (installation.slice_object("n1"), installation.slice_object("n2"))),
        ("nodes", tuple(installation.node_object(name, type_) for name, type_ in NODES)),
        ("namespaces", found.namespaces),
    ):
        assert isinstance(items, tuple)
        for item in items:
            metadata = {"namespace": "neuron-dra", **item["metadata"]} if plural in OURS else item["metadata"]
            api.put(plural, {**item, "metadata": metadata})
    api.fault("create", "pods", plain(CONVERTED))
    return api


def run_status(api: Api, tmp_path: Path, *arguments: str) -> Result:
    return invoke("status", f"--kubeconfig={api.kubeconfig(tmp_path)}", *arguments)


def verdicts(result: Result) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in json.loads(result.stdout)["checks"]:
        found.setdefault(line["verdict"], []).append(line["text"])
    return found


def test_a_healthy_installation_exits_with_0(installed: Api, tmp_path: Path) -> None:
    installed.fault("get", "secrets", plain(installation.secret(installation.leaf(days=3000))))
    result = run_status(installed, tmp_path)
    assert result.exit_code == 0, result.output
    assert "✓ API server" in result.stdout
    assert "32 devices on 2 nodes" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("All is well")
    assert "\x1b" not in result.stdout


def test_a_missing_device_class_is_shown_and_exits_with_1(installed: Api, tmp_path: Path) -> None:
    installed.remove("deviceclasses", "neuron.aws.com")
    result = run_status(installed, tmp_path)
    assert result.exit_code == 1
    assert "✗ device class" in result.stdout


def test_permissions_of_the_webhook_are_reviewed_for_its_account(installed: Api, tmp_path: Path) -> None:
    installed.allowed = False
    result = run_status(installed, tmp_path, "-o", "json")
    told = [text for text in verdicts(result)["wrong"] if "may not" in text]
    assert "system:serviceaccount:neuron-dra:neuron-dra may not list, watch namespaces: " in told[0]


def test_a_missing_permission_is_shown_with_its_rule_beside_other_checks(installed: Api, tmp_path: Path) -> None:
    for plural, group in (("nodes", ""), ("leases", "coordination.k8s.io"), ("endpointslices", "discovery.k8s.io")):
        installed.forbid("list", plural, group)
    result = run_status(installed, tmp_path, "-o", "json")
    checks = json.loads(result.stdout)["checks"]
    unknown = {line["text"]: line["fix"] for line in checks if line["verdict"] == "unknown"}
    assert unknown["you are not allowed to list nodes."] == (
        'Add this rule to your Role or ClusterRole: - {apiGroups: [""], resources: [nodes], verbs: [list]}'
    )
    assert "you are not allowed to list leases.coordination.k8s.io in namespace neuron-dra." in unknown
    assert any("32 devices" in line["text"] for line in checks)


def test_long_collections_are_read_to_their_end(installed: Api, tmp_path: Path) -> None:
    for number in range(1203):
        installed.put("namespaces", installation.named(f"n{number}"))
    result = run_status(installed, tmp_path, "-o", "json")
    assert any("1204 namespaces by default" in text for text in verdicts(result)["well"])


def test_only_objects_of_this_project_are_requested(installed: Api, tmp_path: Path) -> None:
    run_status(installed, tmp_path, "-n", "elsewhere")
    (leases,) = installed.calls("list", "leases")
    assert leases.namespace == "elsewhere"
    assert leases.query["labelSelector"] == ",".join(f"{key}={value}" for key, value in LABELS.items())
    (slices,) = installed.calls("list", "resourceslices")
    assert slices.query["fieldSelector"] == "spec.driver=neuron.aws.com"
    [written] = [call for call in installed.seen if call.verb not in ("list", "get", "continue")]
    assert (written.verb, written.plural, written.query) == ("create", "pods", {"dryRun": "All"})


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        pytest.param(
            answer(401, "Unauthorized", "Unauthorized"),
            "the API server does not accept these credentials: renew them.",
            id="credentials",
        ),
        pytest.param(plain([1]), "/version is not a JSON object.", id="no-object"),
    ],
)
def test_an_api_server_that_cannot_be_read_exits_with_2(
    api: Api, tmp_path: Path, handler: Handler, message: str
) -> None:
    api.fixed["/version"] = handler
    result = run_status(api, tmp_path)
    assert result.exit_code == 2
    assert result.stderr == f"Error: {api.url} cannot be checked: {message}\n"


def test_a_cluster_that_does_not_answer_ends_with_2(api: Api, tmp_path: Path) -> None:
    api.url = "http://127.0.0.1:1"
    result = run_status(api, tmp_path)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: cannot connect to http://127.0.0.1:1: ")


def test_a_missing_kubeconfig_exits_with_2(tmp_path: Path) -> None:
    result = invoke("status", f"--kubeconfig={tmp_path / 'nowhere'}")
    assert result.exit_code == 2
    assert result.stderr == f"Error: cannot read {tmp_path / 'nowhere'}: No such file or directory\n"


def test_a_user_without_permissions_gets_exit_code_2(api: Api, tmp_path: Path) -> None:
    for verb in ("list", "get", "create"):
        for plural in ("services", "secrets", "endpointslices", "leases", *EVERYWHERE):
            api.forbid(verb, plural)
    api.fixed["/apis/authorization.k8s.io/v1/subjectaccessreviews"] = answer(403, "Forbidden", "no")
    result = run_status(api, tmp_path)
    assert result.exit_code == 2
    assert "Nothing wrong was seen, " in result.stdout.splitlines()[-1]


def test_one_unreadable_object_is_shown_with_the_missing_rule(installed: Api, tmp_path: Path) -> None:
    said = 'secrets "neuron-dra-tls" is forbidden: User "me" cannot get resource "secrets" in API group "" in the …'
    installed.fault("get", "secrets", answer(403, "Forbidden", said))
    fixes = [line["fix"] for line in json.loads(run_status(installed, tmp_path, "-o", "json").stdout)["checks"]]
    assert 'Add this rule to your Role or ClusterRole: - {apiGroups: [""], resources: [secrets], verbs: [get]}' in fixes


def test_a_kueue_that_refuses_generated_claims_is_a_note(installed: Api, tmp_path: Path) -> None:
    installed.fixed["/apis/kueue.x-k8s.io"] = plain({"kind": "APIGroup"})
    container = {"image": "registry.k8s.io/kueue/kueue:v0.18.1"}
    manager = {"spec": {"template": {"spec": {"containers": [container]}}}}
    place = {"namespace": "kueue-system"}
    installed.put("deployments", {**manager, "metadata": {**place, "name": "kueue-controller-manager"}})
    data = {"controller_manager_config.yaml": "resources: {}"}
    installed.put("configmaps", {"metadata": {**place, "name": "kueue-manager-config"}, "data": data})
    notes = verdicts(run_status(installed, tmp_path, "-o", "json"))["note"]
    assert [each.partition(":")[0] for each in notes if each.startswith("Kueue")] == [
        "Kueue 0.18.1 refuses claims with constraints or device settings, so those for connected devices.",
        "Kueue 0.18.1 has no mapping for neuron.aws.com",
    ]


def test_a_kueue_that_may_not_be_read_is_unknown_with_the_rule(installed: Api, tmp_path: Path) -> None:
    installed.fixed["/apis/kueue.x-k8s.io"] = plain({"kind": "APIGroup"})
    installed.forbid("get", "configmaps")
    found = json.loads(run_status(installed, tmp_path, "-o", "json").stdout)["checks"]
    (line,) = [each for each in found if each["check"] == "Kueue"]
    assert (line["verdict"], "resources: [configmaps]" in line["fix"]) == ("unknown", True)
