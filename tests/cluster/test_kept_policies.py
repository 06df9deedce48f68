"""The last good policies in the chart's ConfigMap: kept and restored with the shipped rights on a real API server."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from cluster.resources import CONFIG_MAPS
from tests.cluster.api import Api, ApiError, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.processes import eventually
from tests.cluster.replicas import NAMESPACE, Installation, Replica
from tests.cluster.webhooks import install_rbac
from tests.deploy.charts import find, render

KEPT: Final = "neuron-dra-policies-kept"
PATH: Final = CONFIG_MAPS.path(NAMESPACE, KEPT)
POLICY: Final = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ValidatingPolicy
metadata: {name: few-devices}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  validations: [{expression: neuron.devices <= 4, message: at most four devices}]
"""
FAULTY: Final = POLICY.replace("neuron.devices <= 4", "neuron.devces <= 4")


@pytest.fixture
def installation(lent_control_plane: ControlPlane) -> Iterator[Installation]:
    """The rights that the chart gives with policies, its ConfigMap, and the policies that guard it."""
    kubeconfig = install_rbac(lent_control_plane)
    manifests = render({"policies": {"packs": ["privileged"]}})
    guards = [each for each in manifests if each["metadata"]["name"] == "neuron-dra-kept-policies"]
    assert len(guards) == 2
    for each in (find(manifests, "ConfigMap", KEPT), find(manifests, "Role", "neuron-dra"), *guards):
        lent_control_plane.kubectl().within("").must("apply", "-f", "-", stdin=json.dumps(each))
    with Installation(lent_control_plane, kubeconfig) as made:
        yield made


def content(api: Api) -> bytes:
    """What is kept; empty: nothing."""
    data = api.request("GET", PATH).body.get("binaryData") or {}
    return b"".join(base64.b64decode(value) for value in data.values())


def start(installation: Installation, folder: Path) -> Replica:
    replica = installation.replica(f"--policies={folder}", f"--policies-state-config-map={KEPT}")
    installation.configure(replica)
    replica.wait_ready()
    return replica


def reported(installation: Installation, replica: Replica) -> dict[str, str]:
    """The report in a replica's Lease, once it has the policies."""

    def attempt() -> dict[str, str]:
        report: dict[str, str] = installation.reports().get(replica.name, {})
        return report if "policies" in report else {}

    return eventually("the report", attempt)


def test_a_replica_with_an_invalid_file_starts_with_the_set_that_another_kept(
    lent_control_plane: ControlPlane, installation: Installation, tmp_path: Path
) -> None:
    api, file = lent_control_plane.admin, tmp_path / "few.yaml"
    before: Object = api.request("GET", PATH).body
    assert content(api) == b""
    file.write_text(POLICY)
    first = start(installation, tmp_path)
    good = reported(installation, first)["policies"]
    kept = eventually("the set to be kept", lambda: content(api))
    after = api.request("GET", PATH).body["metadata"]
    for field in ("resourceVersion", "managedFields"):
        before["metadata"].pop(field, None)
        after.pop(field, None)
    assert after == before["metadata"], "the webhook wrote the content and no metadata"
    assert first.metric("neuron_dra_policy_kept") == 1
    assert first.metric("neuron_dra_policy_older_set_timestamp_seconds") == 0
    first.process.stop()

    file.write_text(FAULTY)
    second = start(installation, tmp_path)
    report = reported(installation, second)
    assert report["policies"] == good
    assert "devces" in report["policies_problem"]
    assert report["policies_since"]
    assert "in force since" in second.readiness()[1]
    assert second.metric("neuron_dra_policy_older_set_timestamp_seconds") > 0
    assert content(api) == kept

    file.write_text(POLICY.replace("<= 4", "<= 8"))
    eventually("the mended file to be kept", lambda: content(api) != kept)
    assert second.metric("neuron_dra_policy_older_set_timestamp_seconds") == 0


@pytest.mark.usefixtures("lent_control_plane")
def test_a_deleted_config_map_is_reported_and_not_created_again(installation: Installation, tmp_path: Path) -> None:
    api = installation.api
    api.request("DELETE", PATH)
    (tmp_path / "few.yaml").write_text(POLICY)
    replica = start(installation, tmp_path)
    said = eventually("the report", lambda: (text := replica.readiness()[1]) and "not kept: " in text and text)
    assert f"ConfigMap {NAMESPACE}/{KEPT} does not exist; apply it as shipped" in said
    assert replica.metric("neuron_dra_policy_kept") == 0
    with pytest.raises(ApiError, match="not found"):
        api.request("GET", PATH)
