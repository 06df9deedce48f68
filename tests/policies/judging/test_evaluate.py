"""Verdicts of policies on requests."""

import copy
import dataclasses
import datetime as dt
import gc
import itertools
import time
from typing import Any

import pytest

from kubecel.budget import Limits
from kubecel_tests.evaluating import frozen_clock
from neuron.api.fields import namespace_named
from policies.judging import evaluate as evaluating
from policies.judging.evaluate import TakesLongError, TimeLimit, UndecidedError, evaluate, matching_rules, unjudged
from policies.judging.subjects import RequestSubject, of_object
from policies.judging.verdicts import PolicyOutcome, Verdict
from policies.schema.base import MatchResources
from tests.policies.files.test_loader import BINDING, VAP
from tests.policies.policy_files import POD, loaded, policy
from tests.policies.schema.test_kinds import CONVERSION

NOW = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)


def first_match(rules: Any, *parts: Any) -> tuple[Any, list[Any]]:
    """The first policy that matches a pod, and the failures of earlier ones."""
    subject, clock, *limit = parts
    errors: list[Any] = []
    return next(matching_rules(rules, subject, clock, errors, *limit), None), errors


def judged(spec: str, subject: RequestSubject | None = None, limits: Limits = evaluating.POLICY_LIMITS) -> Verdict:
    """The verdict of one policy on the pod of these tests."""
    (verdict,) = evaluate(loaded(policy(spec)).validating, subject or of_object(POD), NOW, frozen_clock, limits)
    return verdict


def messages(verdict: Verdict) -> list[str]:
    return [violation.message for violation in verdict.violations]


# --- outcomes -------------------------------------------------------------------------------------------------


OUTCOMES: dict[str, PolicyOutcome] = {
    "validations: [{expression: 'true'}]": PolicyOutcome.ALLOW,
    "validations: [{expression: 'false'}]": PolicyOutcome.DENY,
    "validations: [{expression: 'false'}]\nvalidationActions: [Warn]": PolicyOutcome.WARN,
    "validations: [{expression: 'false'}]\nvalidationActions: [Audit]": PolicyOutcome.AUDIT,
    "validations: [{expression: 'false'}]\nvalidationActions: [Audit, Warn]": PolicyOutcome.WARN,
    "validations: [{expression: 'false'}]\nmatchConditions: [{name: a, expression: 'false'}]": PolicyOutcome.NO_MATCH,
    "validations: [{expression: 'object.spec.none'}]\nfailurePolicy: Ignore": PolicyOutcome.ALLOW,
    "validations: [{expression: 'object.spec.none'}]": PolicyOutcome.DENY,
    "validations: [{expression: 'true'}]\n"
    "matchConditions: [{name: a, expression: 'object.spec.none'}, {name: b, expression: 'false'}]": (
        PolicyOutcome.NO_MATCH
    ),
    "validations: [{expression: 'true'}]\nmatchConditions: [{name: a, expression: 'object.spec.none'}]": (
        PolicyOutcome.DENY
    ),
    "validations: [{expression: 'false'}]\nfailurePolicy: Ignore\n"
    "matchConditions: [{name: a, expression: 'object.spec.none'}]": PolicyOutcome.ALLOW,
}


@pytest.mark.parametrize(("spec", "outcome"), OUTCOMES.items(), ids=OUTCOMES)
def test_outcome(spec: str, outcome: PolicyOutcome) -> None:
    assert judged(spec).outcome is outcome


MESSAGES: dict[str, str] = {
    "expression: ' 1 > 2 '": "failed expression: 1 > 2",
    "expression: 'false', message: too many": "too many",
    """expression: 'false', message: a, messageExpression: "'has ' + string(neuron.devices)" """: "has 4",
    "expression: 'false', message: a, messageExpression: '\" \"'": "a",
    "expression: 'false', message: a, messageExpression: \"'x\\\\ny'\"": "a",
    "expression: 'false', message: a, messageExpression: object.x": "a",
    "expression: 'object.spec.none == 1'": (
        "expression 'object.spec.none == 1' resulted in error: no such key: 'none' (line 1, column 13)"
    ),
}


@pytest.mark.parametrize(("validation", "message"), MESSAGES.items(), ids=MESSAGES)
def test_message(validation: str, message: str) -> None:
    assert messages(judged(f"validations: [{{{validation}}}]")) == [message]


