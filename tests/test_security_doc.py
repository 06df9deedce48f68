"""Every test, manifest line and default that docs/security.md names exists."""

import ast
import functools
import re
from pathlib import Path

from webhook.server import settings

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "security.md").read_text()
TESTS = sorted(set(re.findall(r"`((?:tests|kubecel)/[\w/]+\.py)::(\w+)`", TEXT)))
LINES = sorted(set(re.findall(r"`((?:deploy/[\w./-]+|Makefile))`: `([^`]+)`", TEXT)))
LIMITS = re.findall(r"\| `(--[a-z-]+)` (\d+) \|", TEXT)


def claims() -> list[str]:
    """Rows of the tables with the last column "held by"."""
    rows: list[str] = []
    holds = False
    for line in TEXT.splitlines():
        if not line.startswith("|"):
            holds = False
        elif line.endswith("| held by |"):
            holds = True
        elif holds and not line.startswith("|---"):
            rows.append(line)
    return rows


@functools.cache
def functions(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_test_that_is_named_exists() -> None:
    assert [f"{path}::{name}" for path, name in TESTS if name not in functions(path)] == []


def test_every_manifest_line_that_is_named_exists() -> None:
    assert [(path, line) for path, line in LINES if line not in (ROOT / path).read_text()] == []


def test_every_claim_names_a_proof() -> None:
    proofs = [*(f"`{path}::{name}`" for path, name in TESTS), *(f"`{path}`: `{line}`" for path, line in LINES)]
    held_by = {row: row.rstrip("|").rpartition("|")[2] for row in claims()}
    assert [row for row, text in held_by.items() if not any(proof in text for proof in proofs)] == []


def test_every_limit_is_the_default() -> None:
    defaults = {setting.flag: setting.default for setting in settings.declarations()}
    assert [(flag, value) for flag, value in LIMITS if defaults[flag] != value] == []


def test_the_document_was_parsed() -> None:
    assert len(claims()) > 40
    assert len(TESTS) > 40
    assert len(LINES) > 10
    assert len(LIMITS) == 5
