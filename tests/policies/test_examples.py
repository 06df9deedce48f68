"""The policy files in deploy/policy-examples: each loads, and its cases pass and show what it does."""

from pathlib import Path

import pytest
import yaml

from kubecel_tests.evaluating import frozen_clock
from policies.files.cases import AnyRule, run_cases
from policies.files.loader import load_folder
from policies.judging.rules import MutatingRule, ValidatingRule

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/policy-examples"
FOUND = load_folder(FOLDER, run_tests=False)
VERBATIM = {"owner"}
"""Policies of the API server's kind for validation, which has no cases."""


def test_there_are_sixteen_and_the_book_says_so() -> None:
    assert (FOUND.files, len(FOUND.rules)) == (16, 26)
    assert "sixteen more files" in (FOLDER.parents[1] / "docs/policies.md").read_text()
    assert FOUND.notes == ()


@pytest.mark.parametrize("rule", FOUND.rules, ids=lambda rule: rule.name)
def test_the_cases_pass_and_show_both_sides(rule: AnyRule) -> None:
    results = list(run_cases(rule, frozen_clock))
    assert [each.failure for each in results] == [None] * len(results)
    expected: set[str]
    if isinstance(rule, ValidatingRule):
        expected = {case.expect for case in rule.tests}
        assert rule.name in VERBATIM or ("Deny" in expected and expected & {"Allow", "NoMatch", "Except"})
    elif isinstance(rule, MutatingRule):
        expected = {each.case.expect for each in rule.tests}
        assert expected == {"Change", "NoMatch"}
    else:
        expected = {case.expect for case in rule.spec.tests}
        assert expected == {"Match", "NoMatch"}


def test_the_named_templates_are_those_of_the_documents_word_for_word() -> None:
    beta = ROOT / "tests/support/source_examples/beta.yaml"
    written = [each for each in yaml.safe_load_all(beta.read_text()) if each["kind"] == "ResourceClaimTemplate"]
    shipped = {each.spec.template.metadata.name: each.document.data["spec"]["template"] for each in FOUND.templates}
    assert {each["metadata"]["name"]: each for each in written}.items() <= shipped.items()