def test_every_violation_has_its_message_and_reason() -> None:
    verdict = judged(
        "validations: [{expression: 'false', message: a, reason: Forbidden}, {expression: 'false', message: b}]"
    )
    assert [(each.message, each.reason) for each in verdict.violations] == [("a", "Forbidden"), ("b", "Invalid")]


# --- values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expression",
    [
        "object.metadata.name == 'train'",
        "oldObject == null",
        "request.operation == 'CREATE' && request.namespace == 'team-a' && request.kind.kind == 'Pod'",
        "request.resource.resource == 'pods' && request.userInfo.username == '' && !request.dryRun",
        "namespaceObject.metadata.labels['kubernetes.io/metadata.name'] == 'team-a'",
        "params.most == 8",
        "neuron.devices == 4 && neuron.cores == 0 && neuron.lnc == 0 && !neuron.converted",
        "neuron.requests[0].container == 'main' && neuron.requests[0].amount == 4",
        "claim == null && template == null",
        "variables.double == 2 * variables.devices",
    ],
)
def test_the_variables_of_expressions(expression: str) -> None:
    spec = f"""
    params: {{most: 8}}
    variables: [{{name: devices, expression: neuron.devices}}, {{name: double, expression: variables.devices * 2}}]
    validations: [{{expression: "{expression}"}}]
    """
    assert judged(spec).outcome is PolicyOutcome.ALLOW


