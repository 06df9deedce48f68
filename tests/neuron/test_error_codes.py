"""Every finding's code is explained, used and exercised, and its example is what the program prints."""

import ast
import re
from pathlib import Path

from neuron.codes import CODES, FindingCode
from tests.support.packages import PACKAGES

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"NEU[0-9]{3}")
APART = {ROOT / "neuron" / "codes.py", Path(__file__)}
WORD = re.compile(r"(?<![^ (])[a-z]+(?=[ ,:;.]*(?: |$))")
OF_POLICIES = {"NEU801", "NEU802", "NEU805"}
"""The message is that of the policy."""


def codes_in(*roots: Path) -> set[str]:
    """Codes in Python files and golden cases, but for the list of codes itself and this file."""
    files = [
        path for root in roots for suffix in ("*.py", "*.json") for path in root.rglob(suffix) if path not in APART
    ]
    return {code for path in files for code in CODE.findall(path.read_text())}


def texts_in(*roots: Path) -> set[str]:
    """Texts of some words in the program; of those with values, the parts between the values."""
    files = [path for root in roots for path in root.rglob("*.py") if path not in APART]
    nodes = (node for path in files for node in ast.walk(ast.parse(path.read_bytes())))
    texts = (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return {text for text in texts if " " in text}


def test_codes_are_in_order_and_have_distinct_titles() -> None:
    assert list(CODES) == sorted(CODES)
    assert len({about.title for about in CODES.values()}) == len(CODES)


def test_a_code_is_explained_by_sentences() -> None:
    found = {code: about for code, about in CODES.items() if not explained(about)}
    assert found == {}


def explained(about: FindingCode) -> bool:
    title = len(about.title) > 15 and not about.title.endswith(".")
    return title and about.why.endswith((".", ")")) and bool(re.fullmatch(r"([A-Z`\[].*\.)?", about.fix))


def test_the_example_of_a_code_is_made_of_texts_of_the_program() -> None:
    """Values and single words apart: an example that the program no longer prints has other texts."""
    # Long ones first: a short one may be part of them; those of one length in the order of the alphabet.
    texts = sorted(texts_in(*(ROOT / package for package in PACKAGES)), key=lambda text: (-len(text), text))
    found = {}
    for code in CODES.keys() - OF_POLICIES:
        rest = example = CODES[code].message
        for text in texts:
            rest = rest.replace(text, " ")
        if len(WORD.findall(rest)) > len(WORD.findall(example)) / 2:
            found[code] = rest
    assert found == {}


def test_the_program_uses_every_code_and_no_other() -> None:
    assert codes_in(*(ROOT / package for package in PACKAGES)) == set(CODES)


def test_every_code_is_exercised_by_a_test() -> None:
    assert set(CODES) - codes_in(ROOT / "tests") == set()
