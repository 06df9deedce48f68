"""SchedulingHintPolicy: errors on load, embedded cases, and explanations."""

import datetime as dt

import jsonschema
import pytest
import yaml

from kubecel_tests.evaluating import frozen_clock
from policies.judging.explain import explain
from policies.judging.subjects import of_object
from policies.schema.kinds import SchedulingHintPolicy, json_schema
from tests.policies.policy_files import POD, loaded, problems

HINTS = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: SchedulingHintPolicy
metadata: {name: lease}
spec:
  order: 10
"""
EVERYTHING = """
  match: {namespaces: [default], conditions: [{name: small, expression: neuron.devices <= 8}]}
  tolerations: {action: Add, items: [{key: lease, operator: Equal, value: ml, effect: NoSchedule}]}
  nodeAffinity:
    action: Replace
    required: [{key: pool, operator: In, values: [neuron]}]
    preferred: [{weight: 5, preference: {matchExpressions: [{key: zone, operator: Exists}]}}]
  schedulerName: {action: Replace, name: kueue}
  priorityClassName: {action: Replace, name: urgent}
  labels: {action: Replace, items: {team: ml}}
  leaderWorkerSet: {exclusiveTopology: Off}
"""


def hints(spec: str = EVERYTHING, name: str = "lease", order: int = 10) -> str:
    head = HINTS.replace("name: lease", f"name: {name}").replace("order: 10", f"order: {order}")
    return head + "".join(
        f"  {line.strip()}\n" if not line.startswith("  ") else f"{line}\n" for line in spec.split("\n")
    )


def tolerations(item: str) -> str:
    return f"tolerations: {{action: Add, items: [{item}]}}"


def required(item: str) -> str:
    return f"nodeAffinity: {{action: Add, required: [{item}]}}"


WRONG: dict[str, str] = {
    tolerations("{key: a, operator: Exist}"): (
        "spec.tolerations.items[0].operator is 'Exist': this must be one of Exists, Equal. Did you mean 'Exists'?"
    ),
    tolerations("{key: a, operator: Exists, efect: NoSchedule}"): (
        "spec.tolerations.items[0].efect: unknown field. Did you mean 'effect'?"
    ),
    tolerations("{key: a, effect: NoScheduling}"): (
        "spec.tolerations.items[0].effect is 'NoScheduling': this must be one of NoSchedule, PreferNoSchedule, "
        "NoExecute. Did you mean 'NoSchedule'?"
    ),
    tolerations("{value: a}"): (
        "spec.tolerations.items[0]: without a key, which tolerates every taint, the operator must be Exists."
    ),
    tolerations("{key: a, operator: Exists, value: b}"): (
        "spec.tolerations.items[0]: value is 'b': with operator Exists it must be empty."
    ),
    tolerations("{key: a, operator: Exists, effect: NoSchedule, tolerationSeconds: 5}"): (
        "spec.tolerations.items[0]: tolerationSeconds needs effect: NoExecute."
    ),
    tolerations("{key: 'a b', operator: Exists}"): (
        "spec.tolerations.items[0].key is 'a b': this must be a label key: at most 63 letters, digits, '-', '_' or "
        "'.', after an optional DNS name and '/'."
    ),
    tolerations("{key: A/b, operator: Exists}"): (
        "spec.tolerations.items[0].key is 'A/b': the prefix before the '/' of a label key must be a DNS name in "
        "lower case."
    ),
    tolerations("{key: a, value: -b}"): (
        "spec.tolerations.items[0].value is '-b': this must be a label value: at most 63 letters, digits, '-', '_' "
        "or '.', none of these at an end."
    ),
    tolerations("{key: a, operator: Exists}, {key: a, operator: Exists}"): (
        "spec.tolerations: the same entry is in items twice: {'key': 'a', 'operator': 'Exists'}."
    ),
    "tolerations: {action: Off, items: [{key: a, operator: Exists}]}": "spec.tolerations: action Off takes no items.",
    "tolerations: {action: Replace}": "spec.tolerations: action Replace needs items; to have none, write action: Off.",
    "tolerations: {action: Append}": "spec.tolerations.action is 'Append': this must be one of Add, Replace, Off.",
    "tolerations: {}": "spec.tolerations.action: the field is missing.",
    required("{key: a, operator: in, values: [b]}"): (
        "spec.nodeAffinity.required[0].operator is 'in': this must be one of In, NotIn, Exists, DoesNotExist, Gt, Lt."
    ),
    required("{key: a, operator: NotIn}"): "spec.nodeAffinity.required[0]: operator NotIn needs values.",
    required("{key: a, operator: Exists, values: [b]}"): (
        "spec.nodeAffinity.required[0]: operator Exists takes no values."
    ),
    required("{key: a, operator: Gt, values: ['1', '2']}"): (
        "spec.nodeAffinity.required[0]: operator Gt needs exactly one value, a whole number in quotes."
    ),
    required("{key: a, operator: Lt, values: [b]}"): (
        "spec.nodeAffinity.required[0]: operator Lt needs exactly one value, a whole number in quotes."
    ),
    "nodeAffinity: {action: Off, preferred: [{weight: 1, preference: {matchExpressions: [{key: a, operator: "
    "Exists}]}}]}": "spec.nodeAffinity: action Off takes no required or preferred.",
    "nodeAffinity: {action: Add, preferred: [{weight: 101, preference: {matchExpressions: [{key: a, operator: "
    "Exists}]}}]}": "spec.nodeAffinity.preferred[0].weight is 101: input should be less than or equal to 100.",
    "nodeAffinity: {action: Add, preferred: [{weight: 1, preference: {matchExpressions: []}}]}": (
        "spec.nodeAffinity.preferred[0].preference.matchExpressions: this must not be empty."
    ),
    "schedulerName: {action: Replace}": "spec.schedulerName: action Replace needs a name.",
    "priorityClassName: {action: Off, name: a}": (
        "spec.priorityClassName.action is 'Off': this must be one of Add, Replace."
    ),
    "priorityClassName: {action: Add}": "spec.priorityClassName.name: the field is missing.",
    "schedulerName: {action: Off, name: a}": "spec.schedulerName: action Off takes no name.",
    "schedulerName: {action: Replace, name: my-scheduler}": (
        "spec.schedulerName: name is 'my-scheduler', which does not support Dynamic Resource Allocation."
    ),
    "labels: {action: Off, items: {a: b}}": "spec.labels.action is 'Off': this must be one of Add, Replace.",
    "labels: {action: Add, items: {}}": "spec.labels.items: this must not be empty.",
    "labels: {action: Add, items: {'a b': c}}": (
        "spec.labels.items.a b is 'a b': this must be a label key: at most 63 letters, digits, '-', '_' or '.', "
        "after an optional DNS name and '/'."
    ),
    "labels: {action: Add, items: {a: 'b c'}}": (
        "spec.labels.items.a is 'b c': this must be a label value: at most 63 letters, digits, '-', '_' or '.', "
        "none of these at an end."
    ),
    "labels: {action: Replace, items: {pod-template-hash: x}}": (
        "spec.labels.items.pod-template-hash is 'pod-template-hash': a controller of Kubernetes finds its pods by "
        "this label; another value breaks it."
    ),
    "labels: {action: Add, items: {neuron.aws.com/converted: 'true'}}": (
        "spec.labels.items.neuron.aws.com/converted is 'neuron.aws.com/converted': conversion itself sets the "
        "labels of neuron.aws.com/."
    ),
    "leaderWorkerSet: {exclusiveTopology: Never}": (
        "spec.leaderWorkerSet.exclusiveTopology is 'Never': this must be one of On, Off."
    ),
}


@pytest.mark.parametrize(("spec", "message"), WRONG.items(), ids=WRONG)
def test_an_error_has_file_and_line(spec: str, message: str) -> None:
    assert problems(hints(spec)) == [f"0.yaml:7: {message}"]


def test_a_policy_without_hints_is_rejected() -> None:
    message = "0.yaml:5: spec sets no hint: the policy would do nothing."
    assert problems(HINTS + "  match: {namespaces: [a]}") == [message]


def test_orders_are_unique_among_policies_of_the_kind() -> None:
    conversion = HINTS.replace("SchedulingHintPolicy", "ConversionPolicy")
    assert problems(conversion, hints()) == []
    assert problems(hints(), hints(name="other")) == [
        "1.yaml:6: spec.order 10 is also the order of 'lease'; the order must be unique."
    ]


def test_unconnected_is_refused_if_all_families_are_rings() -> None:
    conversion = HINTS.replace("SchedulingHintPolicy", "ConversionPolicy") + "  unconnected: Allow\n  families: "
    assert problems(conversion + "[inf1, inf2]") == [
        "0.yaml:7: spec.unconnected is for Trn; inf1, inf2 are rings or chains, which always get consecutive devices."
    ]
    assert problems(conversion + "[inf2, trn2]") == []


def test_efa_is_refused_for_families_without_interfaces_and_for_the_neuron_class() -> None:
    conversion = HINTS.replace("SchedulingHintPolicy", "ConversionPolicy")
    assert problems(conversion + "  efa: {}\n  families: [inf1, inf2]") == [
        "0.yaml:7: spec.efa needs device groups with EFA interfaces; instance types of inf1, inf2 have none."
    ]
    assert problems(conversion + "  efa: {deviceClass: neuron.aws.com}") == [
        "0.yaml:7: spec.efa.deviceClass is neuron.aws.com, which has Neuron devices and no EFA interfaces."
    ]
    assert problems(conversion + "  efa: {deviceClass: net.example}\n  families: [inf2, trn2]") == []


def test_the_set_knows_whether_any_policy_allows_unconnected_devices() -> None:
    conversion = HINTS.replace("SchedulingHintPolicy", "ConversionPolicy")
    assert not loaded(conversion).unconnected
    assert loaded(conversion + "  unconnected: Allow").unconnected


def test_the_json_schema_accepts_the_files_that_the_loader_accepts() -> None:
    data = yaml.safe_load(hints().replace("Off}", "'Off'}"))
    validator = jsonschema.Draft202012Validator(json_schema(SchedulingHintPolicy))
    assert list(validator.iter_errors(data)) == []
    data["spec"]["tolerations"]["action"] = "Append"
    assert len(list(validator.iter_errors(data))) == 1


# --- cases ----------------------------------------------------------------------------------------------------

LEASE = "{key: lease, operator: Equal, value: ml, effect: NoSchedule}"
BUILT_IN = "{key: aws.amazon.com/neuron, operator: Exists, effect: NoSchedule}"


def case(gets: str, pod: str = "", expect: str = "Match") -> str:
    body = f"{{apiVersion: v1, kind: Pod, metadata: {{namespace: default}}, spec: {{{pod}}}}}"
    return hints() + f"  tests:\n  - {{name: one, object: {body}, expect: {expect}, gets: {gets}}}\n"


@pytest.mark.parametrize(
    ("gets", "pod"),
    [
        pytest.param("{}", "", id="nothing-looked-at"),
        pytest.param(f"{{tolerations: [{BUILT_IN}, {LEASE}]}}", "", id="tolerations"),
        pytest.param("{tolerations: []}", "tolerations: [{operator: Exists}]", id="tolerated-already"),
        pytest.param("{schedulerName: kueue, labels: {team: ml}}", "schedulerName: my-scheduler", id="scheduler"),
        pytest.param("{priorityClassName: urgent}", "priorityClassName: low", id="priority"),
        pytest.param("{schedulerName: volcano}", "schedulerName: volcano", id="own-scheduler"),
        pytest.param("{required: [{key: pool, operator: In, values: [neuron]}]}", "", id="affinity"),
        pytest.param("{tolerations: []}", "tolerations: [{operator: Exists}, 5], affinity: 5", id="pod-of-nonsense"),
    ],
)
def test_a_case_with_expected_hints_passes(gets: str, pod: str) -> None:
    assert problems(case(gets, pod)) == []


FAILING: dict[str, str] = {
    'expected labels {"team": "other"}, came {"team": "ml"}.': case("{labels: {team: other}}"),
    'expected priorityClassName "low", came "urgent".': case("{priorityClassName: low}"),
    'expected schedulerName "default-scheduler", came "kueue".': case("{schedulerName: default-scheduler}"),
    'expected required [], came [{"key": "pool", "operator": "In", "values": ["neuron"]}].': case("{required: []}"),
    "expected NoMatch, came Match.": case("{}", expect="NoMatch"),
}


@pytest.mark.parametrize(("message", "text"), FAILING.items(), ids=FAILING)
def test_a_failing_case_refuses_the_set(text: str, message: str) -> None:
    (found,) = problems(text)
    assert found.endswith(f": test 'one' of lease: {message}")


# --- explain --------------------------------------------------------------------------------------------------

IN_DEFAULT = POD | {"metadata": {"name": "train", "namespace": "default"}}
NOW = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)


def test_explain_lists_the_hints_of_the_first_match() -> None:
    texts = [
        hints(),
        hints("labels: {action: Add, items: {a: b}}", "later", 20),
        hints("match: {namespaces: [other]}\nlabels: {action: Add, items: {a: b}}", "elsewhere", 5),
    ]
    assert list(explain(loaded(*texts), of_object(IN_DEFAULT), NOW, frozen_clock)) == [
        "elsewhere: gives no scheduling hints: its namespaces or selectors select something else",
        "lease: gives scheduling hints",
        '    tolerations: that of the Neuron taint, {"key": "lease", "operator": "Equal", "value": "ml", '
        '"effect": "NoSchedule"}',
        '    required node affinity: {"key": "pool", "operator": "In", "values": ["neuron"]}',
        '    preferred node affinity: [{"weight": 5, "preference": {"matchExpressions": [{"key": "zone", "operator": '
        '"Exists"}]}}]',
        "    scheduler name: kueue",
        "    priority class, instead of the pod's own: urgent",
        '    labels, before the pod\'s own: {"team": "ml"}',
        "    exclusive topology of LeaderWorkerSets: off",
        "later: gives no scheduling hints: an earlier policy does",
    ]


def test_explain_shows_hints_that_are_off_as_none() -> None:
    off = "tolerations: {action: Off}\nnodeAffinity: {action: Off}\nschedulerName: {action: Off}"
    assert list(explain(loaded(hints(off)), of_object(POD), NOW, frozen_clock)) == [
        "lease: gives scheduling hints",
        "    tolerations: none",
        "    required node affinity: none",
        "    scheduler name: as the pod sets it",
    ]
