"""`status` lists the templates of ClaimTemplates, and those whose pods are not sent."""

import copy

import pytest

from commands.status.checks import judge
from commands.status.lines import CheckResult
from tests.support.installation import NOW, configuration, lease, well


def template_lines(*templates: str, condition: str = "") -> list[tuple[CheckResult, str]]:
    made = copy.deepcopy(configuration("MutatingWebhookConfiguration"))
    for each in made["webhooks"][0]["matchConditions"]:
        each["expression"] += condition
    replicas = tuple(lease(name, policies="ab", templates=templates) for name in ("p", "q"))
    lines = judge(well(mutating=(made,), leases=replicas), NOW)
    return [(line.verdict, line.text) for line in lines if line.check == "policies" and "templates" in line.text]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        pytest.param(
            "|| c in ['l-trn2', 'xl-trn2']", (CheckResult.WELL, "named templates: l-trn2=1, xl-trn2=2."), id="sent"
        ),
        pytest.param(
            "|| c in ['l-trn2', 'xxl-trn2']",
            (
                CheckResult.WRONG,
                "pods that name the templates xl-trn2 of ClaimTemplates are not sent: nobody makes them.",
            ),
            id="one is not",
        ),
    ],
)
def test_the_templates_are_listed_once(condition: str, expected: tuple[CheckResult, str]) -> None:
    assert template_lines("xl-trn2=2", "l-trn2=1", condition=condition) == [expected]


def test_without_templates_nothing_is_said() -> None:
    assert template_lines() == []
