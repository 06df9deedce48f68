"""Findings of `validate` as text: each fact once."""

from commands.present import Located
from commands.present.text import MOST_PLACES, findings
from neuron.findings import Finding, warning
from runtime.console import Style, displayed

WARNED = warning("NEU216", "spec", "nothing is known.", "Name the families.")
REFUSED = Finding("NEU105", "spec.containers[0]", "seven.", "Take eight.")


def located(finding: Finding, name: str = "a", line: int = 3) -> Located:
    return Located(f"{name}.yaml", line, f"Pod {name}", finding)


def shown(*found: Located, style: Style = Style()) -> str:
    return displayed("".join(findings(found, style)))


def test_a_finding_about_one_place_begins_with_the_place() -> None:
    assert shown(located(REFUSED)) == (
        "a.yaml:3: error NEU105 Pod a: spec.containers[0]\n    seven.\n    Fix: Take eight.\n"
    )


def test_a_fact_about_several_places_is_told_once() -> None:
    assert shown(located(WARNED), located(REFUSED), located(WARNED, "b", 9)) == (
        "warning NEU216 at 2 places\n    nothing is known.\n    Fix: Name the families.\n"
        "    a.yaml:3: Pod a: spec\n    b.yaml:9: Pod b: spec\n"
        "a.yaml:3: error NEU105 Pod a: spec.containers[0]\n    seven.\n    Fix: Take eight.\n"
    )


def test_the_places_of_a_fact_are_bounded() -> None:
    lines = shown(*(located(WARNED, f"p{at}") for at in range(MOST_PLACES + 1003))).splitlines()
    assert len(lines) == 3 + MOST_PLACES + 1
    assert lines[-1] == "    and 1,003 more: -o json lists all"


def test_lines_are_at_most_as_wide_as_the_terminal() -> None:
    long = warning("NEU216", "spec.template.spec." + "x" * 25, "nothing is known of this pod. " * 4, "Name them. " * 9)
    for found in ([located(long)], [located(long), located(long, "b")]):
        lines = shown(*found, style=Style(width=60)).splitlines()
        assert max(map(len, lines)) <= 60
        assert any(line.strip().startswith("Pod a: spec.template") for line in lines)


def test_severities_have_colours_on_a_terminal() -> None:
    text = shown(located(WARNED), located(REFUSED), style=Style(colour=True))
    assert "\x1b[1;33mwarning NEU216\x1b[0m" in text
    assert "\x1b[1;31merror NEU105\x1b[0m" in text
