"""Policies that change objects, and their cases."""

import dataclasses
from typing import Any

import pytest
import yaml

from kubecel_tests.evaluating import frozen_clock
from policies.files.cases import run_cases
from policies.judging.evaluate import TakesLongError, TimeLimit
from policies.judging.explain import explain
from policies.judging.mutations import Mutated, Mutating
from policies.judging.subjects import of_object
from policies.patching.json_patch import difference
from tests.policies.policy_files import POD, loaded, problems
from tests.support.mutating_policies import CASES, configuration, generated, json_patch, objects, policy
from tests.webhook.reviews.test_policed import NOW

LABEL = "[JSONPatch{op: 'add', path: '/metadata/labels/team', value: 'a'}]"


def mutating_text(fields: dict[str, Any], name: str = "change", *, binding: dict[str, Any] | None = None) -> str:
    made, bound = policy(name, fields)
    made["spec"]["matchConstraints"].pop("objectSelector", None)
    bound["spec"] |= binding or {}
    return yaml.safe_dump_all([made, bound])


def mutated(*texts: str, data: Any = POD, **context: Any) -> tuple[Any, list[Mutated]]:
    subject = dataclasses.replace(of_object(data, context.pop("namespace_object", None)), **context)
    mutating = Mutating(loaded(*texts).mutating, subject, frozen_clock)
    after = mutating.again(mutating.first(), changed=False)
    return after, mutating.results


def test_a_policy_changes_the_object_and_not_the_original() -> None:
    before = yaml.safe_dump(POD)
    after, (result,) = mutated(mutating_text(json_patch(LABEL)))
    assert difference(POD, after) == ({"op": "add", "path": "/metadata/labels/team", "value": "a"},)
    assert (result.outcome, yaml.safe_dump(POD)) == ("changed", before)


def test_policies_run_by_name_and_see_what_the_others_made() -> None:
    first = mutating_text(json_patch(LABEL), "a-first")
    copied = "[JSONPatch{op: 'add', path: '/metadata/labels/copy', value: object.metadata.labels.team}]"
    after, results = mutated(mutating_text(json_patch(copied), "b-second"), first)
    assert [each.rule.name for each in results] == ["a-first", "b-second"]
    assert after["metadata"]["labels"]["copy"] == "a"


def test_rules_and_selectors_match_the_object_as_it_was_sent() -> None:
    moved = mutating_text(json_patch("[JSONPatch{op: 'replace', path: '/metadata/labels/app', value: 'other'}]"), "a")
    selecting = yaml.safe_dump_all(
        [
            {**each, "spec": {**each["spec"], "matchConstraints": {**each["spec"]["matchConstraints"], "objectSelector": {"matchLabels": {"app": "train"}}}}}  # noqa: E501
            if each["kind"] == "MutatingAdmissionPolicy"
            else each
            for each in yaml.safe_load_all(mutating_text(json_patch(LABEL), "b"))
        ]
    )  # fmt: skip
    after, _ = mutated(moved, selecting)
    assert after["metadata"]["labels"] == {"app": "other", "team": "a"}


def test_a_policy_runs_once_for_each_binding_and_parameter_object() -> None:
    named = "[JSONPatch{op: 'add', path: '/metadata/labels/' + params.metadata.name, value: params.data.v}]"
    fields = json_patch(named, paramKind={"apiVersion": "v1", "kind": "ConfigMap"})
    ref = {"selector": {"matchLabels": {"for": "it"}}, "parameterNotFoundAction": "Deny"}
    maps = yaml.safe_dump_all(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": each, "namespace": "team-a", "labels": {"for": "it"}}, "data": {"v": each}}  # noqa: E501
        for each in ("one", "two")
    )  # fmt: skip
    after, results = mutated(mutating_text(fields, binding={"paramRef": ref}), maps)
    assert after["metadata"]["labels"] == {"app": "train", "one": "one", "two": "two"}
    assert [each.params and each.params["data"] for each in results] == [{"v": "one"}, {"v": "two"}]
    _, (missing,) = mutated(mutating_text(fields, binding={"paramRef": ref}))
    assert (missing.denies, str(missing.failures[0])[:38]) == (True, "failed to configure binding: no params")


@pytest.mark.parametrize(("failing", "denies"), [("Fail", True), ("Ignore", False)])
def test_a_failure_leaves_the_change_out_and_the_others_run(failing: str, denies: bool) -> None:
    fields = json_patch("[JSONPatch{op: 'remove', path: '/x'}]", LABEL, failurePolicy=failing)
    after, (result,) = mutated(mutating_text(fields))
    assert after["metadata"]["labels"]["team"] == "a"
    assert (result.outcome, result.denies) == ("failed", denies)
    assert str(result.failures[0]) == "mutations[0] (JSONPatch) failed: at '/x': there is no key 'x' to remove"


