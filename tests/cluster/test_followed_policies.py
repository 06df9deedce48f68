"""The entry whose rules follow the policies, on a real API server: with two replicas, and under Helm."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

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
CONFIG_MAPS: Final = POLICY % {"group": "", "plural": "configmaps"}
LEASES: Final = POLICY % {"group": "coordination.k8s.io", "plural": "leases"}


@pytest.fixture
def installation(lent_control_plane: ControlPlane) -> Iterator[Installation]:
    """The shipped rights, and those that following adds."""
    kubeconfig = install_rbac(lent_control_plane)
    added = [each for each in render(VALUES) if each["metadata"]["name"] == "neuron-dra-policy-rules"]
    assert [each["kind"] for each in added] == ["ClusterRole", "ClusterRoleBinding"]
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


def refusal(api: Api, name: str, **metadata: Any) -> str:
    """What a dry run of a ConfigMap is answered; empty: it is admitted."""
    body: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}}
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
        (folder / "leases.yaml").write_text(LEASES)
    one, two = (installation.replica(f"--policies={folder}", "--follow-policies") for folder in folders)
    configure(api, one)
    for replica in (one, two):
        replica.wait_ready()
    installation.wait_configured()
    eventually("the rule of the first policy", lambda: resources(api) == ["leases"])
    assert refusal(api, "free") == ""
    generation = api.get(KIND, NAME)["metadata"]["generation"]

    for folder in folders:
        (folder / "maps.yaml").write_text(CONFIG_MAPS)
    eventually("the rule of the new policy", lambda: resources(api) == ["configmaps", "leases"])
    said = eventually("a request to be judged", lambda: refusal(api, "judged"))
    assert "NEU801: policy 'owned-configmaps': without an owner" in said
    assert refusal(api, "owned", labels={"owner": "team-a"}) == ""
    assert api.get(KIND, NAME)["metadata"]["generation"] == generation + 1, "one replica wrote, once"

    eventually("both replicas to report the same policies", lambda: not differ(installation, one, two))
    (folders[1] / "maps.yaml").unlink()
    eventually("the second replica to report its policies", lambda: differ(installation, one, two))
    assert resources(api) == ["configmaps", "leases"], "the first replica still needs them"
    (folders[0] / "maps.yaml").unlink()
    eventually("the rule to go", lambda: resources(api) == ["leases"], timeout=60)
    assert eventually("no review", lambda: refusal(api, "free") == "")
    for replica in (one, two):
        assert "[+]policy rules ok" in replica.readiness()[1]
        assert "not allowed" not in replica.log()


def differ(installation: Installation, one: Replica, two: Replica) -> bool:
    reports = installation.reports()
    return reports[one.name]["policies"] != reports[two.name]["policies"]
