"""Which policies on pods need pods that the shipped configuration does not send, and the conditions that send them."""

import pytest

from policies.judging.coverage import EVERY_POD, Unsent, pod_conditions, unsent_by_deny
from tests.policies.policy_files import loaded, policy

CLAIMS = "size(object.spec.?resourceClaims.orValue([])) > 0"


def conditions(spec: str) -> list[str]:
    return [each.expression for each in pod_conditions(loaded(policy(spec)).validating)]


def with_condition(expression: str) -> str:
    return (
        f"matchConditions: [{{name: a, expression: {expression!r}}}]\n"
        "validations: [{expression: 'object.metadata.name == \"x\"'}]"
    )


@pytest.mark.parametrize(
    "expression",
    [
        "neuron.devices > 0",
        "neuron.devices > 0 || neuron.cores > 0 || !neuron.devicesKnown",
        "0 < neuron.cores && object.spec.hostPID",
        "neuron.converted",
        "size(neuron.classes) > 0",
        "neuron.requests.size() != 0",
        "neuron.requests.exists(r, r.amount > 0)",
        '!neuron.classes.all(c, c == "x")',
        "size(neuron.requests.filter(r, r.init)) > 0",
        '"x" in neuron.classes',
        CLAIMS,
        "object.spec.?resourceClaims.orValue([]).exists(c, true)",
        "object.spec.?resourceClaims.hasValue()",
        "has(object.spec.resourceClaims)",
        'object.kind != "Pod"',
        'request.operation == "UPDATE"',
        "neuron.devicesKnown ? neuron.devices > 3 : true",
    ],
)
def test_policies_about_neuron_pods_need_no_others(expression: str) -> None:
    assert conditions(with_condition(expression)) == []


@pytest.mark.parametrize(
    ("expression", "needed"),
    [
        ("object.spec.hostPID", "object.spec.hostPID"),
        ("object.spec.hostPID  ||  false", "object.spec.hostPID || false"),
        ("neuron.devices >= 0", EVERY_POD),
        ("neuron.devices > 0 || object.spec.hostPID", EVERY_POD),
        ("!(neuron.devices > 0)", EVERY_POD),
        (f"{CLAIMS} || object.spec.hostPID", f"{CLAIMS} || object.spec.hostPID"),
        ("size(neuron.lncs) > 0", EVERY_POD),
        ('neuron.classes.all(c, c == "x")', EVERY_POD),
        ('namespaceObject.metadata.name == "x"', EVERY_POD),
        ("params.?x.orValue(1) == 1", EVERY_POD),
        ("true", EVERY_POD),
        ("object.spec.resourceClaims.size() > 0", "object.spec.resourceClaims.size() > 0"),
        ("[1].exists(neuron, neuron > 0)", EVERY_POD),
    ],
)
def test_other_policies_need_the_pods_of_their_conditions(expression: str, needed: str) -> None:
    assert conditions(with_condition(expression)) == [needed]


def test_several_conditions_are_one() -> None:
    spec = (
        "matchConditions: [{name: a, expression: object.spec.hostPID},"
        " {name: b, expression: 'params.?x.orValue(1) == 1'},"
        " {name: c, expression: 'request.namespace == \"y\"'}]\n"
        "validations: [{expression: 'object.metadata.name == \"x\"'}]"
    )
    assert conditions(spec) == ['(object.spec.hostPID) && (request.namespace == "y")']


@pytest.mark.parametrize(
    ("validations", "needed"),
    [
        ("[{expression: 'neuron.devices <= 4'}]", []),
        ("[{expression: 'neuron.devices == 0 && neuron.cores == 0'}, {expression: neuron.devicesKnown}]", []),
        ("[{expression: 'neuron.devices <= 4'}, {expression: '!object.spec.hostPID'}]", [EVERY_POD]),
        ("[{expression: 'neuron.devices > 0'}]", [EVERY_POD]),
    ],
)
def test_a_policy_that_other_pods_cannot_violate_needs_no_other_pods(validations: str, needed: list[str]) -> None:
    assert conditions(f"validations: {validations}") == needed


@pytest.mark.parametrize(("value", "needed"), [("neuron.devices > 0", []), ("object.spec.hostPID", [EVERY_POD])])
def test_variables_are_followed(value: str, needed: list[str]) -> None:
    spec = f"variables: [{{name: uses, expression: '{value}'}}]\nvalidations: [{{expression: '!variables.uses'}}]"
    assert conditions(spec) == needed


@pytest.mark.parametrize(("value", "needed"), [("neuron.devices > 0", []), ("object.spec.hostPID", [EVERY_POD])])
def test_variables_that_read_variables_take_little_time(value: str, needed: list[str]) -> None:
    """Each variable reads the one before it many times; it is evaluated once if it is known, and else within limits."""
    lines = [f"{{name: v0, expression: '{value}'}}"]
    lines += [f"{{name: v{n}, expression: '{' || '.join([f'variables.v{n - 1}'] * 20)}'}}" for n in range(1, 40)]
    spec = f"variables: [{', '.join(lines)}]\nvalidations: [{{expression: '!variables.v39'}}]"
    assert conditions(spec) == needed


def test_only_policies_with_deny_are_reported_to_status() -> None:
    text = policy("validations: [{expression: 'object.metadata.name == \"x\"'}]")
    text = text.replace("resources: [pods]", "resources: [pods, services]").replace("[CREATE]", "[UPDATE, CREATE]")
    assert list(unsent_by_deny(loaded(text).validating)) == [
        Unsent("limits", "", "pods", "UPDATE"),
        Unsent("limits", "", "services", "CREATE"),
        Unsent("limits", "", "services", "UPDATE"),
        Unsent("limits", "", "pods", "CREATE", EVERY_POD),
    ]
    audited = text.rstrip() + "\n  validationActions: [Audit]\n"
    assert list(unsent_by_deny(loaded(audited).validating)) == []


@pytest.mark.parametrize(("params", "needed"), [("{most: 4}", []), ("{most: -1}", [EVERY_POD])])
def test_inline_params_are_known(params: str, needed: list[str]) -> None:
    assert conditions(f"params: {params}\nvalidations: [{{expression: neuron.devices <= params.most}}]") == needed
