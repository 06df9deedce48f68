"""Every finding's code is explained, used and exercised."""

import re
from pathlib import Path

import pytest

from neuron.findings import CODES

ROOT = Path(__file__).parents[2]
PACKAGES = ("neuron", "webhook", "commands", "policies", "kubeletplugin", "certs", "runtime")
CODE = re.compile(r"NEU[0-9]{3}")
PAGE = (ROOT / "docs" / "errors.md").read_text()
SECTIONS = {section.partition("\n")[0]: section for section in re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]}


def codes_in(*roots: Path) -> set[str]:
    """Codes in Python files and golden cases, but for the list of codes itself and this file."""
    apart = {ROOT / "neuron" / "findings.py", Path(__file__)}
    files = [
        path for root in roots for suffix in ("*.py", "*.json") for path in root.rglob(suffix) if path not in apart
    ]
    return {code for path in files for code in CODE.findall(path.read_text())}


USED = codes_in(*(ROOT / package for package in PACKAGES))
EXERCISED = codes_in(ROOT / "tests")


def test_every_code_has_a_section_and_every_section_a_code() -> None:
    assert sorted(SECTIONS) == sorted(CODES)


def test_sections_are_unique_and_in_the_order_of_codes() -> None:
    headings = re.findall(r"^### (NEU[0-9]{3})$", PAGE, flags=re.MULTILINE)
    assert headings == sorted(set(headings))


@pytest.mark.parametrize("code", CODES)
def test_the_section_of_a_code_has_cause_reason_fix_and_example(code: str) -> None:
    section = SECTIONS[code]
    assert f"**{CODES[code]}.**" in section
    for part in ("- What: ", "- Why: ", "- Fix: "):
        assert len(section.partition(part)[2].partition("\n")[0]) > 10
    assert re.search(rf"```text\n{code}: .+\n```", section)


@pytest.mark.parametrize("code", CODES)
def test_every_code_is_used_in_the_program(code: str) -> None:
    assert code in USED


@pytest.mark.parametrize("code", CODES)
def test_every_code_is_exercised_by_a_test(code: str) -> None:
    assert code in EXERCISED


def test_the_program_uses_no_undocumented_code() -> None:
    assert not USED - set(CODES)
