"""What the shipped configuration sends, and which policies it leaves unasked."""

from pathlib import Path

import pytest
import yaml

from policies.judging.coverage import SENT, Sent, notes
from tests.policies.policy_files import loaded, policy

MANIFEST = Path(__file__).parents[3] / "deploy/manifests/validating.yaml"
NOT_SENT = "which the shipped ValidatingWebhookConfiguration does not send: add its resourceRules to the rules there."
PODS = (
    "of pods, the shipped ValidatingWebhookConfiguration sends those that claim devices or were converted; "
    "widen its matchCondition 'claims' where 'limits' must see others."
)


def about(*rules: str) -> list[str]:
    text = policy("validations: [{expression: 'true'}]")
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


def test_what_is_sent_is_what_the_shipped_manifest_says() -> None:
    configuration = yaml.safe_load(MANIFEST.read_text())
    rules = [each for webhook in configuration["webhooks"] for each in webhook["rules"]]
    found = [Sent(tuple(each["apiGroups"]), tuple(each["operations"]), tuple(each["resources"])) for each in rules]
    assert found == list(SENT)
    conditions = {each["name"] for webhook in configuration["webhooks"] for each in webhook.get("matchConditions", ())}
    assert "claims" in conditions, "the note on pods names it"


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        pytest.param([rule("", "secrets")], [f"policy 'limits' is about secrets, {NOT_SENT}"], id="kind"),
        pytest.param(
            [rule("batch", "jobs", "CREATE, DELETE")],
            [f"policy 'limits' is about DELETE of jobs of batch, {NOT_SENT}"],
            id="operation",
        ),
        pytest.param(
            [rule("apps", "deployments/scale", "UPDATE")],
            [f"policy 'limits' is about deployments/scale of apps, {NOT_SENT}"],
            id="subresource",
        ),
        pytest.param([rule("apps", "deployments")], [], id="sent"),
        pytest.param([rule("resource.k8s.io", "resourceclaims, deviceclasses", '"*"')], [], id="any-operation"),
        pytest.param([rule("*", "'*'", '"*"')], [PODS], id="everything"),
        pytest.param([rule("", "pods")], [PODS], id="pods"),
    ],
)
def test_a_policy_that_would_never_be_asked_is_named(rules: list[str], expected: list[str]) -> None:
    assert about(*rules) == expected
