"""The stored parser table is that of the installed grammar, and is not used for another one."""

import json
from pathlib import Path

import pytest

from kubecel import grammar
from kubecel.budget import never
from kubecel.syntax.nodes import Logic
from kubecel.syntax.tree import TreeBuilder
from kubecel_tests import parser_table


def parse_with(table: Path) -> object:
    builder = TreeBuilder()
    parser = grammar.parser(builder, table)
    with builder.until(never()):
        return parser.parse("a || b")


def test_the_stored_table_is_that_of_the_locked_packages() -> None:
    """After an update of cel-python or Lark: `make grammar`."""
    assert grammar.TABLE.read_text() == parser_table.content()


def test_the_stored_table_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(grammar, "_compute")
    assert isinstance(parse_with(grammar.TABLE), Logic)


@pytest.mark.parametrize("stored", [None, json.dumps({"digest": "of another version", "data": {}, "memo": {}})])
def test_the_parser_table_is_computed_if_no_table_is_stored_for_the_grammar(tmp_path: Path, stored: str | None) -> None:
    path = tmp_path / "parser_table.json"
    if stored is not None:
        path.write_text(stored)
    assert isinstance(parse_with(path), Logic)