def test_an_object_that_is_none_of_its_kind_is_refused_whatever_the_failure_policy_says() -> None:
    fields = json_patch("[JSONPatch{op: 'add', path: '/spec/contaners', value: 'x'}]", failurePolicy="Ignore")
    _, (result,) = mutated(mutating_text(fields))
    assert result.denies
    assert "PodSpec has no field 'contaners'. Did you mean 'containers'?" in str(result.failures[0])
    _, (other,) = mutated(mutating_text(json_patch("[JSONPatch{op: 'replace', path: '/kind', value: 'Job'}]")))
    assert "a patch cannot change apiVersion and kind of the object" in str(other.failures[0])


def test_a_policy_that_asks_runs_again_and_others_do_not() -> None:
    counting = (
        "[JSONPatch{op: 'add', path: '/metadata/labels/%s', value: object.metadata.labels.?%s.orValue('') + 'i'}]"
    )
    once = mutating_text(json_patch(counting % ("once", "once")), "a")
    twice = mutating_text(json_patch(counting % ("twice", "twice"), reinvocationPolicy="IfNeeded"), "b")
    after, results = mutated(once, twice)
    assert after["metadata"]["labels"] == {"app": "train", "once": "i", "twice": "ii"}
    assert [each.again for each in results] == [False, False, True]


def test_without_a_patch_a_policy_runs_again_only_if_conversion_changed_the_object() -> None:
    fields = json_patch("[JSONPatch{op: 'remove', path: '/x'}]", failurePolicy="Ignore", reinvocationPolicy="IfNeeded")
    mutating = Mutating(loaded(mutating_text(fields)).mutating, of_object(POD), frozen_clock)
    data = mutating.first()
    mutating.again(data, changed=False)
    assert len(mutating.results) == 1
    mutating.again(data, changed=True)
    mutating.again(data, changed=True)
    assert [each.again for each in mutating.results] == [False, True], "a repetition forgets the one before it"


def test_a_claim_of_another_version_is_changed_in_the_version_of_the_policy() -> None:
    fields = configuration("Object{metadata: Object.metadata{labels: {'request': object.spec.devices.requests[0].exactly.deviceClassName}}}")  # fmt: skip # noqa: E501
    made = mutating_text(fields).replace("- configmaps", "- configmaps").replace("apiGroups:\n      - apps", "apiGroups:\n      - resource.k8s.io").replace("- deployments", "- resourceclaims")  # fmt: skip # noqa: E501
    claim = {"apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "n"}, "spec": {"devices": {"requests": [{"name": "n", "deviceClassName": "neuron.aws.com"}]}}}  # fmt: skip # noqa: E501
    after, _ = mutated(made, data=claim)
    assert after == {**claim, "metadata": {**claim["metadata"], "labels": {"request": "neuron.aws.com"}}}


def test_the_time_limit() -> None:
    rules = loaded(mutating_text(json_patch(LABEL))).mutating
    ticks = iter(range(1000))
    slow = Mutating(rules, of_object(POD), lambda: float(next(ticks)))
    with pytest.raises(TakesLongError):
        slow.first(TimeLimit(0.5, raises=True))
    slow.first(TimeLimit(0.5))
    assert "not evaluated: the policies before it used all the time" in str(slow.results[0].failures[0])


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("[JSONPatch{op: 'add', path: '/metadata/labels/x', value: quantity('1')}]", "a kubernetes.Quantity has no form in JSON"),  # noqa: E501
        ("[JSONPatch{op: 'add', path: '/metadata/labels/x', value: {1: 'a'}}]", "the key of a map in a patch must be text, and is a int"),  # noqa: E501
        ("[JSONPatch{op: 'add', path: '/spec/affinity', value: Object.spec{a: Object.x{}}}]", "type mismatch: Object.x{…} is the value of a field of type Object.spec.a"),  # noqa: E501
    ],
)  # fmt: skip
def test_values_without_json(expression: str, message: str) -> None:
    _, (result,) = mutated(mutating_text(json_patch(expression)))
    assert message in str(result.failures[0])


def test_values_that_double_are_bounded() -> None:
    declared = [{"name": "v0", "expression": "[1, 1, 1, 1]"}]
    declared += [
        {"name": f"v{at}", "expression": f"[{', '.join([f'variables.v{at - 1}'] * 4)}]"} for at in range(1, 30)
    ]
    fields = json_patch("[JSONPatch{op: 'add', path: '/spec/affinity', value: variables.v29}]", variables=declared)
    _, (result,) = mutated(mutating_text(fields))
    assert "the expression returned more than" in str(result.failures[0])


@pytest.mark.parametrize("case", [*CASES, *generated(40, 7)])
def test_no_policy_raises_and_the_difference_is_a_patch(case: str) -> None:
    fields = {**CASES, **generated(40, 7)}[case]
    for data in objects(case, "team-a").values():
        after, _ = mutated(yaml.safe_dump_all(policy(case, fields)), data=data)
        difference(data, after)


# --- files ----------------------------------------------------------------------------------------------------

