"""Notes on policies for requests that the shipped configuration does not send."""

from pathlib import Path

import pytest
import yaml

from policies.judging.coverage import SENT, Sent, notes
from tests.policies.policy_files import loaded, policy

MANIFEST = Path(__file__).parents[3] / "deploy/manifests/validating.yaml"
NOT_SENT = "which the shipped ValidatingWebhookConfiguration does not send: add its resourceRules to the rules there."
OF_PODS = (
    "the shipped ValidatingWebhookConfiguration sends only pods that request Neuron's extended resources, were "
    "converted, or have claims and name Neuron"
)
PODS = f"{OF_PODS}; widen its matchCondition 'claims' where 'limits' must match others."
CLAIMS = (
    "the shipped ValidatingWebhookConfiguration sends only claims, templates and DeviceClasses that name Neuron; "
    "widen its matchCondition 'neuron' where 'limits' must match those of other drivers."
)


def about(*rules: str, expression: str = "true") -> list[str]:
    text = policy(f"validations: [{{expression: '{expression}'}}]")
    head, _, rest = text.partition("    resourceRules:\n")
    first, _, tail = rest.partition("\n")
    assert "pods" in first
    return list(
        notes(loaded(f"{head}    resourceRules:\n" + "".join(f"    - {each}\n" for each in rules) + tail).validating)
    )


def rule(group: str, resources: str, operations: str = "CREATE", versions: str = "v1") -> str:
    return (
        f'{{apiGroups: ["{group}"], apiVersions: [{versions}], operations: [{operations}], resources: [{resources}]}}'
    )


def test_the_table_equals_the_rules_of_the_shipped_manifest() -> None:
    configuration = yaml.safe_load(MANIFEST.read_text())
    rules = [each for webhook in configuration["webhooks"] for each in webhook["rules"]]
    found = [Sent(tuple(each["apiGroups"]), tuple(each["operations"]), tuple(each["resources"])) for each in rules]
    assert found == list(SENT)
    conditions = {each["name"] for webhook in configuration["webhooks"] for each in webhook.get("matchConditions", ())}
    assert "claims" in conditions, "the note on pods names it"


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        pytest.param([rule("", "secrets")], [f"policy 'limits' matches secrets, {NOT_SENT}"], id="kind"),
        pytest.param(
            [rule("batch", "jobs", "CREATE, DELETE")],
            [f"policy 'limits' matches DELETE of jobs of batch, {NOT_SENT}"],
            id="operation",
        ),
        pytest.param(
            [rule("apps", "deployments/scale", "UPDATE")],
            [f"policy 'limits' matches deployments/scale of apps, {NOT_SENT}"],
            id="subresource",
        ),
        pytest.param([rule("apps", "deployments")], [], id="sent"),
        pytest.param([rule("resource.k8s.io", "resourceclaims, deviceclasses", '"*"')], [CLAIMS], id="any-operation"),
        pytest.param([rule("*", "'*'", '"*"')], [PODS, CLAIMS], id="everything"),
        pytest.param([rule("", "pods")], [PODS], id="pods"),
    ],
)
def test_a_policy_for_requests_that_are_not_sent_is_reported(rules: list[str], expected: list[str]) -> None:
    assert about(*rules) == expected


def test_a_policy_that_counts_devices_gets_a_note_on_pods_that_are_not_sent() -> None:
    [note] = about(rule("", "pods"), rule("resource.k8s.io", "resourceclaims"), expression="neuron.devices <= 4")
    assert note.startswith(f"{OF_PODS} (in names of claims, ")
    assert "pods whose claims have other names do not reach 'limits', which read 'neuron'" in note
    line = "(request.kind.kind == 'Pod' && object.spec.?resourceClaims.orValue([]).size() > 0) ||"
    assert note.endswith(f"begin its matchCondition 'claims' with {line}")
    docs = (MANIFEST.parents[2] / "docs/policies.md").read_text()
    assert f"`{line}`" in docs
    assert about(rule("resource.k8s.io", "resourceclaims"), expression="neuron.devices <= 4") == []
