"""Text of lines for different terminals."""

import json

import pytest

from commands.present import listed
from commands.status.lines import CheckResult, StatusLine, as_json, as_text
from runtime.console import Style, displayed

LINES = (
    StatusLine("webhooks", CheckResult.WELL, "all there."),
    StatusLine("webhooks", CheckResult.NOTE, "failurePolicy is Ignore."),
    StatusLine("nodes", CheckResult.WRONG, "no driver.", "Install it."),
    StatusLine("policies", CheckResult.UNKNOWN, "you are not allowed to list leases."),
)


def text(
    lines: tuple[StatusLine, ...] = LINES, encoding: str = "utf-8", colour: bool = False, width: int | None = None
) -> str:
    return as_text("neuron-dra of https://c", lines, Style(encoding, colour, width))


def test_lines_of_one_check_stand_together_and_the_last_line_sums_up() -> None:
    assert text() == (
        "neuron-dra of https://c\n"
        "✓ webhooks  all there.\n"
        "!           failurePolicy is Ignore.\n"
        "✗ nodes     no driver.\n"
        "            -> Install it.\n"
        "? policies  you are not allowed to list leases.\n"
        "1 wrong, 1 to note, 1 unknown.\n"
    )


def test_a_terminal_without_the_marks_gets_ascii() -> None:
    shown = text(encoding="ascii")
    assert shown.isascii()
    assert [line[0] for line in shown.splitlines()[1:4]] == ["+", "!", "x"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_a_name_from_the_cluster_does_not_control_the_terminal(encoding: str) -> None:
    shown = text((StatusLine("nodes", CheckResult.WRONG, "node \x1b[31m\u202e日本\n."),), encoding)
    shown.encode(encoding)
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == 3


def test_colour_is_around_the_mark_alone() -> None:
    assert "\x1b[31m✗\x1b[0m nodes     no driver." in displayed(text(colour=True))


def test_long_lines_are_broken_under_their_own_column() -> None:
    shown = text((StatusLine("nodes", CheckResult.NOTE, "word " * 30),), width=60).splitlines()[1:-1]
    assert len(shown) > 2
    assert all(len(line) <= 60 for line in shown)
    assert all(line.startswith(" " * 9) for line in shown[1:])


@pytest.mark.parametrize(
    ("lines", "last"),
    [
        pytest.param(LINES[:1], "All is well.", id="well"),
        pytest.param(LINES[:2], "All is well, 1 to note.", id="a note"),
        pytest.param(LINES[:3], "1 wrong, 1 to note.", id="wrong"),
        pytest.param(LINES[3:], "Nothing wrong was seen, 1 unknown.", id="unknown"),
    ],
)
def test_the_verdict_is_the_last_line(lines: tuple[StatusLine, ...], last: str) -> None:
    assert text(lines).splitlines()[-1] == last


def test_json_output_has_all_checks() -> None:
    document = json.loads(as_json("https://c", "neuron-dra", LINES))
    assert (document["cluster"], document["verdict"]) == ("https://c", "wrong")
    assert document["checks"][2] == {
        "check": "nodes",
        "verdict": "wrong",
        "text": "no driver.",
        "fix": "Install it.",
    }


def test_the_first_names_of_a_long_list_are_shown() -> None:
    assert listed(f"n{number}" for number in range(7)) == "n0, n1, n2, n3, n4 and 2 more"