CASE = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: MutatingPolicyTest
metadata: {name: change}
spec:
  policyName: change
  tests:
  - name: a label
    object: {apiVersion: v1, kind: Pod, metadata: {name: a, labels: {}}}
    expect: %s
    becomes: {metadata: {labels: {team: %s}}}
"""


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (CASE % ("Change", "a"), ""),
        (CASE % ("NoMatch", "a"), "expected NoMatch, came Change."),
        (CASE % ("Change", "b"), 'the object afterwards differs: metadata.labels.team is "a", expected "b".'),
        (CASE % ("Change", "{x: z}"), 'the object afterwards differs: metadata.labels.team is "a", expected {"x": "z"}.'),  # noqa: E501
        ((CASE % ("Change", "a")).replace("{team: a}", "{none: a}"), "the object afterwards differs: metadata.labels.none is missing."),  # noqa: E501
        ((CASE % ("Change", "a")).replace(", labels: {}", ""), "expected Change, came Deny. mutations[0] (JSONPatch) failed: "),  # noqa: E501
        ((CASE % ("Deny", "a")).replace(", labels: {}", "").replace("    becomes", "    message: other words\n    becomes"), "no message contains 'other words'; the messages are ["),  # noqa: E501
    ],
)  # fmt: skip
def test_cases_of_a_mutating_policy(case: str, said: str) -> None:
    found = problems(mutating_text(json_patch(LABEL)), case)
    assert bool(found) is bool(said)
    if said:
        # The policy is refused, which is in another file.
        assert found[0].startswith("0.yaml:1: 1.yaml:10: test 'a label' of change: ")
        assert said in found[0]


def test_a_case_has_the_object_before_and_after() -> None:
    (rule,) = loaded(mutating_text(json_patch(LABEL)), CASE % ("Change", "a")).mutating
    (result,) = run_cases(rule, frozen_clock)
    assert difference(result.before, result.after) == ({"op": "add", "path": "/metadata/labels/team", "value": "a"},)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("policyName: change", "policyName: chang"), "spec.policyName is 'chang', but no file has a policy of that name. Did you mean 'change'?"),  # noqa: E501
        (("reinvocationPolicy: Never", "reinvocationPolicy: Always"), "spec.reinvocationPolicy is 'Always': this must be one of Never, IfNeeded."),  # noqa: E501
        (("patchType: JSONPatch", "patchType: ApplyConfiguration"), "spec.mutations[0]: patchType ApplyConfiguration needs applyConfiguration"),  # noqa: E501
        (("    patchType: JSONPatch", "    applyConfiguration: {expression: 'Object{}'}\n    patchType: JSONPatch"), "spec.mutations[0]: patchType JSONPatch takes no applyConfiguration"),  # noqa: E501
        (("- CREATE", "- DELETE"), "a mutating policy has no DELETE: a deleted object cannot be changed."),
        (("JSONPatch{op: ''add''", "JSONPath{op: ''add''"), "there is no type 'JSONPath' of which an object can be made here: write a map."),  # noqa: E501
        (("''a''}]", "neuron.devices}]"), "the API server has no variable 'neuron'"),
        (("''a''}]", "params.x}]"), "'params' is not known, because spec.paramKind is missing"),
    ],
)  # fmt: skip
def test_what_the_api_server_refuses_is_refused(change: tuple[str, str], said: str) -> None:
    made = mutating_text(json_patch(LABEL))
    assert change[0] in made
    assert said in "\n".join(problems(made.replace(*change)))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (configuration("Object{spec: Object.spec{contaners: []}}"), "'PodSpec' has no field 'contaners'. Did you mean 'containers'? (v1 Pod)"),  # noqa: E501
        (configuration("Object{spec: Object.spec{containers: [Object.spec.containers{imag: 'x'}]}}"), "'Container' has no field 'imag'. Did you mean 'image'? (v1 Pod)"),  # noqa: E501
        (json_patch("[JSONPatch{op: 'add', path: '/spec/contaners/-', value: 1}]"), "'PodSpec' has no field 'contaners'. Did you mean 'containers'? (v1 Pod)"),  # noqa: E501
        (json_patch("[JSONPatch{op: 'add', path: '/metadata/labels/x', value: object.spec.nodName}]"), "'PodSpec' has no field 'nodName'. Did you mean 'nodeName'? (v1 Pod)"),  # noqa: E501
    ],
)  # fmt: skip
def test_fields_that_no_kind_has_are_noted(fields: dict[str, Any], said: str) -> None:
    made = mutating_text(fields).replace("      - services\n", "").replace("      - configmaps\n", "")
    made = made.replace("      - deployments\n", "      - nodes\n")
    (note,) = [each for each in loaded(made).notes if "Pod)" in each]
    assert note.endswith(said)


def test_explain_names_the_policy_and_its_operations() -> None:
    found = loaded(mutating_text(json_patch(LABEL)), mutating_text(configuration("Object{}"), "nothing"))
    lines = list(explain(found, of_object(POD), NOW, frozen_clock))
    assert lines == ["change: changes it", '    add /metadata/labels/team: "a"', "nothing: changes nothing"]
