"""Findings: every text has a length, every list an end, and what is left out is counted."""

import pytest

from neuron.findings import BOUNDS, Finding, Findings, did_you_mean, for_answer, quoted, warning


def many(count: int, *, error: bool = True) -> list[Finding]:
    make = Finding if error else warning
    return [make("NEU520", f"spec.a[{number}]", f"message {number}.") for number in range(count)]


def test_no_text_of_a_finding_is_longer_than_its_limit() -> None:
    finding = Finding("NEU520", "p" * 9000, "m" * 9000, "f" * 9000, "v" * 9000)
    lengths = (len(finding.path), len(finding.message), len(finding.fix), len(finding.value))
    assert lengths == (BOUNDS.path, BOUNDS.message, BOUNDS.fix, BOUNDS.quoted)
    assert finding.message.endswith("…")


@pytest.mark.parametrize(
    ("value", "said"),
    [("a", "'a'"), ("ä", "'\\xe4'"), (4, "4"), (10**5000, "a number of more than 1000 digits"), (None, "null")],
    ids=list("abcde"),
)
def test_values_are_quoted(value: object, said: str) -> None:
    assert quoted(value) == said


@pytest.mark.parametrize("value", ["a" * 10**6, "\ud800" * 10**6, ["a"] * 1000, {"a" * 1000: 1}], ids=list("abcd"))
def test_a_quote_is_never_long(value: object) -> None:
    assert len(quoted(value)) <= BOUNDS.quoted
    assert quoted(value).isascii() or "…" in quoted(value)


class TestCollected:
    def test_equal_findings_are_kept_once_in_order(self) -> None:
        assert list(Findings([*many(3), *many(2)])) == many(3)

    def test_findings_above_the_limit_are_counted(self) -> None:
        found = list(Findings(many(100), most=10))
        assert found[:10] == many(10)
        assert found[10].message == "and 90 more findings like this; correct those that are shown first."
        assert len(found) == 11

    def test_an_error_is_kept_beside_any_number_of_warnings(self) -> None:
        found = list(Findings([*many(1000, error=False), *many(1)], most=10))
        assert many(1)[0] in found

    def test_findings_are_added_under_another_path(self) -> None:
        findings = Findings(most=2)
        findings.add_at(many(3), "elsewhere")
        assert [each.path for each in findings] == ["elsewhere", "elsewhere", ""]


def test_an_answer_shows_a_limited_number_of_findings_and_counts_the_rest() -> None:
    assert for_answer(many(BOUNDS.shown)) == tuple(many(BOUNDS.shown))
    shown = for_answer(many(100))
    assert len(shown) == BOUNDS.shown
    assert shown[-1].message.startswith("and 37 more findings")


def test_suggestions_compare_only_likely_words_of_a_long_list() -> None:
    known = [f"class-{number:04}" for number in range(4000)]
    assert did_you_mean("neuron.aws.con", [*known, "neuron.aws.com"]) == " Did you mean 'neuron.aws.com'?"
    assert did_you_mean("", known) == did_you_mean("x" * 129, ["x" * 128]) == ""