def test_variables_are_evaluated_once_and_only_if_they_are_read() -> None:
    spec = """
    variables: [{name: bad, expression: object.none.none}]
    validations: [{expression: "true || variables.bad"}]
    """
    assert judged(spec).errors == ()
    reads = itertools.count()

    class Spied(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            if key == "metadata":
                next(reads)
            return super().__getitem__(key)

    spec = """
    variables: [{name: name, expression: object.metadata.name}]
    validations: [{expression: "variables.name == 'train' && variables.name != ''"}]
    """
    subject = of_object(POD)
    judged(spec, RequestSubject("CREATE", "", "v1", "Pod", "pods", Spied(POD), namespace=subject.namespace))
    # Once for the variable, and once for what neuron.* needs.
    assert next(reads) <= 2


@pytest.mark.parametrize(("number", "label", "times"), [(3, "train", 1), (3, "other", 0), (0, "train", 0)])
def test_the_activation_is_built_once_and_only_if_a_policy_matches(
    monkeypatch: pytest.MonkeyPatch, number: int, label: str, times: int
) -> None:
    made = itertools.count()
    activation = RequestSubject.activation

    def counted(self: RequestSubject, *given: Any) -> dict[str, Any]:
        next(made)
        return activation(self, *given)

    monkeypatch.setattr(RequestSubject, "activation", counted)
    spec = "validations: [{expression: object.metadata.name == 'train'}]"
    selector = f"matchConstraints:\n    objectSelector: {{matchLabels: {{app: {label}}}}}"
    texts = [policy(spec, f"p-{at}").replace("matchConstraints:", selector) for at in range(number)]
    assert len(evaluate(loaded(*texts).validating, of_object(POD), NOW, frozen_clock)) == number
    assert next(made) == times


def pod_with_limits(
    containers: dict[str, dict[str, str]], init: dict[str, dict[str, str]] | None = None, **metadata: Any
) -> dict[str, Any]:
    sections = {"containers": containers, "initContainers": init or {}}
    spec = {
        section: [{"name": name, "resources": {"limits": limits}} for name, limits in entries.items()]
        for section, entries in sections.items()
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


DEVICES = {"aws.amazon.com/neuron": "4"}
CORES = {"aws.amazon.com/neuroncore": "2"}
CLAIM = {
    "devices": {
        "requests": [
            {"name": "a", "exactly": {"deviceClassName": "neuron.aws.com", "count": 4}},
            {"name": "b", "firstAvailable": [{"name": "x", "deviceClassName": "neuron.aws.com"}]},
            {"name": "c", "exactly": {"deviceClassName": "gpu.example.com"}},
        ],
        "config": [{"opaque": {"driver": "neuron.aws.com", "parameters": {"logicalNeuronCore": 1}}}],
    }
}


@pytest.mark.parametrize(
    ("data", "devices", "cores", "lnc", "converted"),
    [
        pytest.param(pod_with_limits({"a": DEVICES, "b": DEVICES}), 8, 0, 0, False, id="sum"),
        pytest.param(pod_with_limits({"a": CORES}), 1, 2, 0, False, id="cores"),
        pytest.param(pod_with_limits({"a": {}}, {"i": DEVICES}), 4, 0, 0, False, id="init"),
        pytest.param(pod_with_limits({"a": DEVICES}, {"i": DEVICES}), 4, 0, 0, False, id="init-hands-over"),
        pytest.param(
            pod_with_limits(
                {"a": {}},
                labels={"neuron.aws.com/converted": "true"},
                annotations={
                    "neuron.aws.com/converted-from": '{"containers": {"a": {"aws.amazon.com/neuron": "16"}}}',
                    "neuron.aws.com/logical-neuron-core": "2",
                },
            ),
            0,
            0,
            2,
            False,
            id="record-that-is-not-verified",
        ),
        pytest.param(
            pod_with_limits({"a": DEVICES}, annotations={"neuron.aws.com/converted-from": "["}),
            4,
            0,
            0,
            False,
            id="bad-record",
        ),
        pytest.param({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": 3}}, 0, 0, 0, False, id="malformed"),
        pytest.param(
            {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": CLAIM}, 5, 0, 1, False, id="claim"
        ),
        pytest.param(
            {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "spec": {"spec": CLAIM}},
            5,
            0,
            1,
            False,
            id="template",
        ),
    ],
)
def test_neuron_values(data: dict[str, Any], devices: int, cores: int, lnc: int, *, converted: bool) -> None:
    neuron = of_object(data).activation({})["neuron"]
    found = (neuron["devices"], neuron["cores"], neuron["lnc"], neuron["converted"])
    assert found == (devices, cores, lnc, converted)


def test_a_deleted_object_is_evaluated_as_old_object() -> None:
    subject = of_object(POD, operation="DELETE")
    assert (subject.object, subject.old_object, subject.name) == (None, POD, "train")


# --- exceptions -----------------------------------------------------------------------------------------------

EXCEPTION = """
validations: [{{expression: 'false', message: refused}}]
exceptions:
- {{name: old, owner: team-a, reason: migration, expires: {expires},
   matchConditions: [{{name: a, expression: "{when}"}}]}}
"""


def test_an_exception_admits_until_the_end_of_its_day() -> None:
    rules = loaded(policy(EXCEPTION.format(expires="2026-06-01", when="request.namespace == 'team-a'"))).validating
    evening = dt.datetime(2026, 6, 1, 23, 59, 59, tzinfo=dt.UTC)
    (before,) = evaluate(rules, of_object(POD), evening, frozen_clock)
    (after,) = evaluate(rules, of_object(POD), evening + dt.timedelta(seconds=1), frozen_clock)
    assert (before.outcome, before.exemption and before.exemption.owner) == (PolicyOutcome.EXCEPT, "team-a")
    assert messages(before) == ["refused"]
    assert (after.outcome, after.exemption, after.expired and after.expired.name) == (PolicyOutcome.DENY, None, "old")


@pytest.mark.parametrize("when", ["false", "object.spec.none == 1"], ids=["other", "error"])
def test_an_exception_that_does_not_match_or_fails_has_no_effect(when: str) -> None:
    verdict = judged(EXCEPTION.format(expires="2999-01-01", when=when))
    assert verdict.outcome is PolicyOutcome.DENY
    assert verdict.expired is None


# --- audit annotations ------------------------------------------------------------------------------------------


def test_audit_annotations_are_strings_or_left_out() -> None:
    verdict = judged(
        """
        auditAnnotations:
        - {key: name, valueExpression: string(object.metadata.name)}
        - {key: none, valueExpression: 'null'}
        - {key: blank, valueExpression: '" "'}
        """
    )
    assert verdict.audit == {"name": "train"}
    assert messages(verdict) == []


# --- bindings ---------------------------------------------------------------------------------------------------


def test_bindings_choose_namespaces_and_actions() -> None:
    selector = "matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: team-b}}}"
    other = BINDING.replace("bound", "b").replace("[Warn]", f"[Deny], {selector}")
    rules = loaded(VAP, BINDING, other).validating

    def outcome(namespace: str) -> PolicyOutcome:
        data = {**POD, "metadata": {"name": "bad", "namespace": namespace}}
        (verdict,) = evaluate(rules, of_object(data), NOW, frozen_clock)
        return verdict.outcome

    assert (outcome("team-a"), outcome("team-b")) == (PolicyOutcome.WARN, PolicyOutcome.DENY)


def test_a_policy_about_other_resources_has_no_verdict() -> None:
    subject = of_object({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}})
    assert evaluate(loaded(VAP).validating, subject, NOW, frozen_clock) == ()


# --- bounds -----------------------------------------------------------------------------------------------------

RUNAWAY = "validations: [{expression: '[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, [1,2].all(c, c > 0)))'}]"


@pytest.mark.parametrize(("policy_word", "outcome"), [("Fail", PolicyOutcome.DENY), ("Ignore", PolicyOutcome.ALLOW)])
def test_a_runaway_expression_follows_the_failure_policy(policy_word: str, outcome: PolicyOutcome) -> None:
    verdict = judged(f"{RUNAWAY}\nfailurePolicy: {policy_word}", limits=Limits(steps=100))
    assert verdict.outcome is outcome
    assert "evaluation needs more than 100 steps" in str(verdict.errors[0])


def test_policies_after_the_time_limit_follow_their_failure_policy() -> None:
    texts = [policy("validations: [{expression: 'true'}]", name) for name in ("a", "b")]
    ticks = itertools.count(0, 1.0)
    first, second = evaluate(loaded(*texts).validating, of_object(POD), NOW, lambda: next(ticks), Limits(seconds=9))
    assert first.outcome is PolicyOutcome.ALLOW
    assert messages(second) == ["not evaluated: the policies before it used all the time of one request"]


# --- policies on pods -------------------------------------------------------------------------------------------


def _conversion(order: int, match: str) -> str:
    text = CONVERSION.replace("order: 10", f"order: {order}").replace("team-a}", f"p{order}}}")
    return text.replace("{namespaces: [team-a]}", match)


@pytest.mark.parametrize(
    ("matches", "chosen"),
    [
        pytest.param(["{}", "{}"], "p0", id="first"),
        pytest.param(["{namespaces: [other]}", "{}"], "p1", id="namespace"),
        pytest.param(["{objectSelector: {matchLabels: {app: other}}}", "{}"], "p1", id="object"),
        pytest.param(["{namespaceSelector: {matchLabels: {a: b}}}", "{}"], "p1", id="namespace-selector"),
        pytest.param(["{conditions: [{name: a, expression: neuron.devices > 4}]}", "{}"], "p1", id="condition"),
        pytest.param(["{conditions: [{name: a, expression: neuron.devices == 4}]}", "{}"], "p0", id="holds"),
        pytest.param(["{namespaces: [other]}"], None, id="none"),
    ],
)
def test_the_first_policy_that_matches_wins(matches: list[str], chosen: str | None) -> None:
    texts = [_conversion(order, match) for order, match in enumerate(matches)]
    found, errors = first_match(loaded(*texts).conversions, of_object(POD), frozen_clock)
    assert (found.name if found else None, errors) == (chosen, [])


@pytest.mark.parametrize(
    ("more", "refuses"),
    [
        ("locked: true", True),
        ("locked: true\n  failurePolicy: Ignore", False),
        ("failurePolicy: Fail", True),
        ("failurePolicy: Ignore", False),
    ],
)
def test_a_policy_that_fails_closed_denies_if_it_cannot_be_evaluated(more: str, *, refuses: bool) -> None:
    text = _conversion(0, "{conditions: [{name: a, expression: object.metadata.name == 'x'}]}")
    rules = loaded(f"{text.rstrip()}\n  {more}\n").conversions
    made = of_object({**POD, "metadata": {"generateName": "train-"}})
    if refuses:
        with pytest.raises(UndecidedError, match=r"^match condition 'a' failed: no such key: 'name'") as caught:
            first_match(rules, made, time.monotonic)
        assert caught.value.rule.name == "p0"
    else:
        assert first_match(rules, made, time.monotonic)[0] is None


def test_a_time_out_denies_if_a_policy_fails_closed() -> None:
    text = _conversion(0, "{conditions: [{name: a, expression: 'object.spec.containers.all(c, true)'}]}")
    rules = loaded(f"{text.rstrip()}\n  failurePolicy: Fail\n").conversions
    many = of_object({**POD, "spec": {"containers": [{"name": "a"}] * 2000}})
    ticks = itertools.count(0.0, 1.0)
    with pytest.raises(UndecidedError, match="match condition 'a' failed: evaluation takes longer"):
        first_match(rules, many, lambda: next(ticks))
    with pytest.raises(TakesLongError):
        first_match(rules, many, lambda: next(ticks), TimeLimit(0.02, raises=True))


def test_a_policy_whose_condition_fails_does_not_match_and_reports_it() -> None:
    text = _conversion(0, "{conditions: [{name: a, expression: object.spec.none}]}")
    found, errors = first_match(loaded(text).conversions, of_object(POD), frozen_clock)
    assert found is None
    assert tuple(map(str, errors)) == ("p0: match condition 'a' failed: no such key: 'none' (line 1, column 13)",)


def test_an_evaluation_leaves_nothing_for_the_garbage_collection() -> None:
    spec = """
    params: {most: 2}
    matchConditions: [{name: named, expression: has(object.metadata.name)}]
    variables: [{name: name, expression: object.metadata.name}, {name: long, expression: variables.name.size() > 1}]
    validations: [{expression: variables.long && params.most > 2, messageExpression: "variables.name + ' fails'"}]
    """
    rules, subject = loaded(policy(spec)).validating, of_object(POD)
    assert [messages(each) for each in evaluate(rules, subject, NOW, frozen_clock)] == [["train fails"]]
    gc.collect()
    gc.disable()
    try:
        evaluate(rules, subject, NOW, frozen_clock)
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_evaluating_does_not_change_the_object() -> None:
    data = pod_with_limits({"a": DEVICES})
    before = copy.deepcopy(data)
    judged("validations: [{expression: 'object.spec.containers.all(c, c.name.size() > 0)'}]", of_object(data))
    assert data == before


# --- time -------------------------------------------------------------------------------------------------------


def test_a_time_limit_that_raises_ends_the_evaluation() -> None:
    rules = loaded(policy("validations: [{expression: 'object.spec.containers.all(c, true)'}]")).validating
    many = of_object({**POD, "spec": {"containers": [{"name": "a"}] * 2000}})
    ticks = itertools.count(0.0, 0.015)
    with pytest.raises(TakesLongError):
        evaluate(rules, many, NOW, lambda: next(ticks), time_limit=TimeLimit(0.02, raises=True))
    (verdict,) = evaluate(rules, many, NOW, lambda: 0.0, time_limit=TimeLimit(0.02))
    assert verdict.outcome is PolicyOutcome.ALLOW


def test_counting_devices_ends_with_the_time_limit() -> None:
    kind = "device.attributes['neuron.aws.com'].resourceType != 'neuron_node' && 'evaluate' != ''"
    request = {"deviceClassName": "neuron.aws.com", "selectors": [{"cel": {"expression": kind}}]}
    metadata = {"name": "c", "namespace": "default"}
    spec = {"devices": {"requests": [{"name": "r", "exactly": request}]}}
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}
    (rule,) = loaded(policy("validations: [{expression: 'neuron.devicesKnown'}]")).validating
    rule = dataclasses.replace(rule, match=MatchResources())
    ticks = itertools.chain([0.0] * 2, itertools.repeat(0.01))
    with pytest.raises(TakesLongError):
        evaluate((rule,), of_object(claim), NOW, lambda: next(ticks), time_limit=TimeLimit(0.005, raises=True))
    (verdict,) = evaluate((rule,), of_object(claim), NOW, frozen_clock)
    assert verdict.outcome is PolicyOutcome.ALLOW


@pytest.mark.parametrize(
    ("spec", "outcome"),
    [
        ("", PolicyOutcome.DENY),
        ("failurePolicy: Ignore", PolicyOutcome.ALLOW),
        ("validationActions: [Warn]", PolicyOutcome.WARN),
    ],
)
def test_policies_that_were_not_evaluated_follow_their_failure_policy(spec: str, outcome: PolicyOutcome) -> None:
    text = policy(f"validations: [{{expression: 'true'}}]\n{spec}")
    bare = RequestSubject("CREATE", "", "v1", "Pod", "pods", None, namespace="team-a")
    (verdict,) = unjudged(loaded(text).validating, bare, "not evaluated: late", NOW, frozen_clock)
    assert (verdict.outcome, verdict.unfinished) == (outcome, "not evaluated: late")
    elsewhere = text.replace("    resourceRules", "    namespaceSelector: {matchLabels: {a: b}}\n    resourceRules")
    known = dataclasses.replace(bare, namespace_object=namespace_named("team-a"))
    assert unjudged(loaded(elsewhere).validating, known, "late", NOW, frozen_clock) == ()


def test_an_error_that_quotes_a_tenant_is_cut() -> None:
    data = {**POD, "metadata": {"name": "x" * 100_000, "namespace": "team-a"}}
    verdict = judged("validations: [{expression: 'int(object.metadata.name) > 1'}]", of_object(data))
    assert max(map(len, (*messages(verdict), *map(str, verdict.errors)))) < 600


def test_an_unknown_namespace_has_only_its_name() -> None:
    assert of_object(POD).namespace_object == namespace_named("team-a")
