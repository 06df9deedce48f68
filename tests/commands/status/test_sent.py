"""`status` reports policies with Deny whose objects the webhook configuration does not send."""

import copy
from typing import Any

import pytest

from cluster.kinds.replicas import LONGEST_CONDITION, UnsentStatus
from commands.status.checks import judge
from commands.status.lines import CheckResult
from tests.support.installation import NOW, configuration, lease, well

VALIDATING = "ValidatingWebhookConfiguration"
PODS = "pods.validate.neuron.aws.com"
CONDITION = "object.spec.hostPID || object.spec.hostIPC"
OF_PODS = UnsentStatus(policy="privileged", resource="pods", operation="CREATE", condition=CONDITION)
OF_VOLUMES = UnsentStatus(policy="host-devices", resource="persistentvolumes", operation="CREATE")


def unsent_lines(*unsent: UnsentStatus, condition: str = "", rules: Any = None) -> list[tuple[str, str]]:
    made = copy.deepcopy(configuration(VALIDATING))
    pods = next(each for each in made["webhooks"] if each["name"] == PODS)
    if condition:
        claims = next(each for each in pods["matchConditions"] if each["name"] == "claims")
        claims["expression"] += f"\n|| (request.kind.kind == 'Pod' && ({condition}))"
    if rules:
        extra = {**pods, "name": "policies.validate.neuron.aws.com", "rules": rules}
        extra.pop("matchConditions")
        made["webhooks"].append(extra)
    replicas = tuple(lease(name, policies="ab", unsent=unsent) for name in ("p", "q"))
    lines = judge(well(validating=(made,), leases=replicas), NOW)
    return [(line.text, line.fix) for line in lines if line.check == "policies" and line.verdict is CheckResult.WRONG]


def test_each_unsent_request_is_reported_once_with_the_value_to_set() -> None:
    assert unsent_lines(OF_PODS, OF_VOLUMES) == [
        (
            "policy privileged has the action Deny for CREATE of pods without claims, which the webhook configuration"
            " does not send.",
            f"Add the condition to the chart's validation.podConditions: {CONDITION}",
        ),
        (
            "policy host-devices has the action Deny for CREATE of persistentvolumes, which the webhook configuration"
            " does not send.",
            "Add the rule to the chart's validation.extraRules: `neuron-dra policy rules` prints it.",
        ),
    ]


@pytest.mark.parametrize("condition", [CONDITION, CONDITION.replace(" ", "\n  "), "true"])
def test_no_pods_are_reported_with_the_condition_of_the_chart(condition: str) -> None:
    assert unsent_lines(OF_PODS, condition=condition) == []


@pytest.mark.parametrize("condition", [f"{CONDITION} && false", "object.spec.hostPID", "!(true && false)"])
def test_pods_are_reported_with_another_condition(condition: str) -> None:
    assert len(unsent_lines(OF_PODS, condition=condition)) == 1


def test_a_long_condition_is_compared_by_its_beginning() -> None:
    cut = UnsentStatus(policy="p", resource="pods", operation="CREATE", condition="x" * LONGEST_CONDITION)
    assert unsent_lines(cut, condition="x" * 2000) == []
    assert len(unsent_lines(cut, condition="x" * 1000)) == 1


def test_no_pods_are_reported_with_a_rule_without_conditions() -> None:
    def rule(resource: str) -> dict[str, Any]:
        return {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource]}

    assert unsent_lines(OF_PODS, OF_VOLUMES, rules=[rule("pods"), rule("persistentvolumes")]) == []
    assert len(unsent_lines(OF_VOLUMES, rules=[rule("persistentvolumeclaims")])) == 1
