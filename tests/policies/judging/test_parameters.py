"""Parameter objects of ValidatingAdmissionPolicies, which are files beside the policies."""

import copy
import datetime as dt
from typing import Any

import pytest

from kubecel_tests.evaluating import frozen_clock
from policies.judging.evaluate import evaluate
from policies.judging.explain import explain
from policies.judging.export import to_vap
from policies.judging.matching import NO_PARAMS
from policies.judging.subjects import of_object
from policies.judging.verdicts import PolicyOutcome, Verdict
from tests.policies.files.test_loader import PARAM_BINDING, PARAMETER, PARAMETERIZED
from tests.policies.policy_files import POD, loaded

NOW = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)
SELECTED = PARAM_BINDING.replace("name: limits, p", "selector: {matchLabels: {team: a}}, p")
OTHER = PARAMETER.replace("limits", "more").replace("name: train", "name: other")
ELSEWHERE = PARAMETER.replace("team-a", "team-b")


def judged_with_parameters(*texts: str, pod: dict[str, Any] = POD) -> list[Verdict]:
    return list(evaluate(loaded(PARAMETERIZED, *texts).validating, of_object(pod), NOW, frozen_clock))


def messages(verdicts: list[Verdict]) -> list[tuple[str, list[str]]]:
    return [(each.outcome.value, [violation.message for violation in each.violations]) for each in verdicts]


def in_namespace(namespace: str) -> dict[str, Any]:
    pod = copy.deepcopy(POD)
    pod["metadata"]["namespace"] = namespace
    return pod


def test_the_object_of_the_requests_namespace_is_the_value_of_params() -> None:
    assert messages(judged_with_parameters(PARAM_BINDING, PARAMETER)) == [("deny", ["not train"])]


@pytest.mark.parametrize("action", ["Deny", "Allow"])
def test_a_missing_parameter_object_follows_parameter_not_found_action(action: str) -> None:
    binding = PARAM_BINDING.replace("Action: Deny", f"Action: {action}")
    found = messages(judged_with_parameters(binding, PARAMETER, pod=in_namespace("team-b")))
    assert found == ([("deny", [NO_PARAMS])] if action == "Deny" else [])


def test_a_reference_may_name_a_namespace() -> None:
    binding = PARAM_BINDING.replace("name: limits, p", "name: limits, namespace: team-b, p")
    assert messages(judged_with_parameters(binding, PARAMETER, ELSEWHERE)) == [("deny", ["not train"])]
    assert messages(judged_with_parameters(binding.replace("team-b", "team-c"), PARAMETER)) == [("deny", [NO_PARAMS])]


def test_an_object_without_namespace_is_for_all_namespaces() -> None:
    cluster_scoped = PARAMETER.replace(", namespace: team-a", "")
    assert messages(judged_with_parameters(PARAM_BINDING, cluster_scoped, pod=in_namespace("x"))) == [
        ("deny", ["not train"])
    ]
    in_default = PARAM_BINDING.replace("name: limits, p", "name: limits, namespace: default, p")
    assert messages(judged_with_parameters(in_default, cluster_scoped)) == [("deny", ["not train"])]


def test_a_selector_selects_several_objects_and_each_is_evaluated() -> None:
    assert messages(judged_with_parameters(SELECTED, PARAMETER, OTHER, ELSEWHERE)) == [
        ("deny", ["not train"]),
        ("allow", []),
    ]


def test_bindings_with_and_without_parameters_are_evaluated_apart() -> None:
    plain = PARAM_BINDING.replace("bound", "plain").replace(
        ", paramRef: {name: limits, parameterNotFoundAction: Deny}", ""
    )
    found = judged_with_parameters(PARAM_BINDING, plain.replace("[Deny]", "[Warn]"), PARAMETER)
    assert [each.outcome for each in found] == [PolicyOutcome.WARN, PolicyOutcome.DENY]
    assert "no such key" in found[0].violations[0].message


def test_explain_lists_the_verdict_for_each_parameter_object() -> None:
    lines = list(explain(loaded(PARAMETERIZED, SELECTED, PARAMETER, OTHER), of_object(POD), NOW, frozen_clock))
    assert lines == [
        "replicas with ConfigMap 'limits': denies it",
        "    not train",
        "replicas with ConfigMap 'more': allows it",
    ]


def test_parameters_are_exported_unchanged() -> None:
    (rule,) = loaded(PARAMETERIZED, PARAM_BINDING, PARAMETER).validating
    policy, binding = to_vap(rule)
    assert policy["spec"]["paramKind"] == {"apiVersion": "v1", "kind": "ConfigMap"}
    assert binding["spec"]["paramRef"] == {"name": "limits", "parameterNotFoundAction": "Deny"}
