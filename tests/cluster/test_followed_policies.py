"""The entry whose rules follow the policies, on a real API server: with two replicas, and under Helm."""

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.cluster.api import Api, ApiError, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.processes import eventually
from tests.cluster.replicas import NAME, Installation, Replica
from tests.cluster.webhooks import CONFIGURATION_KINDS, install_rbac
from tests.deploy.charts import render
from webhook.cluster.policy_entry import ENTRY

KIND: Final = "ValidatingWebhookConfiguration"
VALUES: Final[dict[str, Any]] = {
    "policies": {"packs": ["privileged"]},
    "validation": {
        "followPolicies": True,
        # The test's own objects, and no others, depend on the replicas.
        "matchConditions": [{"name": "ours", "expression": "request.namespace == 'default'"}],
    },
}
POLICY: Final = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ValidatingPolicy
metadata: {name: owned-%(plural)s}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: ["%(group)s"], apiVersions: [v1], operations: [CREATE], resources: [%(plural)s]}]
  validations: [{expression: "'owner' in object.metadata.?labels.orValue({})", message: without an owner}]
"""
SERVICES: Final = POLICY % {"group": "", "plural": "services"}
QUOTAS: Final = POLICY % {"group": "", "plural": "resourcequotas"}
LEASES: Final = POLICY % {"group": "coordination.k8s.io", "plural": "leases"}
SECRETS: Final = POLICY % {"group": "", "plural": "secrets"}


@pytest.fixture
def installation(lent_control_plane: ControlPlane) -> Iterator[Installation]:
    """The shipped rights, and those that following adds."""
    kubeconfig = install_rbac(lent_control_plane)
    names = ("neuron-dra-policy-rules", "neuron-dra-configurations")
    added = [each for each in render(VALUES) if each["metadata"]["name"] in names]
    assert len(added) == 4
    for each in added:
        lent_control_plane.kubectl().within("").must("apply", "-f", "-", stdin=json.dumps(each))
    with Installation(lent_control_plane, kubeconfig) as made:
        yield made


def configure(api: Api, replica: Replica) -> None:
    """The configurations of the chart, called at this replica."""
    for each in render(VALUES):
        if each["kind"] in CONFIGURATION_KINDS:
            for webhook in each["webhooks"]:
                path = webhook["clientConfig"]["service"]["path"]
                webhook["clientConfig"] = {"url": f"https://127.0.0.1:{replica.port}{path}"}
            api.create(each)


def rules(api: Api) -> list[Object]:
    [entry] = [each for each in api.get(KIND, NAME)["webhooks"] if each["name"] == ENTRY]
    found: list[Object] = entry.get("rules", [])
    return found


def resources(api: Api) -> list[str]:
    return [resource for rule in rules(api) for resource in rule["resources"]]


def service_error(api: Api, name: str, **metadata: Any) -> str:
    """What a dry run of a Service is answered; empty: it is admitted."""
    spec = {"ports": [{"port": 80}]}
    body: Object = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, **metadata}, "spec": spec}
    try:
        api.create(body, "default", dry_run=True)
    except ApiError as error:
        return str(error)
    return ""


def test_rules_follow_the_policies_of_two_replicas(
    lent_control_plane: ControlPlane, installation: Installation, tmp_path: Path
) -> None:
    api = lent_control_plane.admin
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        (folder / "quotas.yaml").write_text(QUOTAS)
    one, two = (installation.replica(f"--policies={folder}", "--follow-policies") for folder in folders)
    configure(api, one)
    for replica in (one, two):
        replica.wait_ready()
    installation.wait_configured()
    eventually("the rule of the first policy", lambda: resources(api) == ["resourcequotas"])
    assert service_error(api, "free") == ""
    generation = api.get(KIND, NAME)["metadata"]["generation"]

    for folder in folders:
        (folder / "services.yaml").write_text(SERVICES)
    eventually("the rule of the new policy", lambda: resources(api) == ["resourcequotas", "services"])
    said = eventually("a request to be judged", lambda: service_error(api, "judged"))
    assert "NEU801: policy 'owned-services': without an owner" in said
    assert service_error(api, "owned", labels={"owner": "team-a"}) == ""
    assert api.get(KIND, NAME)["metadata"]["generation"] == generation + 1, "one replica wrote, once"

    eventually("both replicas to report the same policies", lambda: not differ(installation, one, two))
    (folders[1] / "services.yaml").unlink()
    eventually("the second replica to report its policies", lambda: differ(installation, one, two))
    assert resources(api) == ["resourcequotas", "services"], "the first replica still needs them"
    (folders[0] / "services.yaml").unlink()
    eventually("the rule to go", lambda: resources(api) == ["resourcequotas"], timeout=60)
    assert eventually("no review", lambda: service_error(api, "free") == "")
    for replica in (one, two):
        assert "[+]policy rules ok" in replica.readiness()[1]
        assert "not allowed" not in replica.log()


def differ(installation: Installation, one: Replica, two: Replica) -> bool:
    reports = installation.reports()
    return reports[one.name]["policies"] != reports[two.name]["policies"]


def test_a_policy_cannot_make_the_api_server_send_leases_or_secrets(
    lent_control_plane: ControlPlane, installation: Installation, tmp_path: Path
) -> None:
    api = lent_control_plane.admin
    for name, text in (("quotas", QUOTAS), ("leases", LEASES), ("secrets", SECRETS)):
        (tmp_path / f"{name}.yaml").write_text(text)
    replica = installation.replica(
        f"--policies={tmp_path}", "--follow-policies", "--follow-group=coordination.k8s.io", "--follow-group=core"
    )
    configure(api, replica)
    replica.wait_ready()
    installation.wait_configured()
    eventually("the rule of the policy on quotas", lambda: resources(api) == ["resourcequotas"])
    said = "match CREATE of leases of coordination.k8s.io, CREATE of secrets: no rule is made for that"
    assert said in replica.readiness()[1]
    assert said in replica.log()


EVERYTHING: Final[list[Object]] = [
    {"apiGroups": [group], "apiVersions": ["*"], "operations": [operation], "resources": [resource], "scope": "*"}
    for group, resource, operation in (
        ("coordination.k8s.io", "leases", "UPDATE"),
        ("", "nodes/status", "UPDATE"),
        ("", "pods/binding", "CREATE"),
        ("authentication.k8s.io", "tokenreviews", "CREATE"),
        ("", "secrets", "CREATE"),
        ("", "pods/*", "UPDATE"),
        ("", "*/*", "CREATE"),
        ("", "pods", "DELETE"),
        ("", "services", "*"),
        ("*", "*", "*"),
        ("example.com", "widgets", "CREATE"),
        ("batch", "jobs/status", "UPDATE"),
    )
]


def test_a_token_of_the_webhook_cannot_write_other_rules(
    lent_control_plane: ControlPlane, installation: Installation
) -> None:
    api = lent_control_plane.admin
    for each in render(VALUES):
        if each["kind"] == KIND:
            api.create(each)
    index = next(at for at, each in enumerate(api.get(KIND, NAME)["webhooks"]) if each["name"] == ENTRY)
    [user] = json.loads(installation.kubeconfig.read_text())["users"]
    context = ssl.create_default_context(cafile=str(lent_control_plane.authority.files.certificate))
    headers = {"authorization": f"Bearer {user['user']['token']}", "content-type": "application/json-patch+json"}
    path = f"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/{NAME}"
    with httpx.Client(base_url=lent_control_plane.server, verify=context, headers=headers, trust_env=False) as client:

        def written(*wanted: Object) -> str:
            patch = [{"op": "add", "path": f"/webhooks/{index}/rules", "value": list(wanted)}]
            answer = client.patch(path, json=patch)
            return "" if answer.is_success else str(answer.json()["message"])

        services = {**EVERYTHING[0], "apiGroups": [""], "resources": ["services"], "operations": ["CREATE"]}
        said = "rules for resources of users only"
        eventually("the policy to be in force", lambda: said in written(EVERYTHING[0]), timeout=60)
        for rule in EVERYTHING:
            assert said in written(rule), rule
            assert said in written(services, rule), rule
        assert written(services) == ""
        assert rules(api) == [services]
