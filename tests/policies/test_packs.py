"""The shipped packs only audit, pass their embedded cases, and are documented."""

from pathlib import Path

import pytest

import policies
from kubecel.budget import POLICY_LIMITS
from kubecel_tests.evaluating import frozen_clock
from policies.files.cases import run_cases, subject_of
from policies.files.loader import load_folder
from policies.judging.evaluate import evaluate
from policies.judging.rules import ValidatingRule

FOLDER = Path(policies.__file__).parent / "packs"
PACKS = load_folder(FOLDER, run_tests=False).validating
DOCS = (Path(__file__).parents[2] / "docs/policies.md").read_text()


def test_every_file_is_one_policy_of_its_name() -> None:
    assert sorted(rule.name for rule in PACKS) == sorted(path.stem for path in FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("rule", PACKS, ids=lambda rule: rule.name)
class TestPack:
    def test_a_pack_has_the_action_audit_only(self, rule: ValidatingRule) -> None:
        assert [binding.actions for binding in rule.bindings] == [("Audit",)]

    def test_the_cases_of_a_pack_pass_and_include_a_violation(self, rule: ValidatingRule) -> None:
        assert {"Audit"} < {case.expect for case in rule.tests}
        assert [result.failure for result in run_cases(rule, frozen_clock)] == [None] * len(rule.tests)

    def test_a_pack_is_documented(self, rule: ValidatingRule) -> None:
        assert f"`{rule.name}`" in DOCS

    def test_a_pack_has_no_evaluation_errors_on_its_cases(self, rule: ValidatingRule) -> None:
        for case in rule.tests:
            verdicts = evaluate((rule,), subject_of(case), case.at, frozen_clock, POLICY_LIMITS)
            assert [verdict.errors for verdict in verdicts] == [()]
