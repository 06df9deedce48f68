"""Explanations of verdicts."""

import datetime as dt

import pytest

from kubecel_tests.evaluating import frozen_clock
from policies.judging.explain import explain
from policies.judging.subjects import of_object
from tests.policies.policy_files import POD, loaded, policy
from tests.policies.schema.test_kinds import CONVERSION

NOW = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)
EXCEPTION = (
    "exceptions: [{name: old, owner: ml, reason: r, expires: '%s', matchConditions: [{name: a, expression: 'true'}]}]"
)
STOP = "validations: [{expression: 'false', message: stop}]"


@pytest.mark.parametrize(
    ("texts", "lines"),
    [
        pytest.param([policy("validations: [{expression: 'true'}]")], ["limits: allows it"], id="allows"),
        pytest.param([policy(STOP)], ["limits: denies it", "    stop"], id="denies"),
        pytest.param([policy(f"{STOP}\nvalidationActions: [Warn]")], ["limits: warns of it", "    stop"], id="warns"),
        pytest.param(
            [policy(f"{STOP}\nvalidationActions: [Audit]")],
            ["limits: notes it in the audit log", "    stop"],
            id="audits",
        ),
        pytest.param(
            [policy(f"{STOP}\n{EXCEPTION % '2026-06-01'}")],
            [
                "limits: is violated, and an exception admits it",
                "    stop",
                "    exception 'old' of ml until 2026-06-01 23:59:59+00:00",
            ],
            id="excepted",
        ),
        pytest.param(
            [policy(f"{STOP}\n{EXCEPTION % '2026-05-31'}")],
            ["limits: denies it", "    stop", "    exception 'old' of ml ended 2026-05-31 23:59:59+00:00"],
            id="no-longer-excepted",
        ),
        pytest.param(
            [policy(f"{STOP}\nmatchConditions: [{{name: many, expression: neuron.devices > 8}}]")],
            ["limits: does not match: condition 'many' is false: neuron.devices > 8"],
            id="condition",
        ),
        pytest.param(
            [policy(STOP).replace("matchConstraints:", "matchConstraints:\n    objectSelector: {matchLabels: {a: b}}")],
            ["limits: does not match: its selectors, or those of its bindings, select something else"],
            id="selector",
        ),
        pytest.param([policy(STOP).replace("pods", "services")], ["limits: is not about CREATE of pods"], id="kind"),
        pytest.param(
            [
                policy(
                    "validations: [{expression: 'true'}]\nvariables: [{name: a, expression: '[1]'}, "
                    "{name: b, expression: object.none}, {name: c, expression: quantity('1Gi')}]"
                )
            ],
            [
                "limits: allows it",
                "    variables.a = [1]",
                "    variables.b = error: no such key: 'none' (line 1, column 8)",
                "    variables.c = a kubernetes.Quantity",
            ],
            id="variables",
        ),
        pytest.param(
            [
                CONVERSION,
                CONVERSION.replace("team-a}", "later}").replace("order: 10", "order: 20"),
                CONVERSION.replace("team-a}", "other}").replace("[team-a]", "[x]").replace("order: 10", "order: 5"),
                CONVERSION.replace("team-a}", "never}")
                .replace("{namespaces: [team-a]}", "{conditions: [{name: a, expression: 'false'}]}")
                .replace("order: 10", "order: 6"),
            ],
            [
                "other: sets nothing: its namespaces or selectors select something else",
                "never: sets nothing: condition 'a' is false: false",
                "team-a: sets mode, families, logicalNeuronCore",
                "later: sets nothing: earlier policies do",
            ],
            id="conversion",
        ),
    ],
)
def test_explain_lists_verdicts_and_messages(texts: list[str], lines: list[str]) -> None:
    assert list(explain(loaded(*texts), of_object(POD), NOW, frozen_clock)) == lines
