"""A run ends with what it skipped, by reason."""

import pytest

from tests.support import skips


def skipped(reason: str, line: int) -> pytest.TestReport:
    where = ("test_a.py", line, f"Skipped: {reason}")
    return pytest.TestReport(f"test_a.py::test_{line}", ("test_a.py", line, ""), {}, "skipped", where, "call")


def test_skips_are_counted_by_reason() -> None:
    reports = [skipped("no kubectl here", 1), skipped("no browser", 2), skipped("no browser", 3)]
    assert skips.by_reason(reports) == ["    2 no browser", "    1 no kubectl here"]


def test_an_expected_failure_is_not_a_skip() -> None:
    report = pytest.TestReport("test_a.py::test_a", ("test_a.py", 1, ""), {}, "skipped", "not yet", "call")
    assert skips.by_reason([report]) == []
