"""Findings cut to the length that the API asks of warnings."""

from hypothesis import given, settings
from hypothesis import strategies as st

from neuron.findings import Finding, warning
from webhook.edge.reviews import warnings
from webhook.reviews.reviewer import fitting

WORDS = st.lists(
    st.text(st.characters(codec="ascii", categories=("L", "N", "P")), min_size=1, max_size=20), max_size=60
)


def lines(finding: Finding) -> list[str]:
    return [line for part in fitting(finding) for line in warnings(part)]


def test_a_short_finding_is_not_cut() -> None:
    finding = warning("NEU702", "spec", "no container refers to the claim.", "Refer to it.")
    assert fitting(finding) == (finding,)


def test_a_long_finding_is_cut_between_sentences() -> None:
    first, second = "A" + "a" * 70 + ".", "B" + "b" * 70 + "?"
    assert lines(warning("NEU702", "spec", f"{first} {second}", "Mend it.")) == [
        f"NEU702: {first}",
        f"NEU702: {second} Mend it.",
    ]


def test_a_long_sentence_is_cut_between_words() -> None:
    assert lines(warning("NEU702", "spec", " ".join(["word"] * 40))) == [
        "NEU702: " + " ".join(["word"] * 22),
        "NEU702: " + " ".join(["word"] * 18),
    ]


@settings(deadline=None)
@given(WORDS, WORDS)
def test_no_line_is_too_long_and_no_word_is_lost(message: list[str], fix: list[str]) -> None:
    found = lines(warning("NEU702", "spec", " ".join(message), " ".join(fix)))
    assert all(len(line) <= 120 for line in found)
    assert " ".join(line.removeprefix("NEU702:").strip() for line in found).split() == [*message, *fix]
