"""Every test, manifest line and default that docs/security.md names exists."""

import ast
import functools
import re
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(("path", "name"), TESTS, ids=[name for _, name in TESTS])
def test_every_test_that_is_named_exists(path: str, name: str) -> None:
    assert name in functions(path)


@pytest.mark.parametrize(("path", "line"), LINES, ids=[line for _, line in LINES])
def test_every_manifest_line_that_is_named_exists(path: str, line: str) -> None:
    assert line in (ROOT / path).read_text()


@pytest.mark.parametrize("row", claims())
def test_every_claim_names_a_proof(row: str) -> None:
    held_by = row.rstrip("|").rpartition("|")[2]
    assert any(f"`{path}::{name}`" in held_by for path, name in TESTS) or any(
        f"`{path}`: `{line}`" in held_by for path, line in LINES
    )


@pytest.mark.parametrize(("flag", "value"), LIMITS)
def test_every_limit_is_the_default(flag: str, value: str) -> None:
    defaults = {setting.flag: setting.default for setting in settings.declarations()}
    assert defaults[flag] == value


def test_the_document_was_parsed() -> None:
    assert len(claims()) > 40
    assert len(TESTS) > 40
    assert len(LINES) > 10
    assert len(LIMITS) == 5
